#include "colossal/align/rollouts/sampler.h"

#include <ATen/ATen.h>

#include <cmath>
#include <exception>
#include <map>
#include <optional>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/group.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/engine.h"

namespace colossal::align {
namespace {

uint64_t seed_of_draws(int64_t seed, int64_t step, const Draw& draw) {
  uint64_t own = derive_seed(static_cast<uint64_t>(seed), "rollouts");
  for (const int64_t part : {step, draw.prompt->index, draw.number})
    own = derive_seed(own, static_cast<uint64_t>(part));
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

/// Keeps the first error of one rank's functions, because other ranks wait for its part of each pass.
class HeldError {
 public:
  void keep(const std::function<void()>& work) {
    try {
      work();
    } catch (...) {
      if (!error_) error_ = std::current_exception();
    }
  }
  bool has_one() const { return error_ != nullptr; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

/// One draw(): the requests of its answers, and the answers that are not complete.
class Drawing {
 public:
  Drawing(infer::Engine& sampler, const SamplerOptions& options, int64_t step, int64_t version, int64_t cache_ranks)
      : sampler_(sampler),
        options_(options),
        step_(step),
        version_(version),
        block_tokens_(options.block_tokens * cache_ranks) {}

  /// Adds all requests. They start in this order, so those that wait until another one has read their prompt are last.
  void add(const std::vector<Draw>& draws, const std::function<void(RolloutAnswer)>& done, HeldError& held) {
    answers_.reserve(draws.size());     // events refer to its elements
    std::map<int64_t, int64_t> firsts;  // of prompts that fill a block, which the cache then has for further answers
    std::vector<const Draw*> waiting;
    for (const Draw& draw : draws) {
      const RolloutPrompt& prompt = *draw.prompt;
      if (firsts.contains(prompt.index)) {
        waiting.push_back(&draw);
        continue;
      }
      const int64_t id = add(draw, -1, done, held);
      if (static_cast<int64_t>(prompt.ids.size()) > block_tokens_) firsts.emplace(prompt.index, id);
    }
    for (const Draw* draw : waiting) add(*draw, firsts.at(draw->prompt->index), done, held);
  }

 private:
  int64_t add(const Draw& draw, int64_t after, const std::function<void(RolloutAnswer)>& done, HeldError& held) {
    RolloutAnswer& answer =
        answers_.emplace_back(RolloutAnswer{.prompt = draw.prompt->index, .number = draw.number, .version = version_});
    infer::Request request{
        .prompt = draw.prompt->ids, .end_ids = options_.end_ids, .after = after, .scores_draws = true};
    request.options.max_tokens = options_.max_tokens;
    request.options.sampling.temperature = options_.temperature;
    request.options.sampling.seed = static_cast<int64_t>(seed_of_draws(options_.seed, step_, draw));
    return sampler_.add(std::move(request), [&answer, &done, &held](const infer::Event& event) {
      held.keep([&] {
        require(event.finish_reason != infer::FinishReason::Failed, "rollout", "answer ", answer.number, " to prompt ",
                answer.prompt, " cannot be drawn: ", event.error);
        if (event.token >= 0) {
          answer.ids.push_back(event.token);
          answer.log_probabilities.push_back(event.drawn_log_probability.value());
        }
        if (event.finish_reason == infer::FinishReason::None) return;
        answer.finish_reason = event.finish_reason == infer::FinishReason::AtEnd ? "stop" : "length";
        done(std::move(answer));
      });
    });
  }

  infer::Engine& sampler_;
  const SamplerOptions& options_;
  int64_t step_, version_, block_tokens_;
  std::vector<RolloutAnswer> answers_;
};

bool any_rank(train::Engine& engine, bool here) {
  at::Tensor any = at::full({1}, here ? 1 : 0, at::TensorOptions().dtype(at::kInt).device(engine.device()));
  engine.mesh().all().all_reduce(any, comm::Reduce::Max).wait();
  return any.item<int>() != 0;
}

/// Runs all requests, and calls `idle` after each step. Every pass is collective if replicas shard parameters, so all
/// ranks then make equally many.
void run_to_end(train::Engine& engine, infer::Engine& sampler, const std::function<void()>& idle) {
  const bool shards = engine.shards_parameters();
  while (shards ? any_rank(engine, sampler.has_work()) : sampler.has_work()) {
    if (!sampler.has_work()) sampler.add({.prompt = {0}, .options = {.max_tokens = 1}});
    sampler.step();
    idle();
  }
}

}  // namespace

Sampler::Sampler(train::Engine& engine, SamplerOptions options, std::string model)
    : engine_(engine), options_(std::move(options)), model_(std::move(model)) {
  require(options_.max_tokens >= 1, "rollout", "max_tokens must be at least 1: got ", options_.max_tokens);
  require(options_.temperature > 0 && std::isfinite(options_.temperature), "rollout",
          "the temperature of draws must be above 0: got ", options_.temperature);
}

void Sampler::draw(int64_t step, const std::vector<Draw>& draws, const std::function<void(RolloutAnswer)>& done,
                   const std::function<void()>& idle) {
  comm::Group& ranks = engine_.mesh().all();
  distributed::DistributedModel& model = engine_.model(model_);
  std::optional<infer::Engine> sampler;
  std::optional<Drawing> drawing;
  HeldError held;
  comm::agree(ranks, engine_.device(), [&] {
    sampler.emplace(model,
                    infer::EngineOptions{.cache_bytes = options_.cache_bytes, .block_tokens = options_.block_tokens});
    drawing.emplace(*sampler, options_, step, engine_.steps_done(), model.cache_ranks());
    drawing->add(draws, done, held);
  });
  const HeldPanels panels(engine_, model_);
  run_to_end(engine_, *sampler, [&] {
    if (idle && !held.has_one()) held.keep(idle);
  });
  comm::agree(ranks, engine_.device(), [&] { held.rethrow(); });
}

}  // namespace colossal::align
