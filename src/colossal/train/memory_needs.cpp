#include "colossal/train/memory_needs.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/machine.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/memory/account.h"
#include "colossal/models/registry.h"
#include "colossal/nn/frozen_form.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/optim/average.h"
#include "colossal/train/placed_model.h"
#include "colossal/train/record_step.h"
#include "colossal/train/store_options.h"
#include "colossal/train/tier_needs.h"

namespace colossal::train {
namespace {

constexpr double kCountable = 9007199254740992.0;  // 2^53 elements, so that no sum of bytes overflows
/// Maximum number of layers that are built to estimate a model, because a config may have a billion of them.
constexpr int64_t kEstimatedBlocks = 64;

struct Elements {
  double all = 0, trained = 0;
  double beside = 0;  // of `trained`, those that belong to no adapter
  double bytes = 0;   // as the parameters are stored, in a model of one process
};

/// Returns an estimate of the elements of the whole model. If it has more than `most_blocks` layers, the first ones are
/// counted and extrapolated; then the estimate may be too small. Every parameter belongs to no stage of this rank, so
/// none has a tensor and no size overflows.
Elements estimated_elements(const NamedModel& model, int64_t most_blocks = kEstimatedBlocks,
                            at::ScalarType dtype = at::kFloat) {
  struct Enough {};
  const models::ModelShape& shape = model.shape;
  nn::Parameters::Options options{.dtype = dtype, .device = at::kMeta, .treatment = model.adapter.treatment};
  if (model.adapter.product) options.products.push_back(model.adapter.product);
  options.stages = [&](const std::string& name) {
    if (models::block_of(name, shape.blocks()).value_or(0) >= most_blocks) throw Enough{};
    return std::vector<int>{};
  };
  nn::Parameters parameters({}, options);
  nn::SerialLayers layers(parameters);
  try {
    models::make_model(shape, layers);
  } catch (const Enough&) {
  }
  const double times = static_cast<double>(shape.blocks()) / static_cast<double>(std::min(shape.blocks(), most_blocks));
  Elements sum;
  for (const nn::Parameter& p : parameters.declared()) {
    double elements = models::block_of(p.name, shape.blocks()) ? times : 1;
    for (const int64_t size : p.spec.shape) elements *= static_cast<double>(size);
    sum.all += elements;
    const auto form = parameters.form_of(p);
    const auto matrix = static_cast<double>(p.is_stack ? p.spec.numel() / p.spec.shape[0] : p.spec.numel());
    const double of_form = form ? static_cast<double>(form->bytes()) / matrix : 0;
    sum.bytes += elements * (form ? of_form : static_cast<double>(c10::elementSize(dtype)));
    if (!p.treatment.trains) continue;
    sum.trained += elements;
    if (!p.is_added) sum.beside += elements;
  }
  return sum;
}

int64_t total_of(const std::vector<memory::Shard>& shards) {
  int64_t bytes = 0;
  for (const memory::Shard& shard : shards) bytes += shard.bytes();
  return bytes;
}

/// Returns the bytes of an average of the values of shards.
int64_t bytes_of_average(const std::vector<memory::Shard>& shards) {
  double bytes = 0;
  for (const memory::Shard& shard : shards)
    bytes += static_cast<double>(shard.length()) *
             optim::average_bytes(static_cast<double>(shard.options().dtype().itemsize()));
  return static_cast<int64_t>(bytes);
}

/// Returns the bytes of states that rules keep for whole tensors (factored moments, projections), outside of shards.
int64_t states_beside(optim::Optimizer& optimizer) {
  int64_t bytes = 0;
  for (const optim::StateTensor& state : optimizer.state())
    if (!state.part) bytes += state.value.nbytes();
  return bytes;
}

/// Returns the rows of the parameters of one model, without the model's name.
std::vector<MemoryNeed> needs_of(nn::Parameters& parameters, comm::Mesh& mesh, const run::Config& config,
                                 const optim::OptimizerConfig& of_optimizer) {
  const at::ScalarType dtype = parameters.options().dtype;
  const StoreOptions options = store_options(config, dtype);
  const auto& [chunks, gradients] = options;
  const auto size_of_sums = static_cast<int64_t>(c10::elementSize(gradients.sums)),
             size_of_masters = chunks.masters ? static_cast<int64_t>(c10::elementSize(*chunks.masters)) : 0;
  PlannedShards planned = plan_shards(parameters, mesh, chunks, 1);
  int64_t of_frozen = 0, of_parameters = 0, of_gradients = 0, of_masters = 0;
  for (const memory::PlannedChunk& chunk : planned.plan.chunks) {
    const int64_t part = chunk.part_length(), size = chunk.element_size();
    (chunk.is_trained ? of_parameters : of_frozen) += size * (chunks.sharing.parameters ? part : chunk.length);
    if (!chunk.is_trained) continue;
    of_gradients += size_of_sums * (chunks.sharing.gradients ? part : chunk.length);
    of_masters += size_of_masters * part;
  }
  const int64_t without_states = total_of(planned.trained);
  const double ema = config.training.ema;
  const auto optimizer =
      optim::make_averaging_optimizer(of_optimizer, planned.trained, {parameters, mesh, at::kMeta}, ema);
  const int64_t of_average = ema > 0 ? bytes_of_average(planned.trained) : 0;
  const int64_t of_states = total_of(planned.trained) - without_states - of_average + states_beside(*optimizer);
  const bool has_tiers = config.memory.has_tiers();
  const std::string tiers = !has_tiers ? "device" : config.memory.disk.empty() ? "host" : "host or disk";
  std::vector<MemoryNeed> rows{
      {{}, kFrozenParameters, of_frozen, chunks.sharing.parameters ? tiers : "device"},
      {{}, "parameters", of_parameters, chunks.sharing.parameters ? tiers : "device"},
      {{}, "gradients", of_gradients, chunks.sharing.gradients ? tiers : "device"},
      {{}, "masters", of_masters, tiers},
      {{}, "states", of_states, tiers},
      {{}, "average", of_average, tiers},
  };
  if (has_tiers) {
    const TierNeeds needs = tier_needs(parameters, mesh, options, of_optimizer, {}, ema);
    rows.push_back({{}, "at once", needs.min_host_bytes, "host"});
    rows.push_back({{}, "without a disk", needs.whole, "host"});
    rows.push_back({{}, "largest chunk", needs.largest_chunk, "device"});
  }
  std::erase_if(rows, [](const MemoryNeed& row) { return row.bytes == 0; });
  return rows;
}

std::string readable(double bytes) { return readable_bytes(static_cast<int64_t>(std::min(bytes, 9e18))); }

/// Bytes of all ranks together. Rows of budgets are excluded, because their contents are counted in other rows.
struct Total {
  double parameters = 0, gradients = 0, states = 0;  ///< states include master weights and averages
  double sum() const { return parameters + gradients + states; }
  void add(const MemoryNeed& need, double times) {
    const double bytes = times * static_cast<double>(need.bytes);
    if (need.what == "parameters" || need.what == kFrozenParameters) parameters += bytes;
    if (need.what == "gradients") gradients += bytes;
    if (need.what == "masters" || need.what == "states" || need.what == "average") states += bytes;
  }
};

/// Counts each element of a model once, independent of sharding: the minimum of any layout.
Total min_total(const ConfiguredRun& run, const NamedModel& model, const Elements& elements) {
  const auto size = static_cast<double>(c10::elementSize(run.config.precision.dtype()));
  const bool has_masters = run.config.precision.has_masters();
  const double exact = has_masters ? 4 : size;
  const double of_average = run.config.training.ema > 0 ? optim::average_bytes(exact) : 0;
  return {.parameters = elements.bytes,
          .gradients = elements.trained * size,
          .states = elements.trained *
                    ((has_masters ? exact : 0) + of_average + optim::min_state_bytes(run.optimizer_of(model), exact))};
}

/// Ranks of one stage have the same needs; stages differ.
Total total_of(const ConfiguredRun& run) {
  const distributed::ParallelConfig& parallel = run.config.parallel;
  const int64_t stages = parallel.pipeline.size, ranks_of_stage = parallel.ranks() / stages;
  Total total;
  for (int64_t stage = 0; stage < stages; ++stage)
    for (const MemoryNeed& need : memory_needs(run, static_cast<int>(stage * ranks_of_stage)))
      total.add(need, static_cast<double>(ranks_of_stage));
  return total;
}

}  // namespace

std::vector<MemoryNeed> memory_needs(const ConfiguredRun& run, int rank) {
  run.config.validate();
  std::vector<MemoryNeed> needs;
  for (const NamedModel& model : run.models) {
    if (!model.is_main_without_adapters) {
      check_sizes(model.layout(run.config.parallel), model.shape, run.objective_of(model)->example(1), model.name);
      require(estimated_elements(model).all < kCountable, "model", "a model must have fewer than 2^53 parameters: got ",
              model.shape.layers, " layers, hidden ", model.shape.hidden, " and vocabulary ", model.shape.vocabulary);
    }
    ModelOnShapes here(run, model, rank);
    if (model.is_main_without_adapters && here.parameters().size() == 0) continue;
    std::vector<MemoryNeed> own = needs_of(here.parameters(), here.mesh(), run.config, run.optimizer_of(model));
    for (MemoryNeed& need : own) {
      need.model = model.name;
      needs.push_back(std::move(need));
    }
  }
  return needs;
}

std::optional<MemoryNeed> activation_need(const ConfiguredRun& run, int rank) {
  ConfiguredRun one = run;
  run::Config& config = one.config;
  if (config.parallel.pipeline.size == 1) {  // micro-batches are alike, and one is in memory at a time
    config.training.batch_size /= config.micro_batches();
    config.training.accumulate = 1;
  }
  try {
    return MemoryNeed{{}, "activations", record_step(one, rank).memory.kinds.activations, "device"};
  } catch (const std::exception&) {
    return std::nullopt;  // a model of a user may lack operators on meta
  }
}

WholeModelNeed whole_model_need(
    const models::ModelShape& shape, at::ScalarType dtype,
    const std::function<void(const models::Model& model, const nn::Parameters& parameters)>& work) {
  const at::NoGradGuard no_grad;
  const memory::Account account(memory::Counted::Shapes);
  nn::Parameters parameters({}, {.dtype = dtype, .device = at::kMeta});
  nn::SerialLayers layers(parameters);
  const models::Model model = models::make_model(shape, layers);
  const int64_t weights = account.usage().total;
  work(model, parameters);
  return {weights, account.usage().peak_total - weights};
}

void ModelSize::add(const MemoryNeed& need, int64_t ranks) {
  bytes += need.bytes * ranks;
  auto row = std::find_if(needs.begin(), needs.end(), [&](const plan::PredictedNeed& one) {
    return one.what == need.what && one.place == need.place;
  });
  if (row == needs.end()) row = needs.insert(needs.end(), {need.what, need.place, 0});
  row->bytes += need.bytes * ranks;
}

std::vector<ModelSize> model_sizes(const ConfiguredRun& run) {
  std::vector<ModelSize> sizes;
  for (const NamedModel& model : run.models) {
    const NamedModel& counted = model.is_main_without_adapters ? run.models.main() : model;
    const Elements elements = estimated_elements(counted, counted.shape.blocks());
    if (model.is_main_without_adapters)
      sizes.push_back({model.name, static_cast<int64_t>(elements.beside), 0});
    else
      sizes.push_back({model.name, static_cast<int64_t>(elements.all), static_cast<int64_t>(elements.trained)});
  }
  const distributed::ParallelConfig& parallel = run.config.parallel;
  const int64_t stages = parallel.pipeline.size, ranks_of_stage = parallel.ranks() / stages;
  for (int64_t stage = 0; stage < stages; ++stage)
    for (const MemoryNeed& need : memory_needs(run, static_cast<int>(stage * ranks_of_stage)))
      for (ModelSize& size : sizes)
        if (size.name == need.model && !need.is_budget()) size.add(need, ranks_of_stage);
  return sizes;
}

double parameter_count(const NamedModel& model) { return estimated_elements(model, model.shape.blocks()).all; }

std::string to_string(const std::vector<MemoryNeed>& needs) {
  std::vector<plan::PredictedNeed> named;
  for (const MemoryNeed& need : needs)
    named.push_back({concat(need.model, need.model.empty() ? "" : " ", need.what), need.place, need.bytes});
  return plan::to_text(named);
}

double usable_memory() {
  const Machine machine = describe_machine();
  const double all = static_cast<double>(machine.memory_total), limit = static_cast<double>(machine.memory_limit);
  return (limit > 0 ? std::min(all, limit) : all) + static_cast<double>(machine.swap_total);
}

void check_memory(const ConfiguredRun& run, at::Device device, int64_t local, double limit) {
  const run::Config& config = run.config;
  const int64_t ranks = config.parallel.ranks();
  if (limit <= 0 || !device.is_cpu() || !config.memory.disk.empty() ||
      (config.parallel.pipeline.size > 1 && local < ranks))
    return;
  const double here = static_cast<double>(local) / static_cast<double>(ranks);
  double elements = 0;
  Total least;
  for (const NamedModel& model : run.models) {
    if (model.is_main_without_adapters) continue;
    const Elements more = estimated_elements(model, kEstimatedBlocks, config.precision.dtype());
    const Total own = min_total(run, model, more);
    elements += more.all;
    least.parameters += own.parameters, least.gradients += own.gradients, least.states += own.states;
  }
  const auto check = [&](const Total& total) {
    const models::ModelShape& main = run.models.main().shape;
    require(total.sum() * here <= limit, "model", "a model of ", main.layers, " layers, hidden ", main.hidden,
            " and vocabulary ", main.vocabulary, " (", elements / 1e9,
            " billion parameters) does not fit: got parameters ", readable(total.parameters * here), ", gradients ",
            readable(total.gradients * here), " and states of ", config.optimizer.name, " ",
            readable(total.states * here), " at least on the ", local, " rank(s) of this machine, which has ",
            readable(limit), "; take a smaller model (model.layers, model.hidden), ",
            config.parallel.zero < 3 && config.parallel.copies() > 1 ? "shard more (parallel.zero = 3), " : "",
            "fewer replicas here (parallel.data) or more machines");
  };
  check(least);  // first, because a config with a billion layers must not be built
  check(total_of(run));
}

}  // namespace colossal::train
