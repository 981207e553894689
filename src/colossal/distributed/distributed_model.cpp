#include "colossal/distributed/distributed_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <set>

#include "colossal/base/error.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/folding/folding_model.h"
#include "colossal/models/multi_token.h"
#include "colossal/models/shape_parts.h"
#include "colossal/models/task_batch.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/kv_cache.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/tokens.h"
#include "colossal/parallel/sequence/decoding.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/sequence/runs.h"
#include "colossal/parallel/tensor/activations.h"
#include "colossal/parallel/tensor/tensor_layers.h"
#include "colossal/tensor/device_meant.h"

namespace colossal::distributed {
namespace {

/// Returns the layout of the tensor mode, without sequence parallelism.
parallel::Layout tensor_layout_of(const ParallelConfig& config, comm::Mesh& mesh) {
  parallel::Layout layout = parallel::make_layout(config.tensor, mesh);
  layout.splits_experts = config.expert.splits();
  layout.expert_node = config.expert.node;
  layout.compresses_tokens = config.expert.compresses();
  return layout;
}

/// Returns the training layout of a model of `config` on `mesh`, which has the axes of the config.
parallel::Layout layout_of(const ParallelConfig& config, comm::Mesh& mesh) {
  return parallel::with_sequence(tensor_layout_of(config, mesh), config.sequence);
}

/// Returns the costs of a chain of the length of a training sample, with its alignments if the model reads some.
models::Costs costs_of_folding(const models::ModelShape& shape) {
  constexpr models::FoldingBatch kSizes{.residues = 256, .clusters = 128, .extra = 1024};
  return models::costs_of(shape, models::example_folding(shape, kSizes),
                          [](const models::Model& model, const models::States& end, const nn::ForwardContext&) {
                            return end.at(model.folding->structure).sum() + end.at(model.folding->frames).sum();
                          });
}

/// Returns the costs of the parts of the model, in operations of a training step on one sample: those of the workload,
/// or of a token, a picture or a chain.
parallel::ModelCosts model_costs(const models::ModelShape& shape, const std::function<models::Costs()>& of_sample) {
  const auto of_shape = [&] {
    if (shape.part<models::FoldingSizes>().single > 0) return costs_of_folding(shape);
    if (shape.part<models::DenoiserSizes>().channels == 0)
      return models::costs_of(shape, models::example_batch(shape, 1, 1));
    return models::costs_of(shape, models::example_noised(shape, 1),
                            [&](const models::Model&, const models::States& end, const nn::ForwardContext&) {
                              return models::predicted_picture(shape, end.at(0)).sum();
                            });
  };
  models::Costs costs = of_sample ? of_sample() : of_shape();
  return {costs.first, std::move(costs.blocks), costs.last};
}

}  // namespace

void check_heads(const ParallelConfig& config, const models::ModelShape& shape) {
  if (shape.heads == 0) return;  // the architecture has no attention
  const nn::HeadSplit here(shape.attention(), parallel::head_parts(config.tensor));
  parallel::check_heads(config.sequence, here.heads_local);
}

void check_attention_axes(const ParallelConfig& config, const models::ModelShape& shape, const std::string& name) {
  const auto axes = shape.part<models::AttentionAxes>();
  require(axes.two || !parallel::switches_axes(config.sequence), "parallel",
          "sequence.mode dsp needs two axes: ", name.empty() ? shape.architecture->name : name,
          " attends over one sequence of ", axes.sequence, "; use ring or ulysses");
  const bool folds = shape.part<models::FoldingSizes>().single > 0;
  const std::string& who = name.empty() ? shape.architecture->name : name;
  require(folds || !parallel::is_axial(config.sequence), "parallel",
          "sequence.mode axial cuts the pairs and alignments of a folding model: ", who, " has none; use ",
          axes.two ? "dsp" : "ring or ulysses");
  require(!folds || config.sequence.size == 1 || parallel::is_axial(config.sequence), "parallel",
          "the sequence.mode of a folding model must be axial: got ", config.sequence.mode, " for ", who);
  require(!folds || config.tensor.size == 1, "parallel", "tensor.size must be 1 for a folding model: got ",
          config.tensor.size, "; its pairs have few heads (4 in AlphaFold 2), every rank would hold all pairs, and a ",
          "block would send them twelve times; use sequence.size with sequence.mode axial, which divides the pairs");
}

void check_residues(int64_t ranks, int64_t residues) {
  require(residues >= ranks, "parallel",
          "parallel.sequence.size must be at most the residues of a chain (in training folding.crop): got ", ranks,
          " ranks for ", residues, " residues; use fewer ranks");
}

void check_norm_groups(const ParallelConfig& config, const models::ModelShape& shape) {
  const int64_t groups = shape.part<models::NormGroupSizes>().groups, ranks = parallel::head_parts(config.tensor);
  int64_t fitting = ranks;
  while (groups % fitting != 0) --fitting;
  require(fitting == ranks, "parallel",
          "parallel.tensor.size must divide norm_num_groups (model.groups), so that each ",
          "rank has whole groups of a norm: got ", ranks, " ranks that divide features, and ", groups,
          " groups; the next smaller number is ", fitting);
}

void check_experts(const ParallelConfig& config, const models::ModelShape& shape, const std::string& name) {
  parallel::check_expert_tensor(config.expert, config.tensor);
  parallel::check_expert_node(config.expert, config.tensor);
  const int64_t experts = shape.part<models::MixtureSizes>().experts;
  if (experts > 0 || name.empty()) parallel::check_experts(experts, config.expert);
}

DistributedModel::DistributedModel(comm::Mesh& mesh, const ParallelConfig& config, const models::ModelShape& shape,
                                   nn::Parameters::Options options, const Workload& workload,
                                   std::shared_ptr<nn::Parameters> shared)
    : mesh_(mesh), sequence_(config.sequence), name_(options.model), parameters_(std::move(shared)) {
  shape.validate();
  check_heads(config, shape);
  check_attention_axes(config, shape, name_);
  check_norm_groups(config, shape);
  check_experts(config, shape, name_);
  mesh.group("pipeline");  // for everywhere(): created there, the group would wait for stages that still compute
  parallel::PipelineConfig pipeline = config.pipeline;
  pipeline.micro_batches = workload.micro_batches;
  const bool is_cut = pipeline.size > 1;  // costs are needed only for stages
  const parallel::PipelinePlan plan = parallel::make_plan(
      pipeline, is_cut ? model_costs(shape, workload.costs)
                       : parallel::ModelCosts{.blocks = std::vector<double>(static_cast<size_t>(shape.blocks()), 1)});
  cuts_ = plan.cuts;
  if (is_cut)
    options.stages = [plan, shape](const std::string& name) {
      std::set<int> ranks;
      for (const int64_t stage : models::stages_using(name, shape, plan.cuts))
        for (const int rank : plan.ranks_of_stage(stage)) ranks.insert(rank);
      return std::vector<int>(ranks.begin(), ranks.end());
    };
  if (parameters_)
    parameters_->begin_model(options);
  else
    parameters_ = std::make_shared<nn::Parameters>(mesh.coordinates(), options);
  training_ = make_layers(layout_of(config, mesh), shape, plan.schedule);
  const bool has_experts = config.expert.size > 1 && shape.part<models::MixtureSizes>().experts > 0;
  // A denoiser's end is whole on every rank under any layout (models/denoiser.h), so it draws as it trains. Ranks that
  // share the pairs of a chain fold as they train.
  const bool as_trained =
      shape.part<models::DenoiserSizes>().channels > 0 || shape.part<models::FoldingSizes>().single > 0;
  if (as_trained || (training_.layout.outside.sequence.empty() && !has_experts)) return;
  const nn::Parameters::Redeclaration again(*parameters_);
  ParallelConfig whole = config;
  whole.tensor.sequence = false;
  const auto make_generating = [&](parallel::Layout layout) {
    layout.has_expert_copies = has_experts;
    return make_layers(std::move(layout), shape, plan.schedule);
  };
  decoding_ = make_generating(with_spread_cache(tensor_layout_of(whole, mesh), config.sequence));
  if (config.sequence.size > 1 && (config.tensor.sequence || has_experts))
    prompting_ = make_generating(layout_of(whole, mesh));
}

DistributedModel::LayoutLayers DistributedModel::make_layers(parallel::Layout layout, const models::ModelShape& shape,
                                                             schedule::Schedule schedule) {
  LayoutLayers made{.layout = std::move(layout)};
  parallel::TensorLayers layers(*parameters_, made.layout);
  made.model = models::make_model(shape, layers);
  made.transfers = models::state_transfers(made.model, cuts_);
  made.first_trained = first_trained_stage(made.model.shape);
  const nn::Parameters::Options& options = parameters_->options();
  const auto hidden = at::TensorOptions().dtype(options.dtype).device(options.device);
  made.executor = std::make_unique<parallel::PipelineExecutor>(
      std::move(schedule),
      parallel::PipelineExecutor::Surroundings{&mesh_, &mesh_.group(made.layout.copies), &parameters_->deferred(),
                                               hidden, made.first_trained});
  return made;
}

int DistributedModel::first_trained_stage(const models::ModelShape& shape) const {
  auto first = static_cast<int64_t>(cuts_.size()) - 1;
  for (const nn::Parameter& p : parameters_->declared())
    if (p.treatment.trains && p.model == name_)
      for (const int64_t stage : models::stages_using(p.own_name(), shape, cuts_)) first = std::min(first, stage);
  return static_cast<int>(first);
}

at::Tensor DistributedModel::on_device(const at::Tensor& t) const {
  const at::Device device = parameters_->options().device;
  if (device.is_meta() && t.is_cpu() && !tensor::is_for_accelerator(device)) return tensor::shape_in_place(t);
  // The host waits for no copy of pinned memory: kernels run after it, and the host reads none of these fields.
  return t.to(t.options().device(device), t.is_cpu() && tensor::is_accelerator(device));
}

tensor::Batch DistributedModel::on_device(const tensor::Batch& batch) const {
  return batch.map(
      [&](const tensor::Field& field) { return field.stays_whole ? field.tensor.cpu() : on_device(field.tensor); });
}

int64_t DistributedModel::words_of_rank() const {
  const std::vector<int64_t> words{decoding_model().shape.vocabulary};
  return tensor::ShardSpec::split(words, 0, decoding().layout.inside.columns).room(0, mesh_.coordinates());
}

bool DistributedModel::divides_states() const {
  const parallel::Split& split = decoding().layout.outside;
  const auto is_split = [&](const std::vector<std::string>& axes) { return mesh_.coordinates().size(axes) > 1; };
  return sequence_.size > 1 || is_split(split.batch) || is_split(split.sequence) || is_split(split.columns);
}

bool DistributedModel::cuts_tokens(const tensor::Batch& batch) const {
  return training_.layout.cut && batch.has_tokens();
}

std::vector<tensor::TokenRun> DistributedModel::tokens_read(int64_t tokens) const {
  const parallel::Layout& layout = training_.layout;
  const nn::Share own = layout.tokens_read(layout.with_cut({}, tokens));
  std::vector<tensor::TokenRun> runs;
  if (own.is_all()) return runs;
  const int64_t ahead = training_.model.tokens_ahead;
  for (const ops::PositionRun& run : parallel::runs_of(own, tokens)) {
    const int64_t end = std::min(tokens, run.first + run.size + ahead);
    tensor::TokenRun* const last = runs.empty() ? nullptr : &runs.back();
    if (last && ahead > 0 && run.first <= last->first + last->size)
      last->size = std::max(last->first + last->size, end) - last->first;
    else
      runs.push_back({run.first, end - run.first});
  }
  return runs;
}

nn::ForwardContext DistributedModel::ready(const LayoutLayers& layers, const nn::ForwardContext& micro_batch) const {
  require(micro_batch.batch != nullptr, "model",
          "a pass must have the micro-batch in its step: got none; nn::step_of() makes it");
  models::check_fields(layers.model, *micro_batch.batch);
  const int64_t tokens = micro_batch.batch->tokens();
  nn::ForwardContext step = layers.layout.with_cut(micro_batch, models::tokens_of(layers.model, micro_batch));
  const nn::Share own = step.cut && tokens > 0 ? layers.layout.tokens_read(step) : nn::Share{};
  // Tokens of other ranks that layers read must become fields of their own before the rows are cut.
  const tensor::Batch batch =
      own.is_all() ? *micro_batch.batch : models::with_tokens_ahead(*micro_batch.batch, layers.model.tokens_ahead);
  const at::Device device = parameters_->options().device;
  const auto is_there = [&](const tensor::Batch::Named& named) {
    const at::Tensor& t = named.field.tensor;
    return named.field.stays_whole ? t.is_cpu() || t.is_meta() : t.device() == device;
  };
  if (own.is_all() && std::all_of(batch.fields().begin(), batch.fields().end(), is_there)) return step;
  if (!own.is_all()) {
    auto cut = std::make_shared<nn::SequenceCut>(*step.cut);
    cut->given = own.held;
    step.cut = std::move(cut);
  }
  return nn::step_of(on_device(batch.map([&](const tensor::Field& field) {
                       if (own.is_all() || field.stays_whole) return field.tensor;
                       at::Tensor part = field.tensor;
                       for (int64_t dim = 0; dim < part.dim(); ++dim)
                         if (field.dims.at(dim) == tensor::Dim::Token && part.size(dim) == tokens)
                           part = own.of(part, dim, "sequence");
                       const bool was_pinned = tensor::is_accelerator(device) && field.tensor.is_pinned();
                       return was_pinned ? part.contiguous().pin_memory() : part;
                     })),
                     std::move(step));
}

std::vector<nn::ForwardContext> DistributedModel::ready(const LayoutLayers& layers,
                                                        const std::vector<nn::ForwardContext>& micro_batches) const {
  std::vector<nn::ForwardContext> steps;
  for (const nn::ForwardContext& step : micro_batches) steps.push_back(ready(layers, step));
  return steps;
}

parallel::StageFunction DistributedModel::stage_function(const LayoutLayers& layers,
                                                         const std::vector<nn::ForwardContext>& ready,
                                                         const ResultOf& result, bool norms) const {
  return [this, &layers, &ready, result, norms](int stage, int micro_batch, models::States states) {
    const bool embeds = stage == 0, ends = stage + 2 == static_cast<int>(cuts_.size());
    const nn::ForwardContext& step = ready.at(micro_batch);
    const models::Stage part{cuts_[stage], cuts_[stage + 1], embeds, ends && norms};
    states = models::run_stage(layers.model, part, std::move(states), step);
    if (ends) states = {result(micro_batch, states, step)};
    return states;
  };
}

std::vector<parallel::PassedState> DistributedModel::passed_states(const LayoutLayers& layers,
                                                                   const nn::ForwardContext& micro_batch,
                                                                   const nn::ForwardContext& ready) const {
  std::vector<parallel::PassedState> passed;
  for (const auto& [index, from, to] : layers.transfers) {
    const models::State& state = layers.model.states.at(index);
    const int64_t tokens = ready.cut ? ready.cut->tokens() : models::tokens_of(layers.model, micro_batch);
    const std::vector<int64_t> sizes = state.sizes(micro_batch, cuts_.at(from + 1) - 1);
    require(sizes.size() == state.dims.size(), "model", "state `", state.name, "` must have as many sizes as the ",
            state.dims.size(), " dimensions that it names: got ", at::IntArrayRef(sizes));
    passed.push_back(
        {.state = index,
         .from = from,
         .to = to,
         .sizes = parallel::local_sizes(layers.layout, layers.layout.outside, sizes, state.dims, tokens, ready),
         .dtype = state.dtype,
         .has_gradient = state.has_gradient && from >= layers.first_trained,
         .name = state.name});
  }
  return passed;
}

void DistributedModel::train(const std::vector<nn::ForwardContext>& micro_batches, const ResultOf& loss,
                             const parallel::BeforeGradients& before_gradients) {
  const std::vector<nn::ForwardContext> steps = ready(training_, micro_batches);
  training_.executor->train(stage_function(training_, steps, loss),
                            passed_states(training_, micro_batches.at(0), steps.at(0)), before_gradients);
}

void DistributedModel::train_one(const nn::ForwardContext& micro_batch, const ResultOf& loss) {
  require(cuts_.size() == 2, "pipeline", "train_one() needs one pipeline stage with all layers: got ", cuts_.size() - 1,
          " stages; use train()");
  const std::vector<nn::ForwardContext> steps = ready(training_, std::vector<nn::ForwardContext>{micro_batch});
  const at::Tensor lost = stage_function(training_, steps, loss)(0, 0, {}).front();
  torch::autograd::backward({lost}, {at::ones_like(lost)});
}

std::pair<at::Tensor, at::Tensor> DistributedModel::field_gradient(const nn::ForwardContext& micro_batch,
                                                                   const std::string& name, const ResultOf& losses,
                                                                   double scale) {
  require(cuts_.size() == 2, "pipeline", "the gradient of a field needs one pipeline stage with all layers: got ",
          cuts_.size() - 1, " stages");
  const at::AutoGradMode with_gradients(true);
  nn::ForwardContext step = ready(training_, micro_batch);
  const tensor::Field& field = step.batch->field(name);
  require(at::isFloatingType(field.tensor.scalar_type()), "data",
          "a field must have floating point numbers for a gradient: got ", name, " of ",
          at::toString(field.tensor.scalar_type()));
  const at::Tensor leaf = field.tensor.detach().requires_grad_();
  const tensor::Batch batch = step.batch->with(name, {leaf, field.dims, field.ignored, field.stays_whole});
  const std::vector<nn::ForwardContext> steps{nn::step_of(batch, std::move(step))};
  const at::Tensor lost = stage_function(training_, steps, losses)(0, 0, {}).front();
  require(lost.dim() == 1 && lost.size(0) == batch.rows(), "model",
          "the gradient of a field needs one loss for each of ", batch.rows(), " rows: got ", lost.sizes());
  require(lost.requires_grad(), "model", "the losses must depend on the field ", name,
          ": got losses without a gradient");
  // The engine of autograd runs only the nodes between the losses and the field, so parameters get no gradients.
  const auto gradient = torch::autograd::grad({lost.sum() * scale}, {leaf});
  return {lost.detach(), gradient.at(0)};
}

std::vector<at::Tensor> DistributedModel::forward(const std::vector<nn::ForwardContext>& micro_batches,
                                                  const ResultOf& result) {
  std::vector<at::Tensor> results = run_forward(training_, micro_batches, result);
  end_pass();
  return results;
}

std::vector<at::Tensor> DistributedModel::run_forward(const LayoutLayers& layers,
                                                      const std::vector<nn::ForwardContext>& micro_batches,
                                                      const ResultOf& result, bool norms) const {
  const std::vector<nn::ForwardContext> steps = ready(layers, micro_batches);
  auto results = layers.executor->forward(stage_function(layers, steps, result, norms), static_cast<int>(steps.size()),
                                          passed_states(layers, micro_batches.at(0), steps.at(0)));
  for (const nn::ForwardContext& step : steps)
    if (nn::AttentionCache* cache = nn::cache_of(step))
      cache->advance(step, step.cut ? step.cut->tokens() : step.batch->tokens());
  return results;
}

at::Tensor DistributedModel::everywhere(const nn::ForwardContext& micro_batch, const ResultOf& result,
                                        const at::Tensor& like) {
  return everywhere(decoding(), micro_batch, result, like);
}

at::Tensor DistributedModel::everywhere_before_norm(const nn::ForwardContext& micro_batch, const ResultOf& result,
                                                    const at::Tensor& like) {
  return everywhere(decoding(), micro_batch, result, like, /*norms=*/false);
}

at::Tensor DistributedModel::everywhere(const LayoutLayers& layers, const nn::ForwardContext& micro_batch,
                                        const ResultOf& result, const at::Tensor& like, bool norms) {
  const auto results = run_forward(layers, {micro_batch}, result, norms);
  const at::Tensor value = on_all_stages(layers, results.empty() ? at::Tensor() : results.front(), like);
  end_pass();
  return value;
}

at::Tensor DistributedModel::on_all_stages(const LayoutLayers& layers, at::Tensor value, const at::Tensor& like) {
  if (!value.defined()) value = at::empty_like(like);
  comm::Group& ranks = mesh_.group("pipeline");
  if (ranks.size() > 1) {
    value = value.to(like.scalar_type()).contiguous();
    const schedule::Placement& place = layers.executor->schedule().placement;
    ranks.broadcast(value, place.rank_of(0, place.stages() - 1)).wait();
  }
  return value;
}

at::Tensor DistributedModel::at_end(const std::function<at::Tensor(const MakeReady& ready)>& work,
                                    const at::Tensor& like) {
  const LayoutLayers& layers = decoding();
  const schedule::Placement& place = layers.executor->schedule().placement;
  at::Tensor value;
  if (mesh_.group("pipeline").rank() == place.rank_of(0, place.stages() - 1))
    value = work([&](const nn::ForwardContext& micro_batch) { return ready(layers, micro_batch); });
  value = on_all_stages(layers, std::move(value), like);
  end_pass();
  return value;
}

std::unique_ptr<nn::AttentionCache> DistributedModel::make_cache(int64_t capacity) const {
  if (training_.model.shape.task().answers()) return std::make_unique<nn::EncoderDecoderCache>(capacity);
  const nn::Parameters::Options& options = parameters_->options();
  const bool has_pages = decoding().model.batch_parts == 1 && nn::PagedCache::serves(options.device, options.dtype);
  if (sequence_.size == 1 && has_pages) return nn::PagedCache::of_one_sequence(capacity);
  if (sequence_.size == 1) return std::make_unique<nn::KvCache>(capacity);
  const std::vector<std::string>& axes = prompting().layout.outside.sequence;
  return std::make_unique<parallel::SpreadCache>(capacity, mesh_.coordinates().index(axes),
                                                 mesh_.coordinates().size(axes));
}

std::unique_ptr<nn::PagedCache> DistributedModel::make_paged_cache(int64_t pages, int64_t page_tokens,
                                                                   std::optional<at::ScalarType> dtype) const {
  std::vector<std::string> axes;
  for (const comm::Mesh::Axis& axis : parallel::sequence_axes(sequence_)) axes.push_back(axis.name);
  return std::make_unique<nn::PagedCache>(pages, page_tokens, mesh_.coordinates().index(axes),
                                          mesh_.coordinates().size(axes), dtype);
}

at::Tensor DistributedModel::next_logits(const nn::ForwardContext& given) {
  const nn::AttentionCache* cache = nn::cache_of(given);
  require(cache != nullptr, "parallel", "decoding needs a cache: got a step without one; call make_cache()");
  require(given.batch != nullptr, "model", "decoding needs the tokens in the step: got none; nn::step_of() makes it");
  const bool is_dealt_out = sequence_.size > 1 && cache->lengths().empty() && given.batch->tokens() >= sequence_.size;
  const LayoutLayers& layers = is_dealt_out ? prompting() : decoding();
  const models::Model& model = decoding().model;
  nn::LossHead& head = models::head_of(model);
  const nn::Parameters::Options& options = parameters_->options();
  return everywhere(
      layers, given,
      [&](int, const models::States& end, const nn::ForwardContext& step) {
        return head.logits(parallel::last_token(layers.layout, end[0], step), given)[0];
      },
      at::empty({model.shape.vocabulary}, at::TensorOptions().dtype(options.dtype).device(options.device)));
}

}  // namespace colossal::distributed
