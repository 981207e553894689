#include "colossal/train/engine.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numeric>
#include <string_view>
#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/models/registry.h"
#include "colossal/optim/gradient_norm.h"
#include "colossal/optim/learning_rate.h"
#include "colossal/parallel/data/gradient_reducer.h"
#include "colossal/train/loss_scale.h"

namespace colossal::train {
namespace {

using comm::Phase;
using comm::PhaseScope;

constexpr std::string_view kOptimizer = "optimizer.";  // before the names of its states

memory::ChunkOptions chunk_options(const Config& config, at::ScalarType dtype) {
  memory::ChunkOptions options;
  options.zero = static_cast<int>(config.parallel.zero);
  options.sharers = static_cast<int>(config.parallel.zero_sharers);
  options.capacity = static_cast<int64_t>(config.parallel.chunk_mib * (1 << 20)) / static_cast<int64_t>(c10::elementSize(dtype));
  if (config.precision.has_masters()) options.masters = at::kFloat;
  options.reshard_after_forward = config.parallel.reshard_after_forward;
  return options;
}

/// Micro-batches are added up in fp32 at least. In a pipeline, whose micro-batches overlap, once a step.
parallel::GradientOptions gradient_options(const Config& config, at::ScalarType dtype) {
  const bool one = config.micro_batches() == 1;
  return {.sums = one || dtype == at::kDouble ? dtype : at::kFloat, .each_pass = config.parallel.zero >= 2 && config.parallel.pipeline.size == 1};
}

nn::Recompute recompute_of(const MemoryConfig& memory) {
  return memory.recompute == "block" ? nn::Recompute::Block : memory.recompute == "selective" ? nn::Recompute::Selective : nn::Recompute::None;
}

at::Tensor slice(const at::Tensor& t, int64_t part, int64_t parts) {
  if (!t.defined()) return t;
  const int64_t rows = t.size(0) / parts;
  return t.narrow(0, part * rows, rows);
}

data::Batch part_of(const data::Batch& b, int64_t part, int64_t parts) {
  return {slice(b.inputs, part, parts), slice(b.labels, part, parts), slice(b.positions, part, parts), slice(b.documents, part, parts)};
}

/// Sum of `value` over `group`, in fp64.
double sum_over(comm::Group& group, double value) {
  at::Tensor t = at::full({1}, value, at::kDouble);
  group.all_reduce(t, comm::Reduce::Sum).wait();
  return t.item<double>();
}

double counted(const at::Tensor& labels) { return static_cast<double>((labels != data::kIgnored).sum().item<int64_t>()); }

}  // namespace

struct Engine::Optimization {
  Optimization(nn::Parameters& parameters, comm::Mesh& mesh, const Config& config)
      : store(parameters, mesh, chunk_options(config, parameters.options().dtype)),
        reducer(store, gradient_options(config, parameters.options().dtype)),
        optimizer(optim::make_optimizer(config.optimizer, store.shards(), mesh)),
        loss_scale(config.precision) {}
  memory::ChunkStore store;
  parallel::GradientReducer reducer;
  std::unique_ptr<optim::Optimizer> optimizer;
  LossScale loss_scale;
};

at::Device choose_device(const std::string& name, int local_rank) {
  const bool has_cuda = at::globalContext().hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0;
  require(name != "cuda" || has_cuda, "run", "device cuda needs a CUDA build of LibTorch and a GPU; use --run.device=cpu");
  if (name == "cpu" || !has_cuda) return at::kCPU;
  return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(local_rank % at::detail::getCUDAHooks().deviceCount()));
}

Engine::Engine(comm::World& world, const Config& config, const models::ModelShape& shape)
    : config_(config),
      mesh_(world, config.parallel.axes()) {
  const PhaseScope phase(world.traffic(), Phase::Setup);
  nn::Parameters::Options options{config.precision.dtype(), choose_device(config.run.device, world.local_rank()),
                                  derive_seed(static_cast<uint64_t>(config.training.seed), "parameters")};
  options.without_memory = true;  // the chunk store gives it
  if (config.precision.mode == "fp8") {
    fp8_ = std::make_unique<nn::Fp8Layers>(nn::fp8_recipe(config.precision.fp8));
    options.product = [this](std::shared_ptr<const nn::Product> product, const nn::Parameter& weight) { return fp8_->wrap(std::move(product), weight); };
  }
  model_ = std::make_unique<distributed::DistributedModel>(mesh_, config.parallel, shape, options,
                                                           distributed::DistributedModel::Workload{config.micro_batches(), config.data.sequence});
  optimization_ = std::make_unique<Optimization>(parameters(), mesh_, config);
}

