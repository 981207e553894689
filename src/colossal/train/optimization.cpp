#include "colossal/train/optimization.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/foreign_error.h"
#include "colossal/base/json.h"
#include "colossal/comm/agreement.h"
#include "colossal/memory/account.h"
#include "colossal/memory/device_trace.h"
#include "colossal/run/average_weights.h"
#include "colossal/tensor/host_value.h"
#include "colossal/train/store_options.h"

namespace colossal::train {
namespace {

constexpr char kOwnOptimizers[] = "optimizers";  // key in the progress: names of the optimizers of single models
constexpr char kOrigin[] = "origin_of_unsaved";  // key in the progress of checkpoints that omit parameters

/// Host memory for disk transfers if memory.host does not limit it, as a multiple of what one update needs. A quarter
/// of it, as much as one update needs, is for prefetching (TieredStore::Options::ahead).
constexpr int64_t kTransfers = 4;

/// Returns the result of `make`. With tiers one rank may fail alone, for example because of a full disk; then all ranks
/// throw. Every `make` creates its groups first, so no rank waits for one that failed.
template <class Make>
auto made_by_all(comm::Mesh& mesh, const run::Config& config, const Make& make) {
  if (!config.memory.has_tiers()) return make();
  decltype(make()) made;
  comm::agree(mesh.all(), at::kCPU, [&] { made = make(); });
  return made;
}

std::shared_ptr<memory::TieredStore> make_tiers(const run::Config& config, const TierNeeds& needs, at::Device device,
                                                int ranks_here) {
  memory::TieredStore::Options options{.eviction_policy = memory::make_eviction_policy(config.memory.placement),
                                       .device = device,
                                       .remedy =
                                           "smaller chunks (parallel.chunk_mib) and smaller micro-batches need "
                                           "less"};
  if (config.memory.host > 0)
    options.host_bytes = config.memory.host / ranks_here;
  else if (!config.memory.disk.empty())
    options.host_bytes = kTransfers * needs.min_host_bytes;
  if (!config.memory.disk.empty())
    options.disk = device.is_meta() ? std::make_shared<memory::DiskSpace>(
                                          memory::make_unwritten_file(config.memory.disk), memory::DiskOptions{})
                                    : std::make_shared<memory::DiskSpace>(config.memory.disk);
  return std::make_shared<memory::TieredStore>(std::move(options));
}

/// Returns the options of a store in `offload`, which counts its bytes on the device in `trace`.
memory::ChunkOptions chunk_options_in(std::shared_ptr<memory::OffloadStore> offload, const run::Config& config,
                                      at::ScalarType dtype, const std::shared_ptr<memory::DeviceTrace>& trace) {
  memory::ChunkOptions options = store_options(config, dtype).chunks;
  options.offload = std::move(offload);
  if (trace) options.on_device = trace->on_device();
  return options;
}

nn::Parameters& grouped(nn::Parameters& parameters, const run::Config& config, const std::vector<OwnOptimizer>& own) {
  apply_groups(config.optimizer, own, parameters);
  return parameters;
}

/// Returns the needs of a run with tiers, whose budgets are large enough. No rank throws alone.
TierNeeds checked_needs(nn::Parameters& parameters, comm::Mesh& mesh, const run::Config& config,
                        const std::vector<OwnOptimizer>& own) {
  if (!config.memory.has_tiers()) return {};
  TierNeeds needs = made_by_all(mesh, config, [&] {
    return tier_needs(parameters, mesh, store_options(config, parameters.options().dtype), config.optimizer, own,
                      config.training.ema);
  });
  needs.agree(mesh);
  comm::agree(mesh.all(), at::kCPU,
              [&] { check_budgets(needs, config.memory, config.optimizer.name, mesh.world().local_size()); });
  return needs;
}

std::unique_ptr<memory::Placement> placement_of(const run::Config& config,
                                                const std::shared_ptr<memory::DeviceTrace>& trace) {
  const distributed::ParallelConfig& parallel = config.parallel;
  if (trace)
    return std::make_unique<memory::GatherWithinDevice>(trace, config.memory.device,
                                                        memory::eviction_order_of(config.memory.placement));
  if (!parallel.reshard_after_forward)
    return std::make_unique<memory::GatherWithin>(std::numeric_limits<int64_t>::max());
  if (parallel.max_gathered_mib == 0) return std::make_unique<memory::GatherNext>();
  return std::make_unique<memory::GatherWithin>(static_cast<int64_t>(parallel.max_gathered_mib * (1 << 20)));
}

}  // namespace

Optimization::Optimization(nn::Parameters& parameters, comm::Mesh& mesh, const run::Config& config,
                           std::vector<OwnOptimizer> own, std::shared_ptr<memory::OffloadStore> offload)
    : config_(config),
      own_(std::move(own)),
      mesh_(mesh),
      needs_(offload ? TierNeeds{} : checked_needs(parameters, mesh, config, own_)),
      tiers_(offload || !config.memory.has_tiers() ? nullptr
                                                   : made_by_all(mesh, config,
                                                                 [&] {
                                                                   return make_tiers(config, needs_,
                                                                                     parameters.options().device,
                                                                                     mesh.world().local_size());
                                                                 })),
      trace_(tiers_ && config.memory.device > 0
                 ? std::make_shared<memory::DeviceTrace>(memory::make_device_meter(parameters.options().device))
                 : nullptr),
      store_(made_by_all(mesh, config,
                         [&] {
                           return std::make_unique<memory::ChunkStore>(
                               grouped(parameters, config, own_), mesh,
                               chunk_options_in(tiers_ ? tiers_ : std::move(offload), config,
                                                parameters.options().dtype, trace_),
                               placement_of(config, trace_));
                         })),
      reducer_(*store_, store_options(config, parameters.options().dtype).gradients),
      loss_scale_(config.precision),
      leaves_out_(std::any_of(parameters.declared().begin(), parameters.declared().end(),
                              [](const nn::Parameter& p) { return !p.treatment.saved; })) {
  const memory::KindScope kind(memory::Kind::States);
  optimizers_ = made_by_all(mesh, config, [&] {
    const at::Device device = parameters.options().device;
    const std::shared_ptr<memory::OffloadStore>& offload_store = store_->options().offload;
    auto made = std::make_unique<ModelOptimizers>(config.optimizer, own_, store_->shards(), parameters, mesh,
                                                  offload_store ? offload_store->borrow_device(device) : device,
                                                  config.training.ema);
    const at::ScalarType sums = store_options(config, parameters.options().dtype).gradients.sums;
    if (tiers_ && made->takes().directions)
      for (const memory::Shard& shard : store_->shards())
        if (shard.options().dtype() != sums) shard.make_place_for_directions();
    return made;
  });
  require(config.memory.states_on_device == 0 || optimizers_->takes_shards_on(parameters.options().device), "memory",
          "states_on_device needs an optimizer that updates shards in place: ", config.optimizer.name,
          " updates them on the host; leave it out, or set optimizer.name to adamw, lion or sgd");
  // Inputs are offloaded only if the device has a budget or there is a disk; otherwise this would only copy them.
  if (tiers_ && (tiers_->disk() || config.memory.device > 0))
    inputs_ = std::make_shared<memory::InputsAt>(tiers_, tiers_->host_bytes(), needs_.of_gathers);
  store_->set_before_pass([this] { begin_step(); });  // forward may come before zero_grad()
}

void Optimization::zero_grad() {
  own_norm_.reset();
  has_gradients_ = false;
  if (!store_->is_in_pass()) in_step_ = false;  // what was used since the last step does not belong to the next one
  begin_step();
  reducer_.zero();
}

void Optimization::begin_step() {
  if (std::exchange(in_step_, true)) return;
  if (tiers_) tiers_->begin_step();
  if (trace_) trace_->begin_step();
}

optim::NormOrder Optimization::norm_order() const {
  return config_.training.clip_by == "largest" ? optim::NormOrder::Infinity : optim::NormOrder::Two;
}

/// Throws the first error of an earlier pass, and clears the errors after it.
void Optimization::rethrow() {
  if (inputs_) store_->attempt([&] { inputs_->rethrow(); });
  store_->rethrow();
}

void Optimization::agree(const std::function<void()>& work) {
  if (!store_->takes_part()) store_->rethrow();  // the other ranks detect the failure themselves
  const auto all_of_it = [&] {
    rethrow();
    work();
  };
  if (!store_->options().offload) return all_of_it();
  if (const std::optional<Error> error = comm::agreed_error(mesh_.all(), at::kCPU, all_of_it)) {
    store_->release_all();
    throw *error;
  }
}

void Optimization::close_pass() {
  own_norm_.reset();
  has_agreed_ = false;
  if (!has_gradients_) {
    in_step_ = false;
    if (tiers_) tiers_->abandon_step();
    if (trace_) trace_->abandon_step();
  }
  store_->close_pass();
  if (!store_->options().offload || !store_->takes_part()) store_->rethrow();
}

void Optimization::end_pass() {
  close_pass();
  check_pass();
}

std::vector<double> Optimization::read_before_step(const std::vector<at::Tensor>& numbers) {
  const memory::KindScope kind(memory::Kind::Buffers);  // as in step(), not the kind of the caller
  std::vector<at::Tensor> read;
  size_t elements = 0;
  for (const at::Tensor& number : numbers) {
    read.push_back(number.detach().reshape({-1}).to(at::kDouble));
    elements += static_cast<size_t>(number.numel());
  }
  at::Tensor own;
  const auto add_up = [&] { own = optim::own_norm(store_->shards(), mesh_.coordinates(), norm_order()); };
  // Whether ranks agree must not depend on calls that one of them made in between.
  std::exchange(has_agreed_, true) ? add_up() : agree(add_up);
  // Gradients that are all leased on the host are summed there, so the device's values are read separately.
  const bool is_apart = own.defined() && !read.empty() && own.device() != read.front().device();
  if (own.defined() && !is_apart) read.push_back(own.reshape({-1}));
  std::vector<double> values = read.empty() ? std::vector<double>{} : tensor::host_values(at::cat(read));
  own_norm_ = is_apart ? tensor::host_value(own) : own.defined() ? values.back() : 0;
  values.resize(elements);
  return values;
}

StepResult Optimization::step(const std::optional<LossWeights>& weights) {
  end_passes();
  keep_written();
  reducer_.complete();
  const StepResult result = clip_and_update(weights);
  has_agreed_ = has_gradients_ = in_step_ = false;
  if (trace_) trace_->end_step();
  if (tiers_) {
    // Gradients are not needed after the update, so they need not be written to the disk.
    if (store_->options().sharing.gradients) reducer_.zero();
    tiers_->end_step();
  }
  return result;
}

void Optimization::end_passes() {
  if (!trace_) return;
  trace_->end_passes();
  store_->close_pass();  // the update uses other parameters, and needs the device's memory
  if (trace_->agree(mesh_)) settle_states();
}

void Optimization::settle_states() {
  const int64_t device = config_.memory.device;
  int64_t all = 0, largest = 0;
  for (const auto& chunk : store_->chunks()) {
    largest = std::max(largest, chunk->bytes());
    if (const auto* movable = store_->movable_store_of(*chunk)) all += movable->bytes();
  }
  const bool may_move = optimizers_->takes_shards_on(store_->chunks().front()->options().device());
  const bool is_static = config_.memory.placement == "static";
  // Only the steady share of the fullest moment is used, because the next chunk may be prefetched then, too.
  const double margin = memory::kSteadyShare * static_cast<double>(device) - static_cast<double>(trace_->min_bytes()) -
                        static_cast<double>(largest);
  const auto room =
      static_cast<int64_t>(is_static ? std::ceil(config_.memory.states_on_device * static_cast<double>(all)) : margin);
  std::vector<memory::MovableStore*> here, there;
  int64_t bytes = 0;
  for (const auto& chunk : store_->chunks()) {
    memory::MovableStore* movable = store_->movable_store_of(*chunk);
    if (!movable) continue;
    const bool fits = may_move && bytes + movable->bytes() <= room;
    if (fits) bytes += movable->bytes();
    (fits ? here : there).push_back(movable);
  }
  // States may differ between ranks. With the same room, all ranks that share chunks make the same plan.
  at::Tensor most = at::tensor({trace_->min_bytes() + (is_static ? bytes : 0), bytes}, at::kLong);
  mesh_.all().all_reduce(most, comm::Reduce::Max).wait();
  const int64_t least = most[0].item<int64_t>();
  if (device < least)
    throw RefusedStep(
        "memory",
        concat("device = \"", print_bytes(device), "\" is too small: in step ", steps_done_ + 1,
               " activations, gradients and the parameters in use at once",
               config_.memory.states_on_device > 0 ? " and memory.states_on_device" : "",
               " take more; the smallest that works is \"", print_bytes(least),
               "\"; smaller chunks (parallel.chunk_mib), smaller micro-batches (training.accumulate) and ",
               "memory.recompute = \"block\" need less; nothing of this step is kept"),
        least);
  comm::agree(mesh_.all(), at::kCPU, [&] {
    for (memory::MovableStore* movable : there) movable->move(false);
    for (memory::MovableStore* movable : here) movable->move(true);
  });
  trace_->reserve(most[1].item<int64_t>());
}

std::optional<DeviceUse> Optimization::device_use() const {
  if (!trace_) return std::nullopt;
  const int64_t inputs = inputs_ ? inputs_->bytes_returned() : 0;
  return DeviceUse{.copied_to = store_->counts().loaded + inputs + reducer_.bytes_returned(),
                   .copied_from = tiers_->counts().bytes_given,
                   .model = trace_->peak_model(),
                   .peak = trace_->peak(),
                   .states = *trace_->on_device()};
}

/// Returns the norm of the gradients as they are, and what they must be divided by in addition to the loss scale.
optim::NormAndSum Optimization::norm_of(const std::optional<LossWeights>& weights) {
  if (!own_norm_) read_before_step({});
  const double own = *std::exchange(own_norm_, std::nullopt);
  if (!weights) return {optim::joint_norm(own, mesh_, norm_order()), 1};
  const auto [norm, sum] = optim::joint_norm_and_sum(own, weights->own, mesh_, norm_order());
  require(std::isfinite(sum) && sum > 0, "training",
          "the weights of a step's losses must have a finite sum above 0 over all ranks and micro-batches: got ", sum,
          "; leave out a step without any token on all ranks");
  const double mean = sum / static_cast<double>(weights->losses), unit = loss_scale_.weight_unit();
  loss_scale_.set_mean_weight(mean);
  return {norm, mean / unit};
}

StepResult Optimization::clip_and_update(const std::optional<LossWeights>& weights) {
  const double clip = config_.training.clip;
  const auto [scaled_norm, weight] = norm_of(weights);
  const double scale = loss_scale_.value() * weight, norm = scaled_norm / scale;
  // Skipped steps do not count for the bias correction of the moments.
  const ModelOptimizers::Step step{.number = steps_done_ + 1 - loss_scale_.skipped(),
                                   .of_schedule = steps_done_ + 1,
                                   .all = config_.training.steps,
                                   .batch_size = config_.training.batch_size};
  const double rate = optimizers_->learning_rate(step);
  if (!loss_scale_.accepts(norm)) {
    ++steps_done_;
    return {rate, std::numeric_limits<double>::infinity(),
            true};  // one sum of overflows is infinite, another no number
  }
  if (!std::isfinite(norm))
    throw RefusedStep("training",
                      concat("the gradient of step ", steps_done_ + 1, " is not finite (norm ", norm,
                             "): lower optimizer.learning_rate or set training.clip; nothing of this step is kept"));
  const bool by_value = clip > 0 && config_.training.clip_by == "value";
  if (by_value) agree([&] { optim::clip_by_value(store_->shards(), clip * scale); });
  update(step, (by_value ? 1 : optim::clip_factor(norm, clip)) / scale);
  return {rate, norm};
}

void Optimization::update(const ModelOptimizers::Step& step, double scale) {
  // The update runs on the device where the states are stored.
  std::optional<memory::KindScope> kind;
  if (tiers_) kind.emplace(memory::Kind::Host);
  ++steps_done_;
  try {
    if (optimizers_->communicates())
      optimizers_->step(step, scale);
    else
      agree([&] { optimizers_->step(step, scale); });
    store_->updated();
  } catch (const std::exception& error) {
    half_updated_ = as_error(error);
    throw;
  }
}

void Optimization::weights_loaded() {
  store_->attempt([&] { store_->updated(true); });  // collective, even if an earlier pass failed on this rank
  agree([] {});
}

checkpoint::TrainingState Optimization::state() {
  if (half_updated_) throw Error(*half_updated_);
  checkpoint::TrainingState state;
  state.tensors = run::saved_weights_of(*store_);
  for (const optim::StateTensor& t : optimizers_->state())
    state.tensors.push_back({concat(run::kOptimizerPrefix, t.name), t.value, t.spec, t.part, t.rows});
  state.sharers = store_->options().sharing.states ? store_->options().sharers : 1;
  state.progress = {{"step", steps_done_}, {"optimizer", config_.optimizer.name}, {"loss_scale", loss_scale_.state()}};
  for (const OwnOptimizer& one : own_) state.progress[kOwnOptimizers][one.model] = one.config.name;
  // before the first update there is no average yet
  if (config_.training.ema > 0 && steps_done_ > loss_scale_.skipped())
    state.progress[run::kAverageDecay] = config_.training.ema;
  if (leaves_out_) state.progress[kOrigin] = origin();
  return state;
}

nlohmann::json Optimization::origin() const {
  return {{"model.from", config_.model.from}, {"training.seed", config_.training.seed}};
}

void Optimization::check_progress(const nlohmann::json& progress) const {
  const auto check_name = [](const std::string& mine, const std::string& saved, const std::string& section) {
    require(saved == mine, "optimizer", "it was made with ", saved, ", this run uses ", mine,
            ", which has different states; resume with ", section, ".name = \"", saved,
            "\", or start a new run from its weights (model.from)");
  };
  const std::string& mine = config_.optimizer.name;
  check_name(mine, progress.value("optimizer", mine), "optimizer");
  const nlohmann::json of_models = progress.value(kOwnOptimizers, nlohmann::json::object());
  for (const OwnOptimizer& one : own_)
    check_name(one.config.name, of_models.value(one.model, mine), one.model + ".optimizer");
  if (!leaves_out_ || !progress.contains(kOrigin)) return;
  const nlohmann::json mine_now = origin();
  for (const auto& [key, value] : progress[kOrigin].items())
    require(mine_now.contains(key) && mine_now[key] == value, "model",
            "it leaves out frozen parameters, which came from ", key, " = ", value.dump(), ": this run has ",
            mine_now.value(key, nlohmann::json()).dump(), "; resume with ", key, " = ", value.dump());
}

void Optimization::loaded(const checkpoint::TrainingState& state) {
  const nlohmann::json& progress = state.progress;
  require(progress.contains("step") && progress["step"].is_number_integer(), "checkpoint",
          "its progress holds no step");
  steps_done_ = progress["step"];
  if (progress.contains("loss_scale")) loss_scale_.restore(progress["loss_scale"]);
  weights_loaded();
}

}  // namespace colossal::train
