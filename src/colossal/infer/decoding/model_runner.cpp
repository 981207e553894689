#include "colossal/infer/decoding/model_runner.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/ops/attention/paged.h"
#include "colossal/ops/thread_team.h"

namespace colossal::infer {
namespace {

distributed::DistributedModel& checked(distributed::DistributedModel& model) {
  const models::Model& decoding = model.decoding_model();
  const models::Task task = decoding.shape.task();
  if (task.scores()) return model;  // requests without Request::pooling are refused
  require(task.continues(), "engine", "batched generation needs a model that predicts the next token: got a ",
          decoding.shape.architecture->name, ", which ", task.purpose(), "; give it one prompt");
  models::head_of(decoding);
  return model;
}

/// Returns true if the attention of the model caches latents (nn/latent_heads.h). With adapters, or in caches that
/// ranks share, it caches keys and values.
bool caches_latents(distributed::DistributedModel& model) {
  const std::deque<nn::Parameter>& all = model.parameters().declared();
  return model.decoding_model().shape.part<models::LatentSizes>().cached > 0 && model.cache_ranks() == 1 &&
         std::none_of(all.begin(), all.end(),
                      [](const nn::Parameter& p) { return p.is_added && p.name.find(".kv_up.") != std::string::npos; });
}

}  // namespace

int64_t ModelRunner::bytes_of_token(distributed::DistributedModel& model, std::optional<at::ScalarType> dtype,
                                    int64_t more_layers) {
  const models::ModelShape& s = model.decoding_model().shape;
  const int64_t layers = s.layers + more_layers;
  const auto padded = [](int64_t size) { return (size + ops::kPageUnit - 1) / ops::kPageUnit * ops::kPageUnit; };
  const auto item = static_cast<int64_t>(c10::elementSize(dtype.value_or(model.parameters().options().dtype)));
  const int64_t scales = dtype ? 2 * static_cast<int64_t>(sizeof(float)) : 0;
  if (caches_latents(model)) return layers * (padded(s.part<models::LatentSizes>().cached) * item + scales / 2);
  return layers * s.kv_heads * ((s.head_dim + padded(s.head_dim)) * item + scales);
}

ModelRunner::ModelRunner(distributed::DistributedModel& model, const Cache& cache)
    : model_(checked(model)), cache_(model.make_paged_cache(cache.blocks, cache.block_tokens, cache.dtype)) {
  if (model.decoding_model().neighbour_layers > 0) memory_.emplace(cache.draft_tokens);
}

int64_t ModelRunner::even_longest() const {
  const models::ModelShape& s = shape();
  const int64_t even = s.part<models::LongTexts>().even_positions;
  return even == 0 ? s.positions : std::min(even, s.positions);
}

int64_t ModelRunner::reach_of(int64_t text_tokens, int64_t max_new_tokens) const {
  // The model does not read the last new token.
  return std::min(shape().positions, text_tokens + std::max<int64_t>(max_new_tokens - 1, 0));
}

std::string ModelRunner::cache_key(const Request& request, int64_t text_tokens, int64_t max_new_tokens) const {
  const auto texts = shape().part<models::LongTexts>();
  if (texts.even_positions == 0) return request.cache_key;
  const int64_t reach = reach_of(text_tokens, max_new_tokens);
  const int64_t form = reach <= texts.even_positions ? 0 : texts.even_beyond ? 1 : reach;
  return concat(form, " ", request.cache_key);
}

void ModelRunner::begin(int64_t id, const std::vector<int64_t>& text, int64_t max_new_tokens, int64_t adapter) {
  if (adapter != nn::kBase) adapters_[id] = adapter;
  if (shape().part<models::LongTexts>().even_positions > 0)
    reaches_[id] = reach_of(static_cast<int64_t>(text.size()), max_new_tokens);
}

void ModelRunner::end(int64_t id) {
  reaches_.erase(id);
  adapters_.erase(id);
  if (memory_) memory_->end(id);
}

at::Tensor ModelRunner::logits(const Scheduler& scheduler, const std::vector<Scheduler::ScheduledTokens>& step) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;  // views and writes are not recorded, either
  const ops::TeamLoops loops;
  std::vector<int64_t> ids, positions, last;
  std::vector<ops::PagedSequence> sequences;
  std::vector<nn::TokenMemory::Sequence> read;
  std::vector<nn::AdaptersOfTokens::Run> chosen;
  nn::Sequences packed;
  const bool has_reaches = shape().part<models::LongTexts>().even_positions > 0;
  pooled_.clear();
  for (const Scheduler::ScheduledTokens& scheduled : step) {
    const std::vector<int64_t>& tokens = scheduler.tokens(scheduled.id);
    const int64_t row = static_cast<int64_t>(ids.size()) - scheduled.first;
    std::vector<int64_t>& scored = scheduled.is_pooled ? pooled_ : last;
    for (int64_t i = 0; i < scheduled.scored; ++i) scored.push_back(row + scheduled.first_scored + i);
    for (int64_t i = scheduled.first; i < scheduled.first + scheduled.count; ++i)
      ids.push_back(tokens[i]), positions.push_back(i);
    if (scheduled.wants_next) last.push_back(static_cast<int64_t>(ids.size()) - 1);
    for (int64_t i = 0; i < scheduled.proposed; ++i) {
      ids.push_back(scheduler.proposed(scheduled.id)[i]), positions.push_back(scheduled.first + scheduled.count + i);
      last.push_back(static_cast<int64_t>(ids.size()) - 1);
    }
    sequences.push_back({scheduler.blocks(scheduled.id), scheduled.first});
    packed.lengths.push_back(scheduled.count + scheduled.proposed);
    read.push_back({scheduled.id, scheduled.first, scheduled.count + scheduled.proposed});
    const auto adapter = adapters_.find(scheduled.id);
    chosen.push_back({packed.lengths.back(), adapter == adapters_.end() ? nn::kBase : adapter->second});
    if (!has_reaches) continue;
    const auto reach = reaches_.find(scheduled.id);
    const int64_t so_far = scheduled.first + scheduled.count + scheduled.proposed;
    packed.reach.push_back(reach == reaches_.end() ? so_far : reach->second);
  }
  cache_->take(std::move(sequences));
  // Tensors are created on the device, so that the host waits only for logits.
  const nn::Parameters::Options& made = model_.parameters().options();
  const auto options = at::TensorOptions().dtype(made.dtype).device(made.device);
  const auto there = [&](const std::vector<int64_t>& numbers) { return at::tensor(numbers, options.dtype(at::kLong)); };
  const models::Model& model = model_.decoding_model();
  // A layout that splits the batch gets copies of the row; the first copy's logits are used.
  const int64_t rows = model.batch_parts;
  const auto repeated = [&](const std::vector<int64_t>& numbers) { return there(numbers).repeat({rows, 1}); };
  nn::ForwardContext pass = nn::step_of(nn::token_batch(repeated(ids), repeated(positions)),
                                        {.parts = {std::move(packed), nn::Decoding{cache_.get()}}});
  if (memory_) {
    memory_->take(std::move(read));
    pass.parts.set(nn::RememberedTokens{&*memory_});
  }
  if (!adapters_.empty()) pass.parts.set(nn::AdaptersOfTokens(chosen, made.device));
  const at::Tensor wanted = there(last);
  const at::Tensor none = at::empty({static_cast<int64_t>(last.size()), model.shape.vocabulary}, options);
  return model_.everywhere(
      pass,
      [&](int, const models::States& end, const nn::ForwardContext& own) {
        if (keeps_hidden_ || !pooled_.empty()) hidden_ = end[0];
        return last.empty() ? none : model.head->logits(end[0].index_select(1, wanted), own)[0];
      },
      none);
}

at::Tensor ModelRunner::states() {
  const at::NoGradGuard no_grad;
  const nn::Parameters::Options& made = model_.parameters().options();
  const at::Tensor places = at::tensor(pooled_, at::TensorOptions().dtype(at::kLong).device(made.device));
  const int64_t outputs = shape().outputs();  // a model with outputs ends in them
  const at::ScalarType type = outputs > 0 ? at::promote_types(made.dtype, at::kFloat) : made.dtype;
  const at::Tensor like = at::empty({places.size(0), outputs > 0 ? outputs : shape().hidden},
                                    at::TensorOptions().dtype(type).device(made.device));
  const at::Tensor states = model_.at_end(
      [&](const distributed::DistributedModel::MakeReady&) { return hidden_[0].index_select(0, places); }, like);
  if (!keeps_hidden_) hidden_.reset();
  return states;
}

}  // namespace colossal::infer
