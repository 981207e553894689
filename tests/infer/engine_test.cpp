// Batched requests: each gets the tokens it gets alone, for any chunking, block size, cache size and prefix reuse.
#include "colossal/infer/engine.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/infer/generate.h"
#include "colossal/infer/perplexity.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/run/saved_model.h"
#include "infer/engine_answers.h"
#include "support/generated_text.h"
#include "support/thrown_message.h"

namespace colossal::infer::engine_test {
namespace {

class Engine : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { test::write_model(folder, GetParam()); }

  void with_model(const distributed::ParallelConfig& layout, std::optional<at::ScalarType> dtype,
                  const std::function<void(distributed::DistributedModel&, bool is_first)>& work) {
    comm::run_ranks(static_cast<int>(layout.ranks()), [&](comm::World& world) {
      comm::Mesh mesh(world, layout.axes());
      const run::SavedModel saved = run::load_model(
          folder / "hf", mesh, layout, at::kCPU, {.tokenizer = "none", .dtype = dtype, .packing = nn::WeightPacking{}});
      work(*saved.model, world.rank() == 0);
    });
  }

  test::TemporaryFolder folder;
};

/// Returns prompts of various lengths; many have a common prefix.
std::vector<Request> some_requests(int64_t count, uint64_t seed) {
  std::mt19937 draw(static_cast<unsigned>(seed));
  std::vector<Request> requests;
  for (int64_t i = 0; i < count; ++i) {
    Request request{.options = {.max_tokens = static_cast<int64_t>(draw() % 9)}};
    const int64_t length = 1 + static_cast<int64_t>(draw() % 28);
    const bool is_alike = draw() % 2;
    for (int64_t t = 0; t < length; ++t) request.prompt.push_back(is_alike && t < 20 ? 60 + t : 40 + draw() % 60);
    if (draw() % 2) request.options.sampling = {.temperature = 1, .seed = i};
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<Tokens> alone(distributed::DistributedModel& model, const std::vector<Request>& requests) {
  std::vector<Tokens> answers;
  for (const Request& r : requests) answers.push_back(generate(model, r));
  return answers;
}

int64_t bytes_of_block(const distributed::DistributedModel& model, int64_t tokens) {
  const models::ModelShape& s = model.decoding_model().shape;
  return s.layers * s.kv_heads * 2 * s.head_dim * 4 * tokens;
}

TEST_P(Engine, EqualsEachRequestAlone) {
  const std::vector<Request> requests = some_requests(14, 1);
  with_model({}, {}, [&](distributed::DistributedModel& model, bool) {
    const std::vector<Tokens> want = alone(model, requests);
    int64_t preempted = 0, found = 0;
    for (const int64_t step_tokens : {1, 5, 512})
      for (const int64_t blocks : {3, 40})
        for (const bool keeps_prefixes : {false, true}) {
          infer::Engine engine(model, {.cache_bytes = blocks * bytes_of_block(model, 16),
                                       .block_tokens = 16,
                                       .step_tokens = step_tokens,
                                       .max_running = 6,
                                       .keeps_prefixes = keeps_prefixes});
          ASSERT_EQ(engine.blocks(), blocks);
          EXPECT_EQ(answers_of(engine, requests), want)
              << step_tokens << " tokens a step, " << blocks << " blocks, prefixes " << keeps_prefixes;
          preempted += engine.counts().preempted;
          found += engine.counts().found_tokens;
        }
    EXPECT_GT(preempted, 0);
    EXPECT_GT(found, 0);
  });
}

TEST_P(Engine, EqualsOneProcessOverRanksAndInBf16) {
  const std::vector<Request> requests = some_requests(6, 2);
  std::vector<distributed::ParallelConfig> layouts(3);
  layouts[0].tensor.size = 2;
  layouts[1].pipeline.size = 2;
  layouts[2].tensor.size = 2, layouts[2].pipeline.size = 2;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const distributed::ParallelConfig& layout : layouts)
      with_model(layout, dtype, [&](distributed::DistributedModel& model, bool is_first) {
        const std::vector<Tokens> want = alone(model, requests);
        infer::Engine engine(model,
                             {.cache_bytes = 6 * bytes_of_block(model, 16), .block_tokens = 16, .step_tokens = 7});
        const std::vector<Tokens> got = answers_of(engine, requests);
        if (is_first) {
          EXPECT_EQ(got, want) << layout.tensor.size << " x " << layout.pipeline.size;
        }
      });
}

/// Returns the logits of the token after a text, computed without a cache.
at::Tensor logits_of(distributed::DistributedModel& model, const Tokens& text) {
  const at::NoGradGuard no_grad;
  const at::Tensor ids = at::tensor(text, at::kLong).unsqueeze(0);
  return model.everywhere(
      nn::step_of(nn::token_batch(ids, at::arange(ids.size(1)).unsqueeze(0))),
      [&](int, const models::States& end, const nn::ForwardContext& step) {
        return model.decoding_model().head->logits(end[0].select(1, -1), step)[0];
      },
      at::Tensor());
}

/// Returns the completions of a model that computes the whole sequence for every token.
std::vector<Tokens> without_a_cache(distributed::DistributedModel& model, const std::vector<Request>& requests) {
  const at::NoGradGuard no_grad;
  std::vector<Tokens> answers;
  for (const Request& r : requests) {
    Sampler sampler(r.options.sampling);
    Tokens text = r.prompt;
    while (static_cast<int64_t>(text.size() - r.prompt.size()) < r.options.max_tokens && text.size() <= 32) {
      text.push_back(sampler.next(logits_of(model, text)));
    }
    answers.emplace_back(text.begin() + static_cast<std::ptrdiff_t>(r.prompt.size()), text.end());
  }
  return answers;
}

TEST_P(Engine, EqualsAModelWithoutCacheInEveryLayout) {
  const std::vector<Request> requests = some_requests(6, 3);
  std::vector<Tokens> want;
  with_model({}, {}, [&](distributed::DistributedModel& model, bool) { want = without_a_cache(model, requests); });
  struct Case {
    parallel::TensorConfig tensor{};
    parallel::SequenceConfig sequence{};
    int64_t pipeline = 1, block_tokens = 16, blocks = 3, step_tokens = 7;
  };
  const std::vector<Case> cases{
      {.tensor = {.size = 3}, .block_tokens = 32, .blocks = 2},
      {.tensor = {.size = 4}, .pipeline = 2},
      {.tensor = {.size = 2, .sequence = true}, .step_tokens = 1},
      {.tensor = {.size = 4, .mode = "2d"}, .blocks = 40},
      {.tensor = {.size = 4, .mode = "2d"}, .pipeline = 2},
      {.tensor = {.size = 8, .mode = "2.5d", .depth = 2}},
      {.tensor = {.size = 8, .mode = "3d"}, .step_tokens = 512},
      {.sequence = {.size = 2, .mode = "ring"}, .blocks = 2},
      {.sequence = {.size = 2, .mode = "ulysses"}, .pipeline = 2, .blocks = 40, .step_tokens = 512},
      {.tensor = {.size = 2}, .sequence = {.size = 2, .mode = "gather"}, .step_tokens = 1},
      {.tensor = {.size = 2, .sequence = true}, .sequence = {.size = 2, .mode = "ring"}, .pipeline = 2},
      {.tensor = {.size = 4, .mode = "2d"}, .sequence = {.size = 2, .mode = "ring"}},
      {.sequence = {.size = 4, .mode = "usp", .ulysses = 2}, .blocks = 1},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    distributed::ParallelConfig layout;
    layout.tensor = c.tensor, layout.sequence = c.sequence, layout.pipeline.size = c.pipeline;
    with_model(layout, {}, [&](distributed::DistributedModel& model, bool) {
      infer::Engine engine(model, {.cache_bytes = c.blocks * bytes_of_block(model, c.block_tokens),
                                   .block_tokens = c.block_tokens,
                                   .step_tokens = c.step_tokens});
      const std::vector<Tokens> got = answers_of(engine, requests);
      EXPECT_EQ(got, want) << "layout " << i;
    });
  }
}

/// Returns the completion of a model that computes the whole sequence for every token, and drops its middle when it
/// gets too long.
Tokens endless(distributed::DistributedModel& model, const Request& request, int64_t longest) {
  const at::NoGradGuard no_grad;
  Sampler sampler(request.options.sampling);
  Tokens text = request.prompt, answer;
  const int64_t attention_sinks = request.options.attention_sinks;
  while (static_cast<int64_t>(answer.size()) < request.options.max_tokens) {
    const int64_t part = (longest - attention_sinks + 1) / 2;
    while (static_cast<int64_t>(text.size()) > longest)
      text.erase(text.begin() + attention_sinks, text.begin() + attention_sinks + part);
    answer.push_back(sampler.next(logits_of(model, text)));
    text.push_back(answer.back());
  }
  return answer;
}

TEST_P(Engine, ContinuesEndlesslyWithAttentionSinks) {
  with_model({}, at::kDouble, [&](distributed::DistributedModel& model, bool) {
    const int64_t block = 2 * bytes_of_block(model, 16);  // factor 2: the model has fp64
    for (const int64_t longest : {32, 16}) {
      std::vector<Request> requests;
      std::vector<Tokens> want;
      for (int64_t i = 0; i < 6; ++i) {
        Request request{.options = {.max_tokens = 50, .attention_sinks = std::min<int64_t>(3 * i, longest / 2 - 1)}};
        for (int64_t t = 0; t < 3 + 9 * i; ++t) request.prompt.push_back(60 + t % 5);
        if (i % 2) request.options.sampling = {.temperature = 0.7, .seed = i};
        for (int64_t token = 60; i > 2 && token < 64; ++token) request.options.sampling.logit_bias[token] = 1000;
        want.push_back(endless(model, request, longest));
        requests.push_back(std::move(request));
      }
      for (const int64_t draft_tokens : {0, 5}) {
        infer::Engine tight(
            model,
            {.cache_bytes = longest / 16 * block, .block_tokens = 16, .step_tokens = 9, .draft_tokens = draft_tokens});
        EXPECT_EQ(answers_of(tight, requests), want) << longest << " " << draft_tokens;
        infer::Engine roomy(
            model,
            {.cache_bytes = 40 * block, .block_tokens = 16, .max_length = longest, .draft_tokens = draft_tokens});
        EXPECT_EQ(answers_of(roomy, requests), want) << longest << " " << draft_tokens;
        if (draft_tokens > 0) EXPECT_GT(roomy.draft_counts().accepted, 0);
      }
      infer::Engine drafted(
          model,
          {.cache_bytes = 40 * block, .block_tokens = 16, .max_length = longest, .draft_tokens = 3, .draft = &model});
      const std::vector<Tokens> answers = answers_of(drafted, requests);
      for (size_t i = 0; i < 6; i += 2) EXPECT_EQ(answers[i], want[i]) << longest;
      EXPECT_EQ(drafted.draft_counts().accepted, drafted.draft_counts().proposed);
    }
    EXPECT_THAT(test::thrown_message([&] {
                  infer::Engine(model, {.cache_bytes = block, .block_tokens = 16})
                      .add({.prompt = {65}, .options = {.attention_sinks = 8}});
                }),
                testing::HasSubstr("less than half"));
  });
}

TEST_P(Engine, EnforcesLimits) {
  with_model({}, {}, [&](distributed::DistributedModel& model, bool) {
    infer::Engine engine(model, {.cache_bytes = 1 << 21, .block_tokens = 16, .max_waiting = 2, .max_length = 10});
    std::vector<Event> events;
    engine.add({.prompt = {65, 66}}, into(events));
    engine.add({.prompt = {65, 67}}, into(events));
    EXPECT_THAT(test::thrown_message([&] { engine.add({.prompt = {65}}); }), testing::HasSubstr("the queue is full"));
    EXPECT_THAT(test::thrown_message([&] { infer::Engine(model, {.max_length = 3}).add({.prompt = Tokens(4, 65)}); }),
                testing::HasSubstr("got 4 tokens, 3 positions"));
    EXPECT_EQ(stepped(engine, events).size(), 2U);
    engine.add({.prompt = {65}, .options = {.max_tokens = 1}}, into(events));  // no request waits any more
    std::map<int64_t, std::pair<int64_t, FinishReason>> told;
    for (; engine.has_work();)
      for (const Event& event : stepped(engine, events)) {
        ++told[event.id].first;
        told[event.id].second = event.finish_reason;
      }
    EXPECT_EQ(engine.max_length(), 10);
    EXPECT_EQ(infer::Engine(model, {}).max_length(), model.decoding_model().shape.positions);
    EXPECT_EQ(infer::Engine(model, {.cache_bytes = bytes_of_block(model, 16), .block_tokens = 16}).max_length(), 16);
    // 9 new tokens, one of them before; the model does not read the last one.
    EXPECT_EQ(told.at(0), std::pair(int64_t{8}, FinishReason::AtPositions));
    EXPECT_EQ(told.at(2), std::pair(int64_t{1}, FinishReason::AtLength));
  });
}

TEST_P(Engine, CancellingLeavesOthersUnchanged) {
  const std::vector<Request> requests = some_requests(12, 6);
  with_model({}, {}, [&](distributed::DistributedModel& model, bool) {
    const std::vector<Tokens> want = alone(model, requests);
    int64_t cancelled = 0;
    for (unsigned seed = 1; seed < 6; ++seed) {
      std::mt19937 draw(seed);
      infer::Engine engine(model, {.cache_bytes = 4 * bytes_of_block(model, 16),
                                   .block_tokens = 16,
                                   .step_tokens = 9,
                                   .draft_tokens = seed % 2 ? 3 : 0});
      std::map<int64_t, Tokens> running;
      std::vector<Event> events;
      for (const Request& request : requests) running[engine.add(request, into(events))];
      std::set<int64_t> gone;
      while (engine.has_work()) {
        for (const Event& event : stepped(engine, events)) {
          EXPECT_EQ(event.finish_reason == FinishReason::Cancelled, gone.erase(event.id) == 1);
          if (event.is_answer()) running.at(event.id).push_back(event.token);
          if (event.finish_reason == FinishReason::None || event.finish_reason == FinishReason::Cancelled) continue;
          EXPECT_EQ(running.at(event.id), want[static_cast<size_t>(event.id)]);
          running.erase(event.id);
        }
        if (running.empty() || draw() % 2) continue;
        const auto one = std::next(running.begin(), static_cast<int64_t>(draw() % running.size()));
        engine.cancel(one->first);
        gone.insert(one->first);
        running.erase(one);
        ++cancelled;
      }
      EXPECT_TRUE(gone.empty());
    }
    EXPECT_GT(cancelled, 10);
  });
}

/// Allows any token, and throws after `calls` calls of allowed().
class FailingConstraint final : public TokenConstraint {
 public:
  explicit FailingConstraint(int calls) : calls_(calls) {}
  at::Tensor allowed(int64_t vocabulary) override {
    require(calls_-- > 0, "constraint", "no token fits");
    return at::ones({vocabulary}, at::kBool);
  }
  void accept(int64_t) override {}
  std::shared_ptr<TokenConstraint> copy() const override { return std::make_shared<FailingConstraint>(*this); }

 private:
  int calls_;
};

TEST_P(Engine, EndsOnlyTheRequestOfAFailedConstraint) {
  std::vector<Request> requests = some_requests(6, 6);
  with_model({}, {}, [&](distributed::DistributedModel& model, bool) {
    const std::vector<Tokens> want = alone(model, requests);
    const Tokens prompt{70, 71, 72};
    const Tokens whole = generate(model, {.prompt = prompt, .options = {.max_tokens = 6}});
    for (const int64_t draft_tokens : {0, 3}) {
      infer::Engine engine(model, {.cache_bytes = 4 * bytes_of_block(model, 16),
                                   .block_tokens = 16,
                                   .step_tokens = 9,
                                   .draft_tokens = draft_tokens});
      std::vector<Event> events;
      for (const Request& request : requests) engine.add(request, into(events));
      const int64_t failing = engine.add(
          {.prompt = prompt, .options = {.max_tokens = 6}, .constraint = std::make_shared<FailingConstraint>(3)},
          into(events));
      std::map<int64_t, Tokens> told;
      std::map<int64_t, FinishReason> finish_reasons;
      std::string error;
      while (engine.has_work())
        for (const Event& event : stepped(engine, events)) {
          if (event.is_answer()) told[event.id].push_back(event.token);
          finish_reasons[event.id] = event.finish_reason;
          error += event.error;
        }
      EXPECT_EQ(error, "no token fits");
      EXPECT_EQ(finish_reasons.at(failing), FinishReason::Failed);
      EXPECT_EQ(told[failing], Tokens(whole.begin(), whole.begin() + 3));
      for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(told[static_cast<int64_t>(i)], want[i]) << i;
    }
  });
}

TEST_P(Engine, EndsAtTheRequestedLimits) {
  with_model({}, {}, [&](distributed::DistributedModel& model, bool) {
    infer::Engine engine(model, {.cache_bytes = 8 * bytes_of_block(model, 16), .block_tokens = 16});
    const Tokens prompt{70, 71, 72};
    const Tokens whole = generate(model, {.prompt = prompt, .options = {.max_tokens = 6}});
    std::vector<Event> events;
    const auto id = engine.add({.prompt = prompt, .end_ids = {whole[4]}, .options = {.max_tokens = 6}}, into(events));
    const auto cancelled = engine.add({.prompt = prompt, .options = {.max_tokens = 6}}, into(events));
    const auto none = engine.add({.prompt = prompt, .options = {.max_tokens = 0}}, into(events));
    const auto most = engine.add({.prompt = Tokens(30, 65), .options = {.max_tokens = 50}}, into(events));
    std::map<int64_t, std::pair<int64_t, FinishReason>> seen;  // number of tokens, and reason of the end
    for (int step = 0; engine.has_work(); ++step) {
      if (step == 2) engine.cancel(cancelled);
      for (const Event& event : stepped(engine, events))
        seen[event.id].first += event.is_answer(), seen[event.id].second = event.finish_reason;
    }
    const auto first_end = std::find(whole.begin(), whole.end(), whole[4]) - whole.begin();
    EXPECT_EQ(seen[id], std::pair(static_cast<int64_t>(first_end), FinishReason::AtEnd));
    EXPECT_EQ(seen[cancelled], std::pair(int64_t{2}, FinishReason::Cancelled));
    EXPECT_EQ(seen[none], std::pair(int64_t{0}, FinishReason::AtLength));
    EXPECT_EQ(seen[most], std::pair(int64_t{3}, FinishReason::AtPositions));  // 32 positions; the last token needs none
  });
}

/// Returns prompts with repetitions, so that prompt lookup proposes tokens and some are accepted.
std::vector<Request> repeating_requests(int64_t count, uint64_t seed) {
  std::mt19937 draw(static_cast<unsigned>(seed));
  std::vector<Request> requests;
  for (int64_t i = 0; i < count; ++i) {
    Request request{.options = {.max_tokens = static_cast<int64_t>(draw() % 30)}};
    const auto period = static_cast<int64_t>(1 + draw() % 5), length = static_cast<int64_t>(1 + draw() % 25);
    for (int64_t t = 0; t < length; ++t) request.prompt.push_back(60 + t % period);
    if (draw() % 2) request.options.sampling = {.temperature = 0.7, .seed = i, .repetition_penalty = 0.8};
    for (int64_t token = 60; token < 64; ++token) request.options.sampling.logit_bias[token] = 1000;
    requests.push_back(std::move(request));
  }
  return requests;
}

TEST_P(Engine, LeavesCompletionsUnchangedByDraftTokens) {
  for (const distributed::ParallelConfig& layout :
       {distributed::ParallelConfig{}, distributed::ParallelConfig{.tensor = {.size = 2}, .pipeline = {.size = 2}},
        distributed::ParallelConfig{.sequence = {.size = 2}}})
    with_model(layout, {}, [&](distributed::DistributedModel& model, bool) {
      for (uint64_t seed = 1; seed < 3; ++seed) {
        std::vector<Request> requests = repeating_requests(14, seed);
        // The same requests again: cached blocks must hold accepted tokens, not rejected draft tokens.
        for (size_t i = 0; i < 14; ++i) requests.push_back(Request(requests[i]));
        infer::Engine plain(model, {.cache_bytes = 1 << 22, .block_tokens = 16});
        const std::vector<Tokens> want = answers_of(plain, requests);
        for (const bool is_tight : {false, true}) {
          // The cache has room for 64 tokens: requests with draft tokens are preempted.
          const int64_t block = (int64_t{1} << 22) / plain.blocks(), few = 4 / layout.sequence.size;
          const infer::EngineOptions options{.cache_bytes = is_tight ? block * few : int64_t{1} << 22,
                                             .block_tokens = 16,
                                             .step_tokens = is_tight ? 11 : 512,
                                             .draft_tokens = is_tight ? 5 : 8};
          infer::Engine engine(model, options);
          EXPECT_EQ(answers_of(engine, requests), want) << seed << " " << is_tight;
          EXPECT_GT(engine.draft_counts().accepted, 20);
          EXPECT_LT(engine.draft_counts().accepted, engine.draft_counts().proposed);
          if (is_tight && layout.sequence.size == 1) EXPECT_GT(engine.counts().preempted, 0);
        }
      }
    });
}

/// Returns the log-probabilities of the tokens of a forced completion, so that all caches hold the same sequence.
std::vector<double> logarithms(distributed::DistributedModel& model, const EngineOptions& options) {
  Request request{.prompt = {65, 66, 67, 68, 69, 70, 71}, .options = {.max_tokens = 20, .logprobs = 0}};
  request.options.sampling.logit_bias[77] = 1000;
  infer::Engine engine(model, options);
  std::vector<double> all;
  engine.add(request, [&](const Event& event) { all.push_back(event.log_probabilities->own); });
  while (engine.has_work()) engine.step();
  return all;
}

TEST_P(Engine, HoldsMoreTokensInAQuantizedCache) {
  const std::vector<Request> requests = some_requests(10, 4);
  for (const distributed::ParallelConfig& layout :
       {distributed::ParallelConfig{}, distributed::ParallelConfig{.tensor = {.size = 2}},
        distributed::ParallelConfig{.sequence = {.size = 2}}})
    with_model(layout, {}, [&](distributed::DistributedModel& model, bool) {
      const EngineOptions plain{.cache_bytes = 1 << 20, .block_tokens = 16};
      const std::vector<double> exact = logarithms(model, plain);
      double last = 0;
      for (const at::ScalarType type : {at::kChar, at::kFloat8_e4m3fn}) {
        EngineOptions coded = plain;
        coded.cache_dtype = type;
        // A head has 16 values of 4 bytes, or of 1 byte with one scale.
        EXPECT_NEAR(infer::Engine(model, coded).blocks() * (16 + 4) / 16, infer::Engine(model, plain).blocks() * 4, 1);
        const std::vector<double> near = logarithms(model, coded);
        double most = 0;
        for (size_t i = 0; i < exact.size(); ++i) most = std::max(most, std::abs(near[i] - exact[i]));
        EXPECT_GT(most, last);  // int8 is more accurate than fp8
        EXPECT_LT(most, type == at::kChar ? 1 : 10);
        last = most;
        std::vector<Tokens> want;
        for (const Request& request : requests) {
          infer::Engine alone(model, coded);
          want.push_back(answers_of(alone, {request})[0]);
        }
        infer::Engine together(model, coded);
        EXPECT_EQ(answers_of(together, requests), want);
      }
    });
}

TEST_P(Engine, ReportsTheLogProbabilitiesOfTraining) {
  with_model({}, at::kDouble, [&](distributed::DistributedModel& model, bool) {
    infer::Engine engine(model, {.cache_bytes = 1 << 21, .block_tokens = 16, .step_tokens = 7});
    const Request asked{
        .prompt = {65, 66, 67, 68, 69},
        .options = {
            .max_tokens = 12, .sampling = {.temperature = 1.5, .top_k = 40, .repetition_penalty = 1.3}, .logprobs = 1}};
    std::vector<Event> events;
    engine.add(asked, into(events));
    engine.add({.prompt = {70, 71}, .options = {.max_tokens = 9}}, into(events));
    std::vector<int64_t> text = asked.prompt;
    double sum = 0;
    while (engine.has_work())
      for (const Event& event : stepped(engine, events)) {
        EXPECT_EQ(event.log_probabilities.has_value(), event.id == 0);
        if (event.id != 0) continue;
        text.push_back(event.token);
        sum += event.log_probabilities->own;
        EXPECT_GE(event.log_probabilities->best.at(0).second, event.log_probabilities->own);
      }
    const double prompt = likelihood(model, {asked.prompt}, {}).sum, all = likelihood(model, {text}, {}).sum;
    EXPECT_NEAR(-sum, all - prompt, 1e-10 * all);
  });
}

TEST_P(Engine, RefusesInvalidRequests) {
  with_model({}, {}, [&](distributed::DistributedModel& model, bool) {
    const auto refusal = [&](const Request& request) {
      return test::thrown_message(
          [&] { infer::Engine(model, {.cache_bytes = bytes_of_block(model, 16), .block_tokens = 16}).add(request); });
    };
    EXPECT_THAT(refusal({}), testing::HasSubstr("must have at least one token"));
    EXPECT_THAT(refusal({.prompt = {100000}}), testing::HasSubstr("vocabulary"));
    EXPECT_THAT(refusal({.prompt = Tokens(33, 65)}), testing::HasSubstr("32 positions"));
    EXPECT_THAT(refusal({.prompt = Tokens(10, 65), .options = {.max_tokens = 8}}),
                testing::HasSubstr("got 10 + 8 tokens, capacity 17 with the last one, which is not stored"));
    EXPECT_THAT(test::thrown_message([&] { infer::Engine(model, {.cache_bytes = 100}); }),
                testing::HasSubstr("must hold a block"));
    EXPECT_THAT(test::thrown_message([&] { infer::Engine(model, {.block_tokens = 24}); }),
                testing::HasSubstr("multiple of 16"));
  });
}

INSTANTIATE_TEST_SUITE_P(Models, Engine, testing::Values("gpt2-tiny", "llama-tiny"),
                         [](const auto& info) { return info.param.substr(0, info.param.find('-')); });

}  // namespace
}  // namespace colossal::infer::engine_test
