// Delivery of events: each caller of an engine gets its own events, for any actions of the other callers.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/infer/generate.h"
#include "colossal/run/saved_model.h"
#include "infer/engine_answers.h"
#include "support/generated_text.h"
#include "support/thrown_message.h"

namespace colossal::infer::engine_events_test {
namespace {

using engine_test::into;
using engine_test::Tokens;
using test::thrown_message;
using testing::HasSubstr;

class EngineEvents : public testing::Test {
 protected:
  void with_model(const std::function<void(distributed::DistributedModel&)>& work,
                  const std::string& name = "llama-tiny") {
    test::write_model(folder, name);
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
      const run::SavedModel saved =
          run::load_model(folder / "hf", mesh, {}, at::kCPU, {.tokenizer = "none", .packing = nn::WeightPacking{}});
      work(*saved.model);
    });
  }

  const EngineOptions small{.cache_bytes = 1 << 20, .block_tokens = 16};
  test::TemporaryFolder folder;
};

Request request_of(int64_t first, int64_t max_tokens) {
  return {.prompt = {first, first + 1, first + 2}, .options = {.max_tokens = max_tokens}};
}

/// A caller that checks that it gets only its own events.
struct Caller {
  int64_t id = -1;
  Tokens tokens;
  FinishReason finish_reason = FinishReason::None;

  void add(Engine& engine, const Request& request) {
    id = engine.add(request, [this](const Event& event) {
      EXPECT_EQ(event.id, id);
      EXPECT_EQ(finish_reason, FinishReason::None) << "nothing comes after the end";
      if (event.is_answer()) tokens.push_back(event.token);
      finish_reason = event.finish_reason;
    });
  }
};

TEST_F(EngineEvents, ReachTheirCallerWhenAnotherCancels) {
  with_model([&](distributed::DistributedModel& model) {
    const Tokens want = generate(model, request_of(70, 9)), other = generate(model, request_of(80, 9));
    for (const bool alone : {false, true})
      for (const int64_t draft_tokens : {0, 3}) {
        EngineOptions options = small;
        options.alone = alone, options.draft_tokens = alone ? 0 : draft_tokens;
        Engine engine(model, options);
        Caller first, cancelled, last, dropped;
        cancelled.add(engine, request_of(80, 9));
        first.add(engine, request_of(70, 9));
        dropped.add(engine, request_of(80, 9));
        last.add(engine, request_of(80, 9));
        engine.step(), engine.step();
        engine.cancel(cancelled.id);
        engine.drop(dropped.id);
        const size_t heard = cancelled.tokens.size(), before = dropped.tokens.size();
        while (engine.has_work()) engine.step();
        EXPECT_EQ(first.tokens, want);
        EXPECT_EQ(last.tokens, other);
        EXPECT_EQ(cancelled.finish_reason, FinishReason::Cancelled);
        EXPECT_EQ(cancelled.tokens.size(), heard);
        EXPECT_EQ(dropped.finish_reason, FinishReason::None);
        EXPECT_EQ(dropped.tokens.size(), before);
        EXPECT_THAT(thrown_message([&] { engine.cancel(first.id); }), HasSubstr("unknown request"));
      }
  });
}

TEST_F(EngineEvents, NameTheEndTokenAndItsLogProbability) {
  with_model([&](distributed::DistributedModel& model) {
    const Tokens whole = generate(model, request_of(70, 6));
    for (const bool alone : {false, true}) {
      EngineOptions options = small;
      options.alone = alone;
      Engine engine(model, options);
      Request request = request_of(70, 6);
      request.end_ids = {whole.back()}, request.options.logprobs = 1;
      std::vector<Event> events;
      engine.add(request, into(events));
      while (engine.has_work()) engine.step();
      ASSERT_FALSE(events.empty());
      EXPECT_EQ(events.back().finish_reason, FinishReason::AtEnd);
      EXPECT_EQ(events.back().token, whole.back());
      EXPECT_FALSE(events.back().is_answer());
      ASSERT_TRUE(events.back().log_probabilities.has_value());
      EXPECT_EQ(events.back().log_probabilities->best.at(0).first, whole.back());
      EXPECT_EQ(events.back().log_probabilities->best.at(0).second, events.back().log_probabilities->own);
      request.options.logprobs = -1;
      const Tokens answer = generate(model, request);
      EXPECT_EQ(std::find(answer.begin(), answer.end(), whole.back()), answer.end()) << "an end token is no answer";
    }
  });
}