Engine::~Engine() = default;

at::Device Engine::device() const { return model_->parameters().options().device; }

void Engine::zero_grad() { optimization_->reducer.zero(); }

memory::ChunkStore& Engine::store() { return optimization_->store; }

data::Batch Engine::checked(const data::Batch& b) const {
  const models::ModelShape& shape = model_->model().shape;
  models::architecture(shape.architecture).check(shape, b.inputs, b.labels);
  auto here = [&](const at::Tensor& t) { return t.defined() ? t.to(device()) : t; };
  return {here(b.inputs), here(b.labels), here(b.positions), here(b.documents)};
}

nn::Step Engine::step_of(const data::Batch& micro_batch) const {
  nn::Step step;
  step.positions = micro_batch.positions;
  if (config_.data.documents == "separate") step.documents = micro_batch.documents;
  return step;
}

double Engine::train_step(const data::Batch& batch) {
  const data::Batch b = checked(batch);
  const int64_t parts = config_.micro_batches();
  const PhaseScope other(mesh_.world().traffic(), Phase::Other);
  const double labels = std::max(1.0, sum_over(mesh_.group("data"), counted(b.labels)));
  const auto micro = [&](int64_t i) { return part_of(b, i, parts); };
  const auto pass = [&](int i) {
    const data::Batch part = micro(i);
    nn::Step step = step_of(part);
    step.training = true;
    step.recompute = recompute_of(config_.memory);
    step.dropout_seed = derive_seed(derive_seed(static_cast<uint64_t>(config_.training.seed), "dropout"), static_cast<uint64_t>(steps_done_));
    // A row's index in the global batch: replicas hold consecutive rows, micro-batches consecutive rows of those.
    step.first_row = (mesh_.index("data") * parts + i) * part.inputs.size(0);
    return distributed::DistributedModel::Pass{part.inputs, step};
  };
  std::vector<double> losses(parts, 0);  // added up in the order of the micro-batches, whatever the schedule
  const auto loss = [&](int i, const at::Tensor& hidden) {
    const at::Tensor sum = model().head->loss_sum(hidden, micro(i).labels);
    losses[i] = sum.item<double>() / labels;
    return sum * (optimization_->loss_scale.value() / labels);
  };
  model_->train(pass, loss, [&](bool last) { optimization_->reducer.begin(last); });
  {
    const PhaseScope backward(mesh_.world().traffic(), Phase::Backward);
    optimization_->reducer.finish();
  }
  optimization_->store.end_pass();
  return sum_over(mesh_.group({"pipeline", "data"}), std::accumulate(losses.begin(), losses.end(), 0.0));
}

StepResult Engine::step() {
  const PhaseScope phase(mesh_.world().traffic(), Phase::Optimizer);
  Optimization& o = *optimization_;
  const double clip = config_.training.clip, scale = o.loss_scale.value();
  const std::string& by = config_.training.clip_by;
  const double norm = optim::gradient_norm(o.store.shards(), mesh_, by == "largest" ? optim::NormOrder::Infinity : optim::NormOrder::Two) / scale;
  const double rate = optim::learning_rate(config_.optimizer, steps_done_ + 1, config_.training.steps, config_.training.batch_size);
  if (fp8_) {
    parallel::GroupReduction ranks(mesh_.all_but("pipeline"));
    fp8_->end_step(ranks);
  }
  if (!o.loss_scale.accepts(norm)) {
    ++steps_done_;
    return {rate, norm, true};
  }
  require(std::isfinite(norm), "training", "the gradient of step ", steps_done_ + 1, " is not finite (norm ", norm,
          "): lower optimizer.learning_rate or set training.clip; nothing of this step is kept");
  const bool by_value = clip > 0 && by == "value";
  if (by_value) optim::clip_by_value(o.store.shards(), clip * scale);
  o.optimizer->step(++steps_done_, rate, (by_value ? 1 : optim::clip_factor(norm, clip)) / scale);
  o.store.updated();
  return {rate, norm};
}

