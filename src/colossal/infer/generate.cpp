#include "colossal/infer/generate.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/models/registry.h"

namespace colossal::infer {

std::vector<int64_t> generate(distributed::DistributedModel& distributed, const std::vector<int64_t>& prompt,
                              const GenerateOptions& options, const std::function<bool(int64_t)>& emit) {
  const models::Model& model = distributed.decoding_model();
  const int64_t length = static_cast<int64_t>(prompt.size()), positions = model.shape.positions;
  const models::Task task = model.shape.task();
  require(task.generates(), "generate", "generation needs a model that predicts the next token: got a ",
          model.shape.architecture->name, ", which ", task.purpose());
  require(length > 0, "generate", "the prompt must have at least one token");
  const bool answers = task.objective == models::Objective::Target;
  require(length + (answers ? 2 : 0) <= positions, "generate", "the prompt must fit the model's positions: got ",
          length, " tokens, ", positions, " positions");
  for (const int64_t id : prompt)
    require(id >= 0 && id < model.shape.vocabulary, "generate", "prompt ids must lie in the model's vocabulary of ",
            model.shape.vocabulary, ": got ", id);
  const at::NoGradGuard no_grad;
  Sampler sampler(options.sampling, prompt);
  std::vector<int64_t> first = prompt;
  if (answers && options.end_id >= 0 && first.back() != options.end_id) first.push_back(options.end_id);
  // read by the encoder, which is no part of what the cache grows by
  const int64_t source = answers ? static_cast<int64_t>(first.size()) : 0;
  if (answers) first.push_back(task.start_id);
  const int64_t wanted = std::clamp<int64_t>(options.max_tokens, 0, positions);
  const int64_t capacity = std::min(positions - source, (answers ? 1 : length) + wanted);
  // one sequence; a layout that splits the batch gets copies of it, of which the first counts
  const int64_t rows = model.batch_parts;
  const std::unique_ptr<nn::AttentionCache> cache = distributed.make_cache(capacity);
  // made there: only logits make the host wait
  const auto ids_options = at::TensorOptions().dtype(at::kLong).device(distributed.parameters().options().device);
  at::Tensor input = at::tensor(first, ids_options).repeat({rows, 1});
  std::vector<int64_t> generated;
  int64_t held = 0;  // tokens of the sequence in the cache
  while (static_cast<int64_t>(generated.size()) < options.max_tokens) {
    nn::Step step;
    step.positions = at::arange(held, held + input.size(1), ids_options).repeat({rows, 1});
    step.cache = cache.get();
    if (answers) step.source_tokens = generated.empty() ? source : 0;
    const at::Tensor logits = distributed.next_logits({input, step});
    if (options.weights) options.weights->end_pass();
    held = cache->lengths().front();
    const int64_t token = sampler.next(constrained(logits, options.constraint));
    if (options.constraint) options.constraint->accept(token);
    if (token == options.end_id) break;
    generated.push_back(token);
    if (emit && !emit(token)) break;
    if (held >= capacity) break;
    input = at::full({rows, 1}, token, ids_options);
  }
  return generated;
}

}  // namespace colossal::infer