TEST_F(EngineEvents, AllowAddCancelAndDropDuringDelivery) {
  with_model([&](distributed::DistributedModel& model) {
    EngineOptions options = small;
    options.draft_tokens = 4;  // several events of a request in one step
    Engine engine(model, options);
    const auto repeated = [](int64_t max_tokens) {
      Request request{.prompt = Tokens(8, 98), .options = {.max_tokens = max_tokens}};
      request.options.sampling.logit_bias[98] = 1000;
      return request;
    };
    int64_t heard = 0;
    std::vector<Event> cancelled, added;
    engine.add(repeated(20), [&](const Event& event) {
      if (++heard == 3) engine.drop(event.id);
    });
    engine.add(repeated(20), [&](const Event& event) {
      cancelled.push_back(event);
      if (cancelled.size() == 3) engine.cancel(event.id);
      if (cancelled.size() == 1) engine.add(request_of(70, 2), into(added));
    });
    const int64_t last = engine.add(repeated(5));
    while (engine.has_work()) engine.step();
    EXPECT_EQ(heard, 3);
    ASSERT_EQ(cancelled.size(), 4U);
    EXPECT_EQ(cancelled.back().finish_reason, FinishReason::Cancelled);
    EXPECT_EQ(cancelled.back().token, -1);
    ASSERT_EQ(added.size(), 2U);
    EXPECT_EQ(added[0].id, last + 1);
    EXPECT_GT(engine.draft_counts().accepted, 0);
    engine.add(request_of(70, 2), [&](const Event&) { engine.step(); });
    EXPECT_THAT(thrown_message([&] { engine.step(); }), HasSubstr("step() must not be called by a function"));
  });
}

TEST_F(EngineEvents, SurviveAThrowingCaller) {
  with_model([&](distributed::DistributedModel& model) {
    const Tokens want = generate(model, request_of(80, 5));
    Engine engine(model, small);
    int64_t thrown = 0;
    engine.add(request_of(70, 5), [&](const Event&) {
      ++thrown;
      throw Error("caller", "enough");
    });
    Caller other;
    other.add(engine, request_of(80, 5));
    while (engine.has_work()) EXPECT_EQ(thrown_message([&] { engine.step(); }), thrown < 5 ? "[caller] enough" : "");
    EXPECT_EQ(thrown, 5);
    EXPECT_EQ(other.tokens, want);
  });
}

/// Fails at the second token.
class SecondFails final : public TokenConstraint {
 public:
  at::Tensor allowed(int64_t vocabulary) override { return at::ones({vocabulary}, at::kBool); }
  void accept(int64_t) override { require(calls_++ == 0, "constraint", "no second token fits"); }
  std::shared_ptr<TokenConstraint> copy() const override { return std::make_shared<SecondFails>(*this); }

 private:
  int calls_ = 0;
};

TEST_F(EngineEvents, EndOnlyTheFailedRequest) {
  with_model([&](distributed::DistributedModel& model) {
    const Tokens want = generate(model, request_of(80, 5));
    EngineOptions options = small;
    options.alone = true;
    Engine engine(model, options);
    Request failing = request_of(70, 5);
    failing.constraint = std::make_shared<SecondFails>();
    std::vector<Event> events;
    engine.add(failing, into(events));
    Caller other;
    other.add(engine, request_of(80, 5));
    while (engine.has_work()) engine.step();
    ASSERT_EQ(events.size(), 2U);
    EXPECT_EQ(events[1].finish_reason, FinishReason::Failed);
    EXPECT_EQ(events[1].error, "no second token fits");
    EXPECT_EQ(other.tokens, want);
    failing.constraint = std::make_shared<SecondFails>();
    EXPECT_EQ(thrown_message([&] { generate(model, failing); }), "[generate] no second token fits");
  });
}

