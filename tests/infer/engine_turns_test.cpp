// Clients, keys and shared prompts of an engine with a model: what callers see of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "colossal/comm/run_ranks.h"
#include "colossal/infer/generate.h"
#include "colossal/run/saved_model.h"
#include "infer/engine_answers.h"
#include "support/generated_text.h"
#include "support/thrown_message.h"

namespace colossal::infer::engine_turns_test {
namespace {

using engine_test::into;
using engine_test::Tokens;
using test::thrown_message;
using testing::HasSubstr;

class EngineTurns : public testing::Test {
 protected:
  void with_model(const std::function<void(distributed::DistributedModel&)>& work) {
    test::write_model(folder, "llama-tiny");
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

Request request_of(int64_t first, int64_t length, int64_t max_tokens, const std::string& client = "") {
  Request request{.options = {.max_tokens = max_tokens}, .client = client};
  for (int64_t i = 0; i < length; ++i) request.prompt.push_back((first + i) % 90);
  return request;
}

TEST_F(EngineTurns, LeaveCompletionsUnchanged) {
  with_model([&](distributed::DistributedModel& model) {
    std::vector<Request> requests;
    std::vector<Tokens> expected;
    for (int64_t i = 0; i < 12; ++i) {
      requests.push_back(request_of(7 * i, 3 + 5 * (i % 4), 6, i % 3 == 0 ? "a" : "b"));
      expected.push_back(generate(model, requests.back()));
    }
    for (const bool alone : {false, true}) {
      EngineOptions options = small;
      options.alone = alone;
      if (!alone) options.step_tokens = 9, options.max_running = 3;  // clients wait for room and preempt
      Engine engine(model, options);
      EXPECT_EQ(engine_test::answers_of(engine, requests), expected);
      EXPECT_EQ(engine.counts().preempted > 0, !alone);
      EXPECT_EQ(engine.load().blocks_used, 0);
    }
  });
}

TEST_F(EngineTurns, CountRequestsAndBlocks) {
  with_model([&](distributed::DistributedModel& model) {
    EngineOptions options = small;
    options.max_running = 2, options.max_waiting = 2;
    Engine engine(model, options);
    std::vector<Event> events;
    for (int64_t i = 0; i < 2; ++i) engine.add(request_of(10 * i, 20, 2, "a"), into(events));
    EXPECT_EQ(engine.load().waiting, 2);
    EXPECT_THAT(thrown_message([&] { engine.add(request_of(1, 2, 3)); }), HasSubstr("the queue is full"));
    engine.step();
    EXPECT_EQ(engine.load().waiting, 0);
    EXPECT_EQ(engine.load().running, 2);
    EXPECT_EQ(engine.load().blocks_used, 4) << "two blocks of 16 tokens each";
    engine.add(request_of(50, 3, 2, "a"), into(events));
    EXPECT_EQ(engine.load().waiting, 1);
    while (engine.has_work()) engine.step();
    EXPECT_EQ(engine.load().waiting, 0);
    EXPECT_EQ(engine.load().running, 0);
    EXPECT_EQ(engine.load().blocks_used, 0) << "free blocks that keep prefixes are not used";
  });
}

TEST_F(EngineTurns, NameTheTokensFoundUnderTheSameKey) {
  with_model([&](distributed::DistributedModel& model) {
    Engine engine(model, small);
    const auto found_by = [&](const std::string& key) {
      std::vector<Event> events;
      Request request = request_of(3, 20, 2);
      request.cache_key = key;
      engine.add(request, into(events));
      while (engine.has_work()) engine.step();
      EXPECT_EQ(events.size(), 2u);
      for (const Event& event : events) EXPECT_EQ(event.found, events.front().found);
      return events.front().found;
    };
    EXPECT_EQ(found_by("a"), 0);
    EXPECT_EQ(found_by("b"), 0);
    EXPECT_EQ(found_by(""), 0);
    EXPECT_EQ(found_by("a"), 16);
    EXPECT_EQ(found_by("b"), 16);
    EXPECT_EQ(found_by(""), 16);
  });
}

TEST_F(EngineTurns, ReadThePromptOfSeveralCompletionsOnce) {
  with_model([&](distributed::DistributedModel& model) {
    Request request = request_of(3, 20, 5);
    request.options.sampling.temperature = 1;
    std::vector<Tokens> expected;
    for (int64_t i = 0; i < 3; ++i) {
      request.options.sampling.seed = i;
      expected.push_back(generate(model, request));
    }
    for (const bool alone : {false, true}) {
      EngineOptions options = small;
      options.alone = alone;
      Engine engine(model, options);
      std::vector<Tokens> answers(3);
      std::vector<int64_t> found(3);
      int64_t first = -1;
      for (size_t i = 0; i < 3; ++i) {
        request.options.sampling.seed = static_cast<int64_t>(i), request.after = first;
        const int64_t id = engine.add(request, [&, i](const Event& event) {
          answers[i].push_back(event.token);
          found[i] = event.found;
        });
        if (i == 0) first = id;
      }
      while (engine.has_work()) engine.step();
      EXPECT_EQ(answers, expected);
      EXPECT_EQ(found, alone ? std::vector<int64_t>(3) : (std::vector<int64_t>{0, 16, 16}));
    }
  });
}

TEST_F(EngineTurns, RefuseToStartAfterALaterRequest) {
  with_model([&](distributed::DistributedModel& model) {
    Engine engine(model, small);
    Request request = request_of(3, 4, 5);
    request.after = 0;
    EXPECT_THAT(thrown_message([&] { engine.add(request); }),
                HasSubstr("after must be the id of an earlier request, or -1: got 0"));
    request.after = -2;
    EXPECT_THAT(thrown_message([&] { engine.add(request); }), HasSubstr("got -2"));
  });
}

}  // namespace
}  // namespace colossal::infer::engine_turns_test
