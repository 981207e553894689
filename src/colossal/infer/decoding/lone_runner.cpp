#include "colossal/infer/decoding/lone_runner.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/models/registry.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/kv_cache.h"
#include "colossal/ops/thread_team.h"

namespace colossal::infer {

LoneRunner::LoneRunner(distributed::DistributedModel& model) : model_(model), has_encoder_(shape().task().answers()) {
  const models::Task task = shape().task();
  require(task.generates(), "generate", "generation needs a model that predicts the next token: got a ",
          shape().architecture->name, ", which ", task.purpose());
  models::head_of(model.decoding_model());
}

std::vector<std::string> LoneRunner::unused_options() {
  return {"kv_cache", "kv_cache_dtype", "step_tokens", "draft_tokens", "draft", "attention_sinks", "prompt_logprobs"};
}

std::string LoneRunner::name() const { return has_encoder_ ? shape().architecture->name : "a request that runs alone"; }

SchedulerOptions LoneRunner::scheduling(const models::ModelShape& shape) {
  return {.blocks = 1,
          .block_tokens = shape.positions,
          .step_tokens = shape.positions,
          .max_running = 1,
          .keeps_prefixes = false};
}

std::vector<int64_t> LoneRunner::text_of(const Request& request) const {
  std::vector<int64_t> text = request.prompt;
  if (!has_encoder_) return text;
  if (request.prompt_end >= 0 && text.back() != request.prompt_end) text.push_back(request.prompt_end);
  text.push_back(shape().task().start_id);
  return text;
}

void LoneRunner::begin(int64_t id, const std::vector<int64_t>& text, int64_t max_new_tokens, int64_t adapter) {
  const auto length = static_cast<int64_t>(text.size());
  const int64_t source = has_encoder_ ? length - 1 : 0;
  texts_[id] = {
      .source = source, .capacity = std::min(shape().positions, length + max_new_tokens) - source, .adapter = adapter};
}

void LoneRunner::end(int64_t id) { texts_.erase(id); }

at::Tensor LoneRunner::logits(const Scheduler& scheduler, const std::vector<Scheduler::ScheduledTokens>& step) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;  // views and writes are not recorded, either
  const ops::TeamLoops loops;
  const Scheduler::ScheduledTokens& scheduled = step.at(0);
  const std::vector<int64_t>& tokens = scheduler.tokens(scheduled.id);
  Text& text = texts_.at(scheduled.id);
  const bool is_first = text.cache == nullptr;
  if (is_first) text.cache = model_.make_cache(text.capacity);
  // A layout that splits the batch gets copies of the row; the first copy's logits are used.
  const int64_t rows = model_.decoding_model().batch_parts;
  // Tensors are created on the device, so that the host waits only for logits.
  const auto ids = at::TensorOptions().dtype(at::kLong).device(model_.parameters().options().device);
  const at::Tensor input = scheduled.count == 1 ? at::full({rows, 1}, tokens[scheduled.first], ids)
                                                : at::tensor(tokens, ids).slice(0, scheduled.first).repeat({rows, 1});
  const int64_t held = is_first ? 0 : text.cache->lengths().front();
  nn::ForwardContext pass =
      nn::step_of(nn::token_batch(input, at::arange(held, held + scheduled.count, ids).repeat({rows, 1})));
  pass.parts.set(nn::Decoding{text.cache.get()});
  text.memory.take({{scheduled.id, held, scheduled.count}});
  pass.parts.set(nn::RememberedTokens{&text.memory});
  if (text.adapter != nn::kBase) pass.parts.set(nn::AdaptersOfTokens({{scheduled.count, text.adapter}}, ids.device()));
  if (has_encoder_) pass.parts.set(nn::SourceTokens{is_first ? text.source : 0});
  return model_.next_logits(pass).unsqueeze(0);
}

}  // namespace colossal::infer
