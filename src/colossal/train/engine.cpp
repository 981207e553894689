#include "colossal/train/engine.h"

#include <ATen/ATen.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/models/registry.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/optim/gradient_norm.h"
#include "colossal/optim/learning_rate.h"
#include "colossal/parallel/data/gradient_reducer.h"
#include "colossal/parallel/tensor/tensor_layers.h"

namespace colossal::train {
namespace {

using comm::Phase;
using comm::PhaseScope;

at::ScalarType dtype_of(const PrecisionConfig& precision) { return precision.mode == "fp64" ? at::kDouble : at::kFloat; }

at::Tensor slice(const at::Tensor& t, int64_t part, int64_t parts) {
  if (!t.defined()) return t;
  const int64_t rows = t.size(0) / parts;
  return t.narrow(0, part * rows, rows);
}

/// Sum of `value` over the data axis, in fp64.
double sum_over_data(comm::Mesh& mesh, double value) {
  at::Tensor t = at::full({1}, value, at::kDouble);
  mesh.group("data").all_reduce(t, comm::Reduce::Sum).wait();
  return t.item<double>();
}

double counted(const at::Tensor& labels) { return static_cast<double>((labels != data::kIgnored).sum().item<int64_t>()); }

}  // namespace

std::unique_ptr<nn::Layers> make_layers(nn::Parameters& parameters, comm::Mesh& mesh, const parallel::TensorConfig& config) {
  if (config.size == 1) return std::make_unique<nn::SerialLayers>(parameters);
  return std::make_unique<parallel::TensorLayers>(parameters, parallel::make_layout(config, mesh));
}

struct Engine::Optimization {
  Optimization(nn::Parameters& parameters, comm::Mesh& mesh, const Config& config)
      : flat(parameters, static_cast<int64_t>(config.parallel.bucket_mib * (1 << 20))), reducer(flat, mesh),
        optimizer(optim::make_optimizer(config.optimizer, flat)) {}
  nn::FlatParameters flat;
  parallel::GradientReducer reducer;
  std::unique_ptr<optim::Optimizer> optimizer;
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
  const nn::Parameters::Options options{dtype_of(config.precision), choose_device(config.run.device, world.local_rank()),
                                        derive_seed(static_cast<uint64_t>(config.training.seed), "parameters")};
  parameters_ = std::make_unique<nn::Parameters>(mesh_.place(), options);
  const auto layers = make_layers(*parameters_, mesh_, config.parallel.tensor);
  model_ = std::make_unique<models::Model>(models::make_model(shape, *layers));
  optimization_ = std::make_unique<Optimization>(*parameters_, mesh_, config);
}

Engine::~Engine() = default;

at::Device Engine::device() const { return parameters_->options().device; }

void Engine::zero_grad() { optimization_->flat.zero_gradients(); }

data::Batch Engine::checked(const data::Batch& b) const {
  models::architecture(model_->shape.architecture).check(model_->shape, b.inputs, b.labels);
  auto here = [&](const at::Tensor& t) { return t.defined() ? t.to(device()) : t; };
  return {here(b.inputs), here(b.labels), here(b.positions), here(b.documents)};
}

at::Tensor Engine::hidden_states(const data::Batch& b, bool training, int64_t micro_batch) {
  nn::Step step;
  step.positions = b.positions;
  if (config_.data.documents == "separate") step.documents = b.documents;
  step.training = training;
  const int64_t micro_batches = training ? config_.training.accumulate : 1;
  step.dropout_seed = derive_seed(derive_seed(static_cast<uint64_t>(config_.training.seed), "dropout"),
                                  static_cast<uint64_t>(steps_done_));
  // A row's index in the global batch: replicas hold consecutive rows, micro-batches consecutive rows of those.
  step.first_row = (mesh_.index("data") * micro_batches + micro_batch) * b.inputs.size(0);
  return models::hidden_states(*model_, b.inputs, step);
}

double Engine::train_step(const data::Batch& batch) {
  const data::Batch b = checked(batch);
  comm::Traffic& traffic = mesh_.world().traffic();
  const int64_t parts = config_.training.accumulate;
  const PhaseScope other(traffic, Phase::Other);
  const double labels = std::max(1.0, sum_over_data(mesh_, counted(b.labels)));
  double loss = 0;
  for (int64_t i = 0; i < parts; ++i) {
    const data::Batch micro{slice(b.inputs, i, parts), slice(b.labels, i, parts), slice(b.positions, i, parts), slice(b.documents, i, parts)};
    at::Tensor sum;
    {
      const PhaseScope forward(traffic, Phase::Forward);
      sum = model_->head->loss_sum(hidden_states(micro, true, i), micro.labels);
    }
    const PhaseScope backward(traffic, Phase::Backward);
    if (i + 1 == parts) optimization_->reducer.begin();
    (sum / labels).backward();
    loss += sum.item<double>() / labels;
  }
  {
    const PhaseScope backward(traffic, Phase::Backward);
    optimization_->reducer.finish();
  }
  return sum_over_data(mesh_, loss);
}

StepResult Engine::step() {
  const PhaseScope phase(mesh_.world().traffic(), Phase::Optimizer);
  const double norm = optim::gradient_norm(optimization_->flat, mesh_);
  require(std::isfinite(norm), "training", "the gradient of step ", steps_done_ + 1, " is not finite (norm ", norm,
          "): lower optimizer.learning_rate or set training.clip; nothing of this step is kept");
  const double clip = config_.training.clip;
  const double scale = clip > 0 && norm > clip ? clip / norm : 1;
  const double rate = optim::learning_rate(config_.optimizer, steps_done_ + 1, config_.training.steps);
  optimization_->optimizer->step(++steps_done_, rate, scale);
  return {rate, norm};
}

Evaluation Engine::evaluate(const data::Batch& batch) {
  const at::NoGradGuard no_grad;
  const PhaseScope phase(mesh_.world().traffic(), Phase::Other);
  const data::Batch b = checked(batch);
  const bool classifies = models::architecture(model_->shape.architecture).input == models::Input::Images;
  const at::Tensor hidden = hidden_states(b, false, 0);
  at::Tensor sums = at::zeros({3}, at::kDouble);  // of the losses, of the labels, of those that were found
  sums[0] = model_->head->loss_sum(hidden, b.labels).to(at::kCPU, at::kDouble);
  sums[1] = counted(b.labels);
  if (classifies) sums[2] = model_->head->logits(hidden).argmax(-1).eq(b.labels).sum().to(at::kCPU, at::kDouble);
  mesh_.group("data").all_reduce(sums, comm::Reduce::Sum).wait();
  const double labels = std::max(1.0, sums[1].item<double>());
  Evaluation result{sums[0].item<double>() / labels, {}};
  if (classifies) result.accuracy = sums[2].item<double>() / labels;
  return result;
}

checkpoint::TrainingState Engine::state() {
  checkpoint::TrainingState state;
  for (const nn::Parameter& p : *parameters_) state.tensors.push_back({"model." + p.name, p.value.detach(), p.spec});
  for (const optim::StateTensor& t : optimization_->optimizer->state())
    state.tensors.push_back({"optimizer." + t.name, t.value, t.parameter->spec});
  state.progress = {{"step", steps_done_}};
  return state;
}

void Engine::set_progress(const nlohmann::json& progress) {
  require(progress.contains("step") && progress["step"].is_number_integer(), "checkpoint", "its progress names no step");
  steps_done_ = progress["step"];
}

std::unique_ptr<Engine> initialize(comm::World& world, const Config& config, const models::ModelShape& shape) {
  config.validate();
  require(world.size() == config.parallel.ranks(), "parallel", "the ranks must be the product of the layout's sizes: got ",
          world.size(), " ranks, data ", config.parallel.data, " * tensor ", config.parallel.tensor.size, " = ",
          config.parallel.ranks(), "; start that many or change [parallel]");
  parallel::check_sizes(config.parallel.tensor, shape.hidden, 0);  // config.validate() has seen the batch
  return std::make_unique<Engine>(world, config, shape);
}

}  // namespace colossal::train
