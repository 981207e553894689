#include "colossal/train/engine.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/launch/device.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/memory/account.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_documents.h"
#include "colossal/nn/fp8_product.h"
#include "colossal/ops/attention_mask.h"
#include "colossal/parallel/sequence/runs.h"
#include "colossal/parallel/tensor/vocabulary.h"
#include "colossal/tensor/elsewhere.h"
#include "colossal/tensor/graph.h"
#include "colossal/tensor/host_value.h"
#include "colossal/train/captured_pass.h"
#include "colossal/train/check_sizes.h"
#include "colossal/train/optimization.h"

namespace colossal::train {
namespace {

using comm::Phase;
using comm::PhaseScope;

nn::Recompute recompute_of(const run::MemoryConfig& memory) {
  return memory.recompute == "block"       ? nn::Recompute::Block
         : memory.recompute == "selective" ? nn::Recompute::Selective
                                           : nn::Recompute::None;
}

at::Tensor slice(const at::Tensor& t, int64_t part, int64_t parts) {
  if (!t.defined()) return t;
  const int64_t rows = t.size(0) / parts;
  return t.narrow(0, part * rows, rows);
}

data::Batch part_of(const data::Batch& b, int64_t part, int64_t parts) {
  return {slice(b.inputs, part, parts), slice(b.labels, part, parts), slice(b.positions, part, parts),
          slice(b.documents, part, parts)};
}

/// What a run on meta stands for: CUDA where the config asks for it, also on a machine that has none.
at::DeviceType shown_by(const std::string& device) {
  return device == "cuda" ? at::kCUDA : comm::choose_device(device, 0).type();
}

/// The ranks of this stage that are given other rows: their labels, and what they lost, add up to those of the global
/// batch.
comm::Group& ranks_of_other_rows(comm::Mesh& mesh) { return mesh.group(mesh.place().row_axes()); }

/// Those and their counterparts in the other stages.
comm::Group& ranks_of_all_rows(comm::Mesh& mesh) {
  std::vector<std::string> axes = mesh.place().row_axes();
  axes.insert(axes.begin(), "pipeline");
  return mesh.group(axes);
}

/// Labels that count, on their device.
at::Tensor counted(const at::Tensor& labels) { return (labels != data::kIgnored).sum(); }

/// "tokens 0-3, 12-15"
std::string text_of(const std::vector<data::TokenRun>& runs) {
  std::string text;
  for (const data::TokenRun& run : runs)
    text += concat(text.empty() ? "tokens " : ", ", run.first, "-", run.first + run.size - 1);
  return text.empty() ? "all tokens" : text;
}

/// Of [training] graph, what the config does not know. On meta nothing is launched.
void check_graph(const models::ModelShape& shape, at::Device device) {
  require(device.is_meta() || tensor::can_capture(device.type()), "training", "graph needs a CUDA device: got ",
          device.str(), "; set training.graph = false");
  require(shape.dropout == 0, "training", "graph needs a model without dropout, whose seeds would be recorded: got ",
          shape.dropout, "; set model.dropout = 0 or training.graph = false");
}

/// The ranks that hold the layers that this one does: those of its stage, which chimera has at two indices.
comm::Group& holders_of(comm::Mesh& mesh, const nn::Fp8Layers& layers) {
  if (layers.states().empty() || layers.states().front()->spec.stages.size() < 2) return mesh.all_but("pipeline");
  std::vector<std::string> axes;
  for (const tensor::Place::Axis& axis : mesh.place().axes())
    if (axis.name != "pipeline") axes.push_back(axis.name);
  return mesh.among(axes, "pipeline", layers.states().front()->spec.stages);
}

}  // namespace

Engine::Engine(comm::World& world, const run::Config& config, const models::ModelShape& shape, at::Device device)
    : config_(config), mesh_(world, config.parallel.axes()) {
  const PhaseScope phase(world.traffic(), Phase::Setup);
  nn::Parameters::Options options{config.precision.dtype(), device,
                                  derive_seed(static_cast<uint64_t>(config.training.seed), "parameters")};
  options.without_memory = true;  // the chunk store gives it
  options.shown = shown_by(config.run.device);
  if (config.precision.mode == "fp8") {
    fp8_ = std::make_unique<nn::Fp8Layers>(nn::fp8_recipe(config.precision.fp8));
    options.product = [this](std::shared_ptr<const nn::Product> product, const nn::Parameter& weight) {
      return fp8_->wrap(std::move(product), weight);
    };
  }
  model_ = std::make_unique<distributed::DistributedModel>(
      mesh_, config.parallel, shape, options,
      distributed::DistributedModel::Workload{config.micro_batches(), config.data.sequence});
  optimization_ = std::make_unique<Optimization>(parameters(), mesh_, config);
  mesh_.connect(device);
  // What steps will ask for, for numbers of the host: made there, a group would wait for ranks that still compute. All
  // ranks go by one order.
  ranks_of_other_rows(mesh_);
  ranks_of_all_rows(mesh_);
  mesh_.all();
  if (fp8_) holders_of(mesh_, *fp8_);
  if (config.training.graph && !device.is_meta())
    captured_ = std::make_unique<CapturedPass>(
        device, [this](const data::Batch& part, const at::Tensor& factor) { return captured(part, factor); });
}

Engine::~Engine() = default;

const memory::TieredHome* Engine::tiers() const { return optimization_->tiers(); }

std::optional<DeviceUse> Engine::device_use() const { return optimization_->device_use(); }

void Engine::zero_grad() { optimization_->zero_grad(); }

int64_t Engine::steps_done() const { return optimization_->steps_done(); }

void Engine::loaded(const checkpoint::TrainingState& state) { optimization_->loaded(state); }

void Engine::check_progress(const nlohmann::json& progress) const { optimization_->check_progress(progress); }

std::vector<checkpoint::NamedTensor> Engine::weights() { return optimization_->weights(); }

void Engine::weights_loaded() { optimization_->weights_loaded(); }

bool Engine::deals_out_tokens() const {
  return model_->layout().cut && model_->model().shape.task().reads != models::Reads::Images;
}

std::vector<data::TokenRun> Engine::tokens_read() const { return tokens_read(config_.data.sequence); }

std::vector<data::TokenRun> Engine::tokens_read(int64_t tokens) const {
  if (!deals_out_tokens() || config_.data.documents == "separate") return {};
  const parallel::Layout& layout = model_->layout();
  const nn::Share own = layout.tokens_read(layout.with_cut({}, tokens));
  std::vector<data::TokenRun> runs;
  if (own.is_all()) return runs;
  for (const ops::PositionRun& run : parallel::runs_of(own, tokens)) runs.push_back({run.first, run.size});
  return runs;
}

models::Model& Engine::model() { return model_->model(); }

nn::Parameters& Engine::parameters() { return model_->parameters(); }

memory::ChunkStore& Engine::store() { return optimization_->store(); }

at::Device Engine::device() const { return model_->parameters().options().device; }

/// Of pinned memory (data::pinned) nobody waits for the copy: kernels come behind it, which the host's do not.
at::Tensor Engine::on_device(const at::Tensor& t) const {
  if (!t.defined()) return t;
  return t.to(t.options().device(device()), t.is_cpu() && tensor::is_elsewhere(device()));
}

/// On the device, unless that is to have a part of its tokens: see ready().
data::Batch Engine::checked(const data::Batch& b) const {
  models::check_batch(model_->model().shape, b.inputs, b.labels);
  if (!b.wanted.empty()) {
    const std::vector<data::TokenRun> own = tokens_read(b.inputs.size(1));
    require(b.wanted == own, "data", "a partial batch must hold the tokens that this rank reads: got ",
            text_of(b.wanted), ", needed ", text_of(own),
            "; pass Engine::tokens_read() to Batches::want, or read all tokens");
  }
  // Documents stay: the host reads their borders.
  const at::Tensor documents = b.documents.defined() ? b.documents.cpu() : b.documents;
  if (deals_out_tokens()) return {b.inputs, b.labels, b.positions, documents};
  return {on_device(b.inputs), on_device(b.labels), on_device(b.positions), documents};
}

Engine::MicroBatch Engine::ready(const data::Batch& b, nn::Step step) const {
  const models::Task task = model_->model().shape.task();
  const parallel::Layout& layout = model_->layout();
  if (!deals_out_tokens()) {
    step.positions = on_device(b.positions);
    return {on_device(b.inputs), on_device(b.labels), std::move(step)};
  }
  step = layout.with_cut(std::move(step), b.inputs.size(1));
  const nn::Share own = layout.tokens_read(step);
  const auto take = [&](const at::Tensor& t) {
    const at::Tensor part = own.of(t, 1, "sequence");
    const bool was_pinned = t.defined() && tensor::is_elsewhere(device()) && t.is_pinned();
    return on_device(was_pinned ? part.contiguous().pin_memory() : part);
  };
  auto cut = std::make_shared<nn::SequenceCut>(*step.cut);
  if (!own.is_all()) cut->given = own.held;
  step.cut = std::move(cut);
  step.positions = take(b.positions);
  return {take(b.inputs), task.objective == models::Objective::Class ? on_device(b.labels) : take(b.labels),
          std::move(step)};
}

nn::Step Engine::step_of(const data::Batch& micro_batch) const {
  nn::Step step;
  step.positions = micro_batch.positions;
  if (config_.data.documents == "separate" && micro_batch.documents.defined()) {
    step.documents = micro_batch.documents;
    step.known_documents = std::make_shared<nn::BatchDocuments>(step.documents);
  }
  return step;
}

nn::Step Engine::training_step_of(const data::Batch& micro_batch, int64_t index) const {
  nn::Step step = step_of(micro_batch);
  step.training = true;
  step.recompute = recompute_of(config_.memory);
  step.inputs = optimization_->inputs();
  step.dropout_seed = derive_seed(derive_seed(static_cast<uint64_t>(config_.training.seed), "dropout"),
                                  static_cast<uint64_t>(steps_done()));
  // A row's index in the global batch: along the axes of rows each is given consecutive ones, and each micro-batch
  // consecutive ones of those.
  step.first_row =
      (mesh_.place().index(mesh_.place().row_axes()) * config_.micro_batches() + index) * micro_batch.inputs.size(0);
  return step;
}

double Engine::train_step(const data::Batch& batch) {
  const memory::KindScope kind(memory::Kind::Activations);
  const data::Batch b = checked(batch);
  const PhaseScope other(mesh_.world().traffic(), Phase::Other);
  const double labels = std::max(1.0, comm::sum(ranks_of_other_rows(mesh_), tensor::host_value(counted(batch.labels))));
  const double factor = optimization_->loss_scale() / labels;
  const std::vector<at::Tensor> losses = is_for_graph(b) ? train_by_graph(b, factor) : train(b, factor);
  {
    const PhaseScope backward(mesh_.world().traffic(), Phase::Backward);
    optimization_->reducer().finish();
  }
  optimization_->close_pass();
  double mean = 0;
  for (const double lost : optimization_->read_before_step(losses)) mean += lost / labels;
  return comm::sum(ranks_of_all_rows(mesh_), mean);
}

/// What this rank's micro-batches lost, each a sum, in their order; gradients are those of the sums times `factor`.
std::vector<at::Tensor> Engine::train(const data::Batch& b, double factor) {
  const int64_t parts = config_.micro_batches();
  std::vector<MicroBatch> micro;
  for (int64_t i = 0; i < parts; ++i) {
    const data::Batch part = part_of(b, i, parts);
    micro.push_back(ready(part, training_step_of(part, i)));
  }
  const auto pass = [&](int i) { return distributed::DistributedModel::Pass{micro[i].inputs, micro[i].step}; };
  std::vector<at::Tensor> losses(parts);
  const auto loss = [&](int i, const at::Tensor& hidden, const nn::Step& step) {
    const at::Tensor sum = model().head->loss_sum(hidden, micro[i].labels, step);
    losses[i] = sum.detach();
    return sum * factor;
  };
  model_->train(pass, loss, [&](bool last) { optimization_->reducer().begin(last); });
  // In the order of the micro-batches, whatever the schedule; undefined: others than this rank's.
  std::erase_if(losses, [](const at::Tensor& lost) { return !lost.defined(); });
  return losses;
}

/// The same by replays. Gradients leave when they are over: in a recording, nobody would hear that one is complete.
std::vector<at::Tensor> Engine::train_by_graph(const data::Batch& b, double factor) {
  const PhaseScope phase(mesh_.world().traffic(), Phase::Forward);
  const int64_t parts = config_.micro_batches();
  std::vector<at::Tensor> losses;
  for (int64_t i = 0; i < parts; ++i) losses.push_back(captured_->run(part_of(b, i, parts), factor));
  optimization_->reducer().begin(true);
  return losses;
}

/// Where a row holds several documents, their number and borders would be recorded.
bool Engine::is_for_graph(const data::Batch& b) const {
  return captured_ && captured_->fits(part_of(b, 0, config_.micro_batches())) &&
         (config_.data.documents != "separate" || !b.documents.defined() || ops::is_document_a_row(b.documents));
}

/// The body of the recording. The seed and rows of dropout, which differ from pass to pass, are asked for by nobody.
at::Tensor Engine::captured(const data::Batch& micro_batch, const at::Tensor& factor) {
  at::Tensor lost;
  const auto loss = [&](int, const at::Tensor& hidden, const nn::Step& step) {
    const at::Tensor sum = model().head->loss_sum(hidden, micro_batch.labels, step);
    lost = sum.detach();
    return sum * factor.to(sum.scalar_type());
  };
  model_->train_one({micro_batch.inputs, training_step_of(micro_batch, 0)}, loss);
  return lost;
}

void Engine::end_pass() { optimization_->end_pass(); }

StepResult Engine::step() {
  const PhaseScope phase(mesh_.world().traffic(), Phase::Optimizer);
  if (fp8_) {
    parallel::GroupReduction ranks(holders_of(mesh_, *fp8_));
    fp8_->end_step(ranks);
  }
  return optimization_->step();
}

Evaluation Engine::evaluate(const data::Batch& batch) {
  const at::NoGradGuard no_grad;
  const PhaseScope phase(mesh_.world().traffic(), Phase::Other);
  const data::Batch b = checked(batch);
  const models::Task task = model().shape.task();
  const int64_t wanted = mesh_.size("pipeline") > 1 ? config_.micro_batches() : 1;
  const int64_t parts = b.inputs.size(0) % (wanted * model().batch_parts) == 0 ? wanted : 1;
  std::vector<MicroBatch> micro;
  std::vector<at::Tensor> labelled;  // of whole rows, as losses are
  for (int64_t i = 0; i < parts; ++i) {
    const data::Batch part = part_of(b, i, parts);
    micro.push_back(ready(part, step_of(part)));
    labelled.push_back(on_device(counted(part.labels)));
  }
  const auto pass = [&](int i) { return distributed::DistributedModel::Pass{micro[i].inputs, micro[i].step}; };
  const auto sums_of = [&](int i, const at::Tensor& hidden, const nn::Step& step) {
    const at::Tensor labels = micro[i].labels;
    std::vector<at::Tensor> sums{model().head->loss_sum(hidden, labels, step), labelled[i]};
    if (task.has_accuracy()) sums.push_back(model().head->found(hidden, labels, step));
    for (at::Tensor& sum : sums) sum = sum.to(at::kDouble);
    return at::stack(sums);
  };
  at::Tensor mine;
  for (const at::Tensor& part : model_->forward(static_cast<int>(parts), pass, sums_of))
    mine = mine.defined() ? mine + part : part;
  optimization_->end_pass();
  // of the losses, of the labels, of those that were found
  std::vector<double> values = mine.defined() ? tensor::host_values(mine) : std::vector<double>{};
  values.resize(3);
  at::Tensor sums = at::tensor(values, at::kDouble);
  ranks_of_all_rows(mesh_).all_reduce(sums, comm::Reduce::Sum).wait();
  Evaluation result{.loss_sum = sums[0].item<double>(), .labels = sums[1].item<double>()};
  if (task.has_accuracy()) result.found = sums[2].item<double>();
  return result;
}

checkpoint::TrainingState Engine::state() {
  checkpoint::TrainingState state = optimization_->state();
  if (fp8_)
    for (const auto& layer : fp8_->states()) state.tensors.push_back({layer->name, layer->history, layer->spec, {}});
  return state;
}

std::unique_ptr<Engine> initialize(comm::World& world, const run::Config& config, const models::ModelShape& shape,
                                   std::optional<at::Device> device) {
  config.validate();
  require(world.size() == config.parallel.ranks(), "parallel",
          "the number of ranks must be the product of the layout's sizes: got ", world.size(), " ranks, pipeline ",
          config.parallel.pipeline.size, " * data ", config.parallel.data, " * sequence ",
          config.parallel.sequence.size, " * tensor ", config.parallel.tensor.size, " = ", config.parallel.ranks(),
          "; start that many or change [parallel]");
  check_sizes(config.parallel, shape);
  if (!device) device = comm::choose_device(config.run.device, world.local_rank());
  if (config.training.graph) check_graph(shape, *device);
  return std::make_unique<Engine>(world, config, shape, *device);
}

}  // namespace colossal::train