Evaluation Engine::evaluate(const data::Batch& batch) {
  const at::NoGradGuard no_grad;
  const PhaseScope phase(mesh_.world().traffic(), Phase::Other);
  const data::Batch b = checked(batch);
  const bool classifies = models::architecture(model().shape.architecture).input == models::Input::Images;
  const int64_t wanted = mesh_.size("pipeline") > 1 ? config_.micro_batches() : 1;
  const int64_t parts = b.inputs.size(0) % (wanted * model().batch_parts) == 0 ? wanted : 1;
  const auto micro = [&](int64_t i) { return part_of(b, i, parts); };
  const auto pass = [&](int i) { return distributed::DistributedModel::Pass{micro(i).inputs, step_of(micro(i))}; };
  const auto sums_of = [&](int i, const at::Tensor& hidden) {
    at::Tensor sums = at::zeros({3}, at::kDouble);  // of the losses, of the labels, of those that were found
    const at::Tensor labels = micro(i).labels;
    sums[0] = model().head->loss_sum(hidden, labels).to(at::kCPU, at::kDouble);
    sums[1] = counted(labels);
    if (classifies) sums[2] = model().head->logits(hidden).argmax(-1).eq(labels).sum().to(at::kCPU, at::kDouble);
    return sums;
  };
  at::Tensor sums = at::zeros({3}, at::kDouble);
  for (const at::Tensor& part : model_->forward(static_cast<int>(parts), pass, sums_of)) sums += part;
  optimization_->store.end_pass();
  mesh_.group({"pipeline", "data"}).all_reduce(sums, comm::Reduce::Sum).wait();
  const double labels = std::max(1.0, sums[1].item<double>());
  Evaluation result{sums[0].item<double>() / labels, {}};
  if (classifies) result.accuracy = sums[2].item<double>() / labels;
  return result;
}

checkpoint::TrainingState Engine::state() {
  checkpoint::TrainingState state;
  for (checkpoint::NamedTensor& t : weights()) {
    t.name = "model." + t.name;
    state.tensors.push_back(std::move(t));
  }
  for (const optim::StateTensor& t : optimization_->optimizer->state())
    state.tensors.push_back({concat(kOptimizer, t.name), t.value, t.spec, t.part});
  if (fp8_)
    for (const auto& layer : fp8_->states()) state.tensors.push_back({layer->name, layer->history, layer->spec, {}});
  state.progress = {{"step", steps_done_}, {"optimizer", config_.optimizer.name}, {"loss_scale", optimization_->loss_scale.state()}};
  return state;
}

std::vector<checkpoint::NamedTensor> Engine::weights() {
  std::vector<checkpoint::NamedTensor> weights;
  for (const auto* shards : {&optimization_->store.shards(), &optimization_->store.frozen()})
    for (const memory::Shard& shard : *shards)
      for (const memory::Piece& piece : shard.pieces)
        weights.push_back({piece.parameter->name, shard.values.narrow(0, piece.offset, piece.part.size), piece.parameter->spec, piece.part});
  return weights;
}

void Engine::weights_loaded() { optimization_->store.updated(true); }

void Engine::check_progress(const nlohmann::json& progress) const {
  const std::string& mine = config_.optimizer.name;
  const std::string saved = progress.value("optimizer", mine);
  require(saved == mine, "optimizer", "the checkpoint is of a run with ", saved, ", this one uses ", mine, ": their states are not the same; resume with "
          "optimizer.name = \"", saved, "\", or start anew from exported weights");
}

void Engine::loaded(const checkpoint::TrainingState& state) {
  const nlohmann::json& progress = state.progress;
  require(progress.contains("step") && progress["step"].is_number_integer(), "checkpoint", "its progress names no step");
  std::vector<optim::StateTensor> states;
  for (const checkpoint::NamedTensor& t : state.tensors)
    if (t.name.starts_with(kOptimizer)) states.push_back({t.name.substr(kOptimizer.size()), t.value, t.spec, t.part});
  optimization_->optimizer->loaded(states);
  steps_done_ = progress["step"];
  if (progress.contains("loss_scale")) optimization_->loss_scale.restore(progress["loss_scale"]);
  weights_loaded();
}

std::unique_ptr<Engine> initialize(comm::World& world, const Config& config, const models::ModelShape& shape) {
  config.validate();
  require(world.size() == config.parallel.ranks(), "parallel", "the ranks must be the product of the layout's sizes: got ",
          world.size(), " ranks, pipeline ", config.parallel.pipeline.size, " * data ", config.parallel.data, " * tensor ", config.parallel.tensor.size,
          " = ", config.parallel.ranks(), "; start that many or change [parallel]");
  parallel::check_sizes(config.parallel.tensor, shape.hidden, 0);  // config.validate() has seen the batch
  return std::make_unique<Engine>(world, config, shape);
}

}  // namespace colossal::train
