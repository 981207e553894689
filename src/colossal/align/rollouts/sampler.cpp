#include "colossal/align/rollouts/sampler.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/comm/group.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/engine.h"

namespace colossal::align {
namespace {

uint64_t seed_of_draws(int64_t seed, int64_t step, const DrawnAnswer& answer) {
  uint64_t own = derive_seed(static_cast<uint64_t>(seed), "rollouts");
  for (const int64_t part : {step, answer.prompt, answer.number}) own = derive_seed(own, static_cast<uint64_t>(part));
  return own;
}

/// Frees the panels of a model at the end of a draw, also if it throws.
class HeldPanels {
 public:
  HeldPanels(train::Engine& engine, const std::string& model) : engine_(engine), model_(model) { engine.pack(model); }
  ~HeldPanels() { engine_.release_panels(model_); }
  HeldPanels(const HeldPanels&) = delete;
  HeldPanels& operator=(const HeldPanels&) = delete;

 private:
  train::Engine& engine_;
  const std::string& model_;
};

bool any_rank(train::Engine& engine, bool here) {
  at::Tensor any = at::full({1}, here ? 1 : 0, at::TensorOptions().dtype(at::kInt).device(engine.device()));
  engine.mesh().all().all_reduce(any, comm::Reduce::Max).wait();
  return any.item<int>() != 0;
}

/// Runs all requests. Every pass is collective if replicas shard parameters, so all ranks make equally many.
void run_to_end(train::Engine& engine, infer::Engine& sampler) {
  if (!engine.shards_parameters()) {
    while (sampler.has_work()) sampler.step();
    return;
  }
  while (any_rank(engine, sampler.has_work())) {
    if (!sampler.has_work()) sampler.add({.prompt = {0}, .options = {.max_tokens = 1}});
    sampler.step();
  }
}

}  // namespace

Sampler::Sampler(train::Engine& engine, SamplerOptions options, std::string model)
    : engine_(engine), options_(std::move(options)), model_(std::move(model)) {
  require(options_.max_tokens >= 1 && options_.answers >= 1, "rollout",
          "max_tokens and answers must be at least 1: got ", options_.max_tokens, " and ", options_.answers);
  require(options_.temperature > 0 && std::isfinite(options_.temperature), "rollout",
          "the temperature of draws must be above 0: got ", options_.temperature);
}

std::vector<DrawnAnswer> Sampler::draw(int64_t step, const std::vector<Prompt>& prompts) {
  const HeldPanels panels(engine_, model_);
  infer::Engine sampler(engine_.model(model_),
                        {.cache_bytes = options_.cache_bytes, .block_tokens = options_.block_tokens});
  std::vector<DrawnAnswer> answers;
  answers.reserve(prompts.size() * static_cast<size_t>(options_.answers));  // events refer to its elements
  for (const Prompt& prompt : prompts) {
    int64_t first = -1;
    for (int64_t number = 0; number < options_.answers; ++number) {
      DrawnAnswer& answer = answers.emplace_back(DrawnAnswer{.prompt = prompt.number, .number = number});
      infer::Request request{.prompt = prompt.ids, .end_ids = options_.end_ids, .after = first, .scores_draws = true};
      request.options.max_tokens = options_.max_tokens;
      request.options.sampling.temperature = options_.temperature;
      request.options.sampling.seed = static_cast<int64_t>(seed_of_draws(options_.seed, step, answer));
      const int64_t id = sampler.add(std::move(request), [&answer](const infer::Event& event) {
        require(event.finish_reason != infer::FinishReason::Failed, "rollout", event.error);
        answer.finish_reason = event.finish_reason;
        if (event.token < 0) return;
        answer.ids.push_back(event.token);
        answer.log_probabilities.push_back(event.drawn_log_probability.value());
      });
      if (number == 0) first = id;
    }
  }
  run_to_end(engine_, sampler);
  return answers;
}

}  // namespace colossal::align
