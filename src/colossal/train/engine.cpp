#include "colossal/train/engine.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/seed.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/launch/device.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/fp8_product.h"
#include "colossal/nn/recompute.h"
#include "colossal/nn/reports.h"
#include "colossal/ops/attention/mask.h"
#include "colossal/parallel/tensor/vocabulary.h"
#include "colossal/run/stored_weights.h"
#include "colossal/tensor/device_meant.h"
#include "colossal/tensor/graph.h"
#include "colossal/tensor/host_value.h"
#include "colossal/train/captured_pass.h"
#include "colossal/train/model_optimizers.h"
#include "colossal/train/optimization.h"
#include "colossal/train/step_reports.h"
#include "colossal/train/switched_off.h"

namespace colossal::train {
namespace {

using comm::Phase;
using comm::PhaseScope;

/// Returns what `memory` says of all blocks alike; "auto" is chosen for each block of the main model.
nn::Recompute recompute_of(const run::MemoryConfig& memory) {
  return memory.recompute == "block"       ? nn::Recompute::Block
         : memory.recompute == "selective" ? nn::Recompute::Selective
                                           : nn::Recompute::None;
}

tensor::Batch part_of(const tensor::Batch& b, int64_t part, int64_t parts) {
  const int64_t rows = b.rows() / parts;
  return b.part(part * rows, rows);
}

/// The ranks of this stage that get different rows. Their label weights and losses add up to the global batch's.
comm::Group& ranks_of_other_rows(comm::Mesh& mesh) { return mesh.group(mesh.coordinates().row_axes()); }

/// The ranks of ranks_of_other_rows() and their counterparts in the other stages.
comm::Group& ranks_of_all_rows(comm::Mesh& mesh) {
  std::vector<std::string> axes = mesh.coordinates().row_axes();
  axes.insert(axes.begin(), "pipeline");
  return mesh.group(axes);
}

/// Formats ranges as "tokens 0-3, 12-15".
std::string tokens_text(const std::vector<tensor::TokenRun>& runs) {
  if (runs.empty()) return "all tokens";
  return "tokens " +
         join(runs, ", ", [](const tensor::TokenRun& run) { return concat(run.first, "-", run.first + run.size - 1); });
}

/// Returns the ranks that hold the same layers as this one: the ranks of its stage, which chimera places at two
/// pipeline indices.
comm::Group& holders_of(comm::Mesh& mesh, const nn::Fp8Products& layers) {
  if (layers.states().empty() || layers.states().front()->spec.stages.size() < 2) return mesh.all_but("pipeline");
  std::vector<std::string> axes;
  for (const tensor::MeshCoordinates::Axis& axis : mesh.coordinates().axes())
    if (axis.name != "pipeline") axes.push_back(axis.name);
  return mesh.among(axes, "pipeline", layers.states().front()->spec.stages);
}

std::vector<OwnOptimizer> own_optimizers(const RunModels& models) {
  std::vector<OwnOptimizer> own;
  for (const NamedModel& model : models)
    if (model.optimizer) own.push_back({model.name, *model.optimizer});
  return own;
}

}  // namespace

at::DeviceType simulated_by_meta(const run::RunConfig& run) {
  return run.device == "cuda" ? at::kCUDA : comm::choose_device(run.device, 0).type();
}

Engine::Engine(std::shared_ptr<comm::Mesh> mesh, const ConfiguredRun& run, at::Device device)
    : config_(run.config),
      meant_(simulated_by_meta(run.config.run)),
      objective_(run.objective()),
      mesh_(std::move(mesh)) {
  const run::Config& config = config_;
  const RunModels& models = run.models;
  const tensor::MeantDevice meant(meant_);
  const PhaseScope phase(mesh_->world().traffic(), Phase::Setup);
  nn::Parameters::Options options{config.precision.dtype(), device,
                                  derive_seed(static_cast<uint64_t>(config.training.seed), "parameters")};
  options.without_memory = true;  // the chunk store allocates it
  if (config.precision.mode == "fp8") {
    fp8_ = std::make_unique<nn::Fp8Products>(nn::fp8_recipe(config.precision.fp8));
    options.products.push_back(
        [this](std::shared_ptr<const nn::Product> product, const nn::Parameter& weight, nn::Parameters& parameters) {
          return fp8_->wrap(std::move(product), weight, parameters);
        });
  }
  for (const NamedModel& one : models) members_.push_back(make_member(run, one, options));
  const auto refuse_packed = [&] {
    require(parameters().forward_only().empty(), "prepacked",
            "packed weights without their values have no gradients: got ", parameters().forward_only(),
            " in a model that trains; set WeightPacking::keeps_values");
  };
  // A weight is packed where it is stored, perhaps only by the ranks of one stage, so the ranks must agree.
  if (std::any_of(models.begin(), models.end(), [](const NamedModel& one) { return bool(one.adapter.product); }))
    comm::agree(mesh_->all(), at::kCPU, refuse_packed);
  require(parameters().trained_numel() > 0, "model", "at least one parameter must be trained: got ",
          parameters().declared().size(), " frozen ones, and none that trains; change what freezes them");
  if (config.memory.recompute == "auto") choose_recomputation(run);
  optimization_ = std::make_unique<Optimization>(parameters(), *mesh_, config, own_optimizers(models));
  for (const Member& one : members_)
    if (!one.without_adapters) one.model->set_end_of_pass([this] { optimization_->close_pass(); });
  make_groups();
  if (config.training.cuda_graph && !device.is_meta())
    captured_ = std::make_unique<CapturedPass>(
        device, [this](const tensor::Batch& part, const at::Tensor& factor) { return captured(part, factor); });
}

Engine::~Engine() = default;

void Engine::choose_recomputation(const ConfiguredRun& run) {
  const int64_t budget = agreed_activation_budget(run, *mesh_, device());
  comm::agree(mesh_->all(), at::kCPU, [&] { recomputation_ = choose_recompute(run, distributed(), budget); });
  segments_ = std::make_shared<const Segments>(recomputation_.segments);
}

/// Makes the groups that steps use for host values. A group made during a step would wait for ranks that still compute.
/// All ranks must make them in the same order.
void Engine::make_groups() {
  mesh_->connect(device());
  ranks_of_other_rows(*mesh_);
  ranks_of_all_rows(*mesh_);
  mesh_->all();
  if (members_.size() > 1)
    for (const Member& one : members_) {
      ranks_of_all_rows(*one.mesh);
      one.mesh->all();
      one.mesh->group("pipeline");
    }
  if (fp8_) holders_of(*mesh_, *fp8_);
}

std::vector<std::string> Engine::model_names() const {
  std::vector<std::string> names;
  for (const Member& one : members_) names.push_back(one.name);
  return names;
}

const memory::TieredStore* Engine::tiers() const { return optimization_->tiers(); }

std::optional<DeviceUse> Engine::device_use() const { return optimization_->device_use(); }

std::vector<Metric> Engine::loss_rows() const {
  std::vector<Metric> rows;
  for (const Member& one : members_)
    if (one.reports)
      for (Metric& row : one.reports->loss_rows()) rows.push_back(std::move(row));
  return rows;
}

void Engine::zero_grad() {
  const tensor::MeantDevice meant(meant_);
  optimization_->zero_grad();
  for (const Member& one : members_)
    if (one.reports) one.reports->begin_step();
  passes_ = 0;
}

int64_t Engine::steps_done() const { return optimization_->steps_done(); }

void Engine::loaded(const checkpoint::TrainingState& state) {
  optimization_->loaded(state);
  weights_changed();
}

void Engine::check_progress(const nlohmann::json& progress) const { optimization_->check_progress(progress); }

std::vector<checkpoint::NamedTensor> Engine::weights() {
  return with_buffers(run::fillable_weights_of(optimization_->store(), parameters()));
}

std::vector<checkpoint::NamedTensor> Engine::stored_weights() { return with_buffers(optimization_->weights()); }

std::vector<checkpoint::NamedTensor> Engine::with_buffers(std::vector<checkpoint::NamedTensor> weights) {
  for (const nn::Buffer& buffer : parameters().buffers())
    if (buffer.value.defined() && buffer.use == nn::BufferUse::Model)
      weights.push_back({buffer.name, buffer.value, buffer.spec, {}});
  return weights;
}

void Engine::weights_loaded() {
  optimization_->weights_loaded();
  weights_changed();
}

std::vector<tensor::TokenRun> Engine::tokens_read() const { return tokens_read(objective_->example(1)); }

std::vector<tensor::TokenRun> Engine::tokens_read(const tensor::Batch& batch) const {
  if (config_.data.documents == "separate") return {};
  // Layouts that split tokens do so identically. A model that does not split them reads all.
  for (const Member& one : members_)
    if (!one.model->cuts_tokens(batch)) return {};
  return main().model->tokens_read(batch.tokens());
}

models::Model& Engine::model() { return distributed().model(); }

nn::Parameters& Engine::parameters() { return distributed().parameters(); }

memory::ChunkStore& Engine::store() { return optimization_->store(); }

at::Device Engine::device() const { return main().model->parameters().options().device; }

/// Returns the batch on the device, unless ranks split its tokens. Then each micro-batch is cut before it is copied,
/// because the cut depends on documents, which the host reads.
tensor::Batch Engine::checked(const Member& member, const tensor::Batch& b) const {
  models::check_fields(member.model->model(), b);
  if (!b.wanted.empty()) {
    const std::vector<tensor::TokenRun> own = tokens_read(b);
    require(b.wanted == own, "data", "a partial batch must hold the tokens that this rank reads: got ",
            tokens_text(b.wanted), ", needed ", tokens_text(own),
            "; pass Engine::tokens_read() to Batches::want, or read all tokens");
  }
  if (!member.model->cuts_tokens(b)) return member.model->on_device(b);
  return b.map([](const tensor::Field& field) { return field.stays_whole ? field.tensor.cpu() : field.tensor; });
}

bool Engine::shards_parameters() const { return config_.parallel.zero == 3; }

nn::ForwardContext Engine::training_step_of(const Member& member, const tensor::Batch& micro_batch,
                                            int64_t index) const {
  nn::ForwardContext step = as_generated(member, nn::step_of(micro_batch));
  step.training = true;
  step.recompute = recompute_of(config_.memory);
  if (recomputation_.is_chosen) {
    if (&member == &main())
      step.segments = segments_;
    else
      step.recompute = nn::Recompute::Block;
  }
  step.inputs = optimization_->inputs();
  step.parts.set(nn::ReportsOfStep{member.reports->accumulator()});
  step.dropout_seed = derive_seed(derive_seed(static_cast<uint64_t>(config_.training.seed), "dropout"),
                                  static_cast<uint64_t>(steps_done()));
  if (passes_ > 0) step.dropout_seed = derive_seed(step.dropout_seed, static_cast<uint64_t>(passes_));
  const tensor::MeshCoordinates& here = mesh_->coordinates();
  const int64_t rows = micro_batch.rows() * here.size(here.row_axes()) * config_.micro_batches();
  step.first_row = replica_rows(rows).global(index * micro_batch.rows());
  return step;
}

tensor::ReplicaRows Engine::replica_rows(int64_t batch_size) const {
  const tensor::MeshCoordinates& here = mesh_->coordinates();
  return {.batch_size = batch_size,
          .micro_batches = config_.micro_batches(),
          .replica = here.index(here.row_axes()),
          .replicas = here.size(here.row_axes())};
}

Engine::Loss Engine::objective_loss() const {
  return [objective = objective_](const models::Model& model, const models::States& end,
                                  const nn::ForwardContext& step) { return objective->loss(model, end, step); };
}

double Engine::train_step(const tensor::Batch& batch) {
  const memory::KindScope kind(memory::Kind::Activations);
  objective_->check_model(model());
  objective_->check(batch);
  return train_on(main(), batch, objective_->weight(batch), objective_loss(), /*by_graph=*/true);
}

double Engine::train_step(const tensor::Batch& batch, double weight, const Loss& loss, const std::string& model) {
  require(std::isfinite(weight) && weight >= 0, "training",
          "the weight of a batch must be a finite number of 0 or more: got ", weight,
          "; pass what the losses of this rank's rows are divided by");
  return train_on(member(model), batch, weight, loss, /*by_graph=*/false);
}

double Engine::train_on(const Member& member, const tensor::Batch& batch, double weight, const Loss& loss,
                        bool by_graph) {
  const tensor::MeantDevice meant(meant_);
  const memory::KindScope kind(memory::Kind::Activations);
  require(member.trains, "training", "a model in training must have a parameter that trains: got ",
          member.name.empty() ? "the main model" : member.name, ", which is frozen; use Engine::forward()");
  const int64_t batch_parts = member.model->model().batch_parts, parts = config_.micro_batches() * batch_parts;
  require(batch.rows() % parts == 0, "data", "the rows of a batch must be divisible by ", parts, ", the ",
          config_.micro_batches(), " micro-batches of a step * the ", batch_parts, " parts of the tensor mode: got ",
          batch.rows());
  const tensor::Batch b = checked(member, batch);
  const PhaseScope other(mesh_->world().traffic(), Phase::Other);
  is_canonical(member) ? pack(member) : release(member);
  const double sum = comm::sum(ranks_of_other_rows(*mesh_), weight), whole = sum > 0 ? sum : 1;
  // Ranks that do the same work have equal gradients, whose sum is that of one of them.
  const double scale = optimization_->loss_scale() / static_cast<double>(member.copies), factor = scale / whole;
  optimization_->reducer().add_to_sums(member.name);
  StepReports& reports = *member.reports;
  reports.begin_pass(scale / static_cast<double>(config_.micro_batches()));
  std::vector<at::Tensor> numbers =
      by_graph && is_for_graph(b) ? train_by_graph(b, factor) : train(member, b, factor, loss);
  {
    const PhaseScope backward(mesh_->world().traffic(), Phase::Backward);
    optimization_->reducer().finish();
  }
  optimization_->close_pass();
  const size_t losses = numbers.size();  // each has one element
  for (at::Tensor& reported : reports.numbers()) numbers.push_back(std::move(reported));
  const std::vector<double> values = optimization_->read_before_step(numbers);
  reports.end_pass(std::span(values).subspan(losses), config_.micro_batches());
  double mean = 0;
  for (size_t i = 0; i < losses; ++i) mean += values[i] / whole;
  ++passes_;
  return comm::sum(ranks_of_all_rows(*member.mesh), mean);
}

/// Returns the losses of this rank's micro-batches in their order, each a sum. Gradients are derivatives of the sums
/// times `factor`.
std::vector<at::Tensor> Engine::train(const Member& member, const tensor::Batch& b, double factor, const Loss& loss) {
  const int64_t parts = config_.micro_batches();
  std::vector<nn::ForwardContext> micro;
  for (int64_t i = 0; i < parts; ++i) micro.push_back(training_step_of(member, part_of(b, i, parts), i));
  std::vector<at::Tensor> losses(parts);
  const auto scaled = [&](int i, const models::States& end, const nn::ForwardContext& step) {
    const at::Tensor sum = loss(member.model->model(), end, step);
    require(sum.defined() && sum.numel() == 1, "training", "the loss of a micro-batch must be one number: got ",
            sum.defined() ? concat("a tensor ", sum.sizes()) : "none", "; add up the losses of its rows");
    losses[i] = sum.detach();
    return sum * factor;
  };
  member.model->train(micro, scaled, [&](bool last) { optimization_->reducer().begin(last, member.name); });
  // The losses are in the order of the micro-batches for any schedule. Undefined ones belong to other ranks.
  std::erase_if(losses, [](const at::Tensor& lost) { return !lost.defined(); });
  return losses;
}

/// Does the work of train() by replays. The reducer sends gradients after the last replay, because hooks that report
/// complete gradients do not run in a replay.
std::vector<at::Tensor> Engine::train_by_graph(const tensor::Batch& b, double factor) {
  const PhaseScope phase(mesh_->world().traffic(), Phase::Forward);
  const int64_t parts = config_.micro_batches();
  std::vector<at::Tensor> losses;
  for (int64_t i = 0; i < parts; ++i) losses.push_back(captured_->run(part_of(b, i, parts), factor));
  optimization_->reducer().begin(true);
  return losses;
}

/// Returns true if the pass can be replayed. A row with several documents cannot, because their number and borders
/// would be fixed in the capture.
bool Engine::is_for_graph(const tensor::Batch& b) const {
  if (!captured_ || !captured_->fits(part_of(b, 0, config_.micro_batches()))) return false;
  const at::Tensor documents = nn::step_of(b).documents;
  return !documents.defined() || ops::is_document_a_row(documents);
}

/// The body of the capture. Dropout seed and rows, which differ from pass to pass, are unused:
/// check_cuda_graph() refuses dropout.
at::Tensor Engine::captured(const tensor::Batch& micro_batch, const at::Tensor& factor) {
  at::Tensor lost;
  const auto loss = [&](int, const models::States& end, const nn::ForwardContext& step) {
    const at::Tensor sum = objective_->loss(model(), end, step);
    lost = sum.detach();
    return sum * factor.to(sum.scalar_type());
  };
  distributed().train_one(training_step_of(main(), micro_batch, 0), loss);
  return lost;
}

StepResult Engine::step() {
  const tensor::MeantDevice meant(meant_);
  const PhaseScope phase(mesh_->world().traffic(), Phase::Optimizer);
  is_updating_ = true;
  StepResult result = optimization_->step();
  weights_changed();
  if (fp8_) {  // after the update, because a refused step leaves no trace
    parallel::GroupReduction ranks(holders_of(*mesh_, *fp8_));
    fp8_->end_step(ranks);
  }
  const PhaseScope other(mesh_->world().traffic(), Phase::Other);
  for (const Member& one : members_)
    if (one.reports)
      for (Metric& row : one.reports->end_step(one.mesh->all(), result.skipped)) result.rows.push_back(std::move(row));
  is_updating_ = false;
  return result;
}

std::vector<nn::ForwardContext> Engine::forward_steps(const Member& member, const tensor::Batch& batch) const {
  const tensor::Batch b = checked(member, batch);
  // With several stages a pass uses the micro-batches of training, if the rows divide, so that the stages work in
  // parallel.
  const int64_t wanted = member.mesh->size("pipeline") > 1 ? config_.micro_batches() : 1;
  const int64_t parts = b.rows() % (wanted * member.model->model().batch_parts) == 0 ? wanted : 1;
  std::vector<nn::ForwardContext> steps;
  for (int64_t i = 0; i < parts; ++i) steps.push_back(as_generated(member, nn::step_of(part_of(b, i, parts))));
  return steps;
}

std::vector<at::Tensor> Engine::forward(const tensor::Batch& batch, const Loss& result, const std::string& model) {
  const tensor::MeantDevice meant(meant_);
  const at::NoGradGuard no_grad;
  const PhaseScope phase(mesh_->world().traffic(), Phase::Other);
  const Member& one = member(model);
  const auto result_of = [&](int, const models::States& end, const nn::ForwardContext& step) {
    return result(one.model->model(), end, step);
  };
  use_panels(one);
  std::vector<at::Tensor> results;
  {
    const SwitchedOff switched(*without_adapters_, one.without_adapters, one.originals);
    results = one.model->forward(forward_steps(one, batch), result_of);
  }
  optimization_->end_pass();
  return results;
}

tensor::Batch Engine::with_result(const tensor::Batch& batch, const std::string& name, const Loss& result,
                                  const std::string& model) {
  const Member& one = member(model);
  const tensor::Batch known = batch.find(name).defined() ? batch : objective_->example(batch.rows());
  require(known.find(name).defined(), "objective",
          "a result that becomes a field must be in the example of the objective, with its sizes: got ", name,
          "; add it to run::Objective::example()");
  const tensor::Field& like = known.field(name);
  const std::vector<at::Tensor> parts = forward(batch, result, model);
  const tensor::MeantDevice meant(meant_);
  const at::NoGradGuard no_grad;
  const PhaseScope phase(mesh_->world().traffic(), Phase::Other);
  const bool is_exact = at::isFloatingType(like.tensor.scalar_type()) && parameters().options().dtype == at::kDouble;
  const auto options = like.tensor.options().device(device()).dtype(is_exact ? at::kDouble : like.tensor.scalar_type());
  at::Tensor whole = parts.empty() ? at::zeros(like.tensor.sizes(), options) : at::cat(parts).to(options);
  require(whole.sizes() == like.tensor.sizes(), "training", "the result ", name,
          " must have the sizes of the field or of the example ", like.tensor.sizes(), ": got ", whole.sizes());
  comm::Group& ranks = one.mesh->group("pipeline");
  if (ranks.size() > 1) ranks.all_reduce(whole, comm::Reduce::Sum).wait();
  return batch.with(name, {whole, like.dims, like.ignored, like.stays_whole});
}

Evaluation Engine::evaluate(const tensor::Batch& batch) {
  const tensor::MeantDevice meant(meant_);
  const at::NoGradGuard no_grad;
  const PhaseScope phase(mesh_->world().traffic(), Phase::Other);
  objective_->check_model(model());
  objective_->check(batch);
  const auto sums_of = [&](int, const models::States& end, const nn::ForwardContext& step) {
    const at::Tensor sums = objective_->evaluate(model(), end, step);
    require(sums.numel() == objective_->sums(), "objective", "evaluate() must return as many sums as sums() says, ",
            objective_->sums(), ": got sizes ", sums.sizes());
    return sums.reshape({-1}).to(at::kDouble);
  };
  at::Tensor mine;
  if (is_canonical(main())) pack(main());
  for (const at::Tensor& part : distributed().forward(forward_steps(main(), batch), sums_of))
    mine = mine.defined() ? mine + part : part;
  optimization_->end_pass();
  // Ranks of other stages and pipes contribute neither sums nor the weight of rows, which a last stage contributes.
  std::vector<double> values = mine.defined() ? tensor::host_values(mine) : std::vector<double>{};
  values.resize(objective_->sums());
  values.push_back(mine.defined() ? objective_->weight(batch) : 0);
  at::Tensor sums = at::tensor(values, at::kDouble);
  ranks_of_all_rows(*mesh_).all_reduce(sums, comm::Reduce::Sum).wait();
  const double* all = sums.const_data_ptr<double>();
  return {.sums = {all, all + objective_->sums()}, .weight = all[objective_->sums()]};
}

checkpoint::TrainingState Engine::state() {
  checkpoint::TrainingState state = optimization_->state();
  for (const nn::Buffer& buffer : parameters().buffers())
    if (buffer.value.defined()) state.tensors.push_back({buffer.saved_name(), buffer.value, buffer.spec, {}});
  return state;
}

}  // namespace colossal::train