TEST_F(EngineEvents, EqualTheBatchingEngineIfAlone) {
  with_model([&](distributed::DistributedModel& model) {
    std::vector<Request> requests;
    for (int64_t i = 0; i < 6; ++i) {
      requests.push_back(request_of(60 + 5 * i, i == 2 ? 0 : 20 + 10 * i));  // the later ones end at the last position
      if (i % 2)
        requests.back().options.sampling = {.temperature = 1, .top_k = 9, .seed = i, .repetition_penalty = 1.3};
      requests.back().options.logprobs = 2;
    }
    std::vector<std::vector<Event>> together(6), alone(6);
    for (auto* events : {&together, &alone}) {
      EngineOptions options = small;
      options.alone = events == &alone;
      Engine engine(model, options);
      for (size_t i = 0; i < 6; ++i) engine.add(requests[i], into((*events)[i]));
      while (engine.has_work()) engine.step();
    }
    for (size_t i = 0; i < 6; ++i) {
      ASSERT_EQ(alone[i].size(), together[i].size()) << i;
      for (size_t t = 0; t < alone[i].size(); ++t) {
        EXPECT_EQ(alone[i][t].token, together[i][t].token);
        EXPECT_EQ(alone[i][t].finish_reason, together[i][t].finish_reason);
        if (i == 2) continue;
        EXPECT_EQ(alone[i][t].log_probabilities->own, together[i][t].log_probabilities->own) << "packed weights";
        EXPECT_EQ(alone[i][t].log_probabilities->best, together[i][t].log_probabilities->best);
      }
    }
  });
}

TEST_F(EngineEvents, RefuseUnusedOptionsIfAlone) {
  const auto refusals = [&](const std::string& who) {
    return [who](distributed::DistributedModel& model) {
      const auto refused = [&](const EngineOptions& options) {
        return thrown_message([&] { Engine(model, options); });
      };
      EXPECT_EQ(refused({.draft_tokens = 4, .alone = true}),
                "[generate] " + who + " does not use draft_tokens: leave out --draft-tokens");
      EXPECT_EQ(refused({.cache_dtype = at::kChar, .draft_tokens = 1, .draft = &model, .alone = true}),
                "[generate] " + who +
                    " does not use draft_tokens, draft and kv_cache_dtype: leave out --draft-tokens, --draft and "
                    "--kv-cache-dtype");
      Engine engine(model, {.alone = true});
      const auto of_request = [&](const GenerationOptions& options) {
        return thrown_message([&] { engine.add({.prompt = {65}, .options = options}); });
      };
      EXPECT_EQ(of_request({.attention_sinks = 2}),
                "[generate] " + who + " does not use attention_sinks: leave out --attention-sinks");
      EXPECT_EQ(of_request({.prompt_logprobs = 0}),
                "[generate] " + who + " does not use prompt_logprobs: leave out --prompt-logprobs");
      EXPECT_EQ(of_request({.max_tokens = -1}), "") << "as 0";
      EXPECT_THAT(of_request({.sampling = {.top_p = 2}}), HasSubstr("[sampling]"));
      EXPECT_THAT(thrown_message([&] { engine.add({}); }),
                  HasSubstr("[generate] the prompt must have at least one token"));
      EXPECT_THAT(thrown_message([&] { engine.add({.prompt = Tokens(40, 65)}); }),
                  HasSubstr("the prompt must fit the model's positions: got 40 tokens, 32 positions"));
    };
  };
  with_model(refusals("a request that runs alone"));
}

TEST_F(EngineEvents, SupportModelsWithAnEncoder) {
  with_model(
      [&](distributed::DistributedModel& model) {
        EXPECT_THAT(thrown_message([&] { Engine engine(model, small); }), HasSubstr("give it one prompt"));
        Engine engine(model, {.alone = true});
        EXPECT_EQ(thrown_message([&] { engine.add({.prompt = {65}, .options = {.attention_sinks = 2}}); }),
                  "[generate] t5 does not use attention_sinks: leave out --attention-sinks");
        Caller first, second;
        first.add(engine, {.prompt = {65, 66}, .options = {.max_tokens = 3}, .prompt_end = 1});
        second.add(engine, {.prompt = {65, 66, 1}, .options = {.max_tokens = 100}});
        while (engine.has_work()) engine.step();
        EXPECT_EQ(first.tokens.size(), 3U);
        EXPECT_EQ(first.finish_reason, FinishReason::AtLength);
        ASSERT_EQ(second.tokens.size(), 29U) << "32 positions, 3 of them of the source";
        EXPECT_EQ(second.finish_reason, FinishReason::AtPositions);
        EXPECT_EQ(first.tokens, Tokens(second.tokens.begin(), second.tokens.begin() + 3)) << "the same source";
      },
      "t5-tiny");
}

}  // namespace
}  // namespace colossal::infer::engine_events_test
