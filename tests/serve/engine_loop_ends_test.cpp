// How work of a loop ends: cancellations in each phase, a full queue, errors, and the end of the loop.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/nn/forward_context.h"
#include "serve/loop_ranks.h"
#include "support/thrown_message.h"

namespace colossal::serve::engine_loop_ends_test {
namespace {

using namespace loop_ranks;
using ::testing::HasSubstr;

class EngineLoopEndsOn : public LoopRanks {};
INSTANTIATE_TEST_SUITE_P(Ranks, EngineLoopEndsOn, testing::Values(1, 2));

// Two requests of a cache for one: the first one reads its prompt in two steps and then answers, the other one waits.
TEST_P(EngineLoopEndsOn, FreesBlocksOneStepAfterACancellation) {
  for (const std::string phase : {"queued", "waiting", "reading", "answering"})
    on_ranks([&](Rank& rank) {
      infer::EngineOptions small = kSmall;
      small.max_running = 1, small.step_tokens = 16;
      infer::Engine engine(*rank.saved.model, small);
      EngineLoop loop(rank.world, rank.mesh, rank.options(engine));
      Heard heard, other;
      Generation first = generation_of(60, 9);
      first.prompt.resize(20, 5);
      const Tokens want = want_of(rank, first);
      int64_t step = 0, cancelled_at = -1;
      std::optional<Ticket> ticket, waiting;
      const auto cancel = [&](Ticket which) { loop.cancel(which), loop.cancel(which), cancelled_at = step; };
      loop.run([&] {
        const ReplicaLoad load = loop.load();
        if (step == 0) {
          EXPECT_EQ(load.blocks, engine.blocks());
          ticket = loop.add(one(heard_by(heard, first)));
          waiting = loop.add(one(heard_by(other, generation_of(80, 2))));
          EXPECT_EQ(loop.load().waiting, 2);
          if (phase == "queued") {
            cancel(*waiting);
            EXPECT_EQ(loop.load().waiting, 1);
          }
        } else if (step == 1 && phase != "queued") {
          EXPECT_EQ(load.running, 1);
          EXPECT_EQ(load.waiting, 1);
          EXPECT_EQ(load.blocks_used, 1) << "16 of 20 tokens";
          EXPECT_TRUE(heard.tokens.empty());
          if (phase == "waiting") cancel(*waiting);
          if (phase == "reading") cancel(*ticket);
        } else if (step == 4 && phase == "answering") {
          EXPECT_EQ(heard.tokens.size(), 3U);
          cancel(*ticket);
        } else if (cancelled_at >= 0 && step == cancelled_at + 1) {
          EXPECT_EQ(load.waiting, 0) << phase;
          EXPECT_EQ(load.running, 1) << "the one that was not cancelled";
          EXPECT_EQ(load.blocks_used, phase == "waiting" ? 2 : 1) << phase;
        }
        ++step;
        if (load.waiting + load.running == 0 && step > 5) loop.end();
      });
      if (!rank.is_first()) return;
      const bool is_first_cancelled = phase == "reading" || phase == "answering";
      const Heard &cancelled = is_first_cancelled ? heard : other, &left = is_first_cancelled ? other : heard;
      EXPECT_EQ(cancelled.finish_reason, FinishReason::None) << phase;
      EXPECT_EQ(cancelled.tokens.size(), phase == "answering" ? 3U : 0U);
      EXPECT_EQ(left.finish_reason, FinishReason::AtLength) << phase;
      if (!is_first_cancelled) {
        EXPECT_EQ(heard.tokens, want);
      }
      EXPECT_EQ(loop.load().blocks_used, 0);
    });
}

// With draft tokens a step has several events of one generation.
TEST_P(EngineLoopEndsOn, DeliversNoEventAfterACancellation) {
  on_ranks([](Rank& rank) {
    infer::EngineOptions drafting = kSmall;
    drafting.draft_tokens = 4;
    infer::Engine engine(*rank.saved.model, drafting);
    EngineLoop loop(rank.world, rank.mesh, rank.options(engine));
    Generation generation{.prompt = Tokens(8, 98), .options = {.max_tokens = 20}};
    generation.options.sampling.logit_bias[98] = 1000;
    std::optional<Ticket> ticket;
    int64_t heard = 0, step = 0;
    generation.on_event = [&](const Event&) {
      if (++heard == 3) loop.cancel(*ticket);
    };
    loop.run([&] {
      if (step++ == 0) ticket = loop.add(one(generation));
      if (heard >= 3 && loop.load().running == 0) loop.end();
    });
    if (rank.is_first()) {
      EXPECT_EQ(heard, 3);
      EXPECT_GE(engine.draft_counts().accepted, 2) << "the second step had more events";
    }
    EXPECT_FALSE(engine.has_work());
  });
}

TEST_P(EngineLoopEndsOn, EndsRequestsWithErrorsAlone) {
  on_ranks([](Rank& rank) {
    const Tokens want = want_of(rank, generation_of(60, 6));
    infer::Engine engine(*rank.saved.model, kSmall);
    infer::Embedder embedder(*rank.saved.model, {});
    EngineLoopOptions options = rank.options(engine);
    options.embedder = &embedder;
    EngineLoop loop(rank.world, rank.mesh, options);
    Heard good, too_long, unknown, endless, late;
    std::string embedding_error;
    bool begun = false, added_late = false;
    loop.run([&] {
      if (!std::exchange(begun, true)) {
        Generation long_one = generation_of(60, 6), with_schema = generation_of(60, 6);
        long_one.prompt.resize(33, 5);
        with_schema.options.json_schema = R"({"$ref": "#"})";
        loop.add(one(heard_by(too_long, long_one)));
        loop.add(one(heard_by(good, generation_of(60, 6))));
        loop.add(one(heard_by(endless, with_schema)));
        loop.add(one(heard_by(unknown, generation_of(1 << 20, 6))));
        loop.add({.texts = {{1}, Tokens(33, 1)}, .on_vectors = [&](Vectors vectors) {
                    EXPECT_TRUE(vectors.rows.empty());
                    embedding_error = vectors.error;
                  }});
      } else if (good.has_ended() && !std::exchange(added_late, true)) {
        loop.add(one(heard_by(late, generation_of(60, 6))));
      }
      if (late.has_ended()) loop.end();
    });
    if (!rank.is_first()) return;
    for (const Heard* own : {&too_long, &endless, &unknown}) {
      EXPECT_EQ(own->finish_reason, FinishReason::Failed);
      EXPECT_TRUE(own->tokens.empty());
    }
    EXPECT_THAT(too_long.error, HasSubstr("the prompt must fit the model's positions: got 33 tokens, 32 positions"));
    EXPECT_THAT(endless.error, HasSubstr("a schema must allow a finite value"));
    EXPECT_THAT(unknown.error, HasSubstr("prompt ids must lie in the model's vocabulary"));
    EXPECT_THAT(embedding_error, HasSubstr("a text must fit the model's 32 positions: got 33 tokens"));
    EXPECT_EQ(good.tokens, want);
    EXPECT_EQ(late.tokens, want);
  });
}

TEST_P(EngineLoopEndsOn, TakesWorkUpToItsLimit) {
  on_ranks([](Rank& rank) {
    infer::EngineOptions small = kSmall;
    small.max_running = 1;
    infer::Engine engine(*rank.saved.model, small);
    infer::Embedder embedder(*rank.saved.model, {});
    EngineLoopOptions options = rank.options(engine);
    options.max_waiting = 3, options.embedder = &embedder;
    EngineLoop loop(rank.world, rank.mesh, options);
    std::vector<Heard> heard(3);
    Heard refused;
    const auto several = [](Heard& own, size_t count) {
      std::vector<Generation> list;
      for (size_t i = 0; i < count; ++i) list.push_back(heard_by(own, generation_of(60, 3)));
      return list;
    };
    int64_t step = 0, embedded = 0;
    loop.run([&] {
      if (step == 0) {
        EXPECT_FALSE(loop.add(several(refused, 4)).has_value());
        Generation first = generation_of(60, 3);
        first.on_event = [&, listener = heard[0].listener()](const Event& event) {
          listener(event);
          if (heard[0].tokens.size() > 1) return;
          EXPECT_EQ(loop.load().waiting, 3) << "until the step has ended";
          EXPECT_FALSE(loop.add(several(refused, 1)).has_value());
        };
        EXPECT_TRUE(loop.add(one(std::move(first))).has_value());
        EXPECT_TRUE(loop.add(several(heard[1], 1)).has_value());
        EXPECT_FALSE(loop.add(several(refused, 2)).has_value()) << "all choices of a request or none";
        EXPECT_TRUE(loop.add({.texts = kTexts, .on_vectors = [&](Vectors) { ++embedded; }}).has_value());
        EXPECT_FALSE(loop.add(several(refused, 1)).has_value());
        EXPECT_FALSE(loop.add({.texts = kTexts}).has_value());
        EXPECT_EQ(loop.load().waiting, 3);
      } else if (step == 1) {
        EXPECT_EQ(loop.load().waiting, 2) << "the engine runs one at a time";
        EXPECT_FALSE(loop.add(several(refused, 2)).has_value());
        EXPECT_TRUE(loop.add(several(heard[2], 1)).has_value());
      } else if (heard[2].has_ended()) {
        loop.end();
      }
      ++step;
    });
    if (!rank.is_first()) return;
    EXPECT_FALSE(refused.has_ended());
    EXPECT_TRUE(refused.tokens.empty());
    for (const Heard& own : heard) EXPECT_EQ(own.tokens.size(), 3U);
    EXPECT_EQ(embedded, 1);
  });
}

TEST_P(EngineLoopEndsOn, ReturnsOnAllRanksAfterItsEnd) {
  on_ranks([](Rank& rank) {
    infer::Engine engine(*rank.saved.model, kSmall);
    EngineLoop loop(rank.world, rank.mesh, rank.options(engine));
    Heard running, queued;
    bool begun = false;
    loop.run([&] {
      if (!std::exchange(begun, true)) loop.add(one(heard_by(running, generation_of(60, 20))));
      if (running.tokens.size() != 2) return;
      loop.add(one(heard_by(queued, generation_of(60, 20))));
      loop.end();
    });
    EXPECT_FALSE(engine.has_work()) << "an ended loop leaves nothing to the engine";
    if (!rank.is_first()) return;
    EXPECT_EQ(running.tokens.size(), 2U);
    EXPECT_FALSE(running.has_ended());
    EXPECT_FALSE(queued.has_ended());
    EXPECT_FALSE(loop.add(one(generation_of(60, 2))).has_value());
    loop.cancel(1);
    EXPECT_EQ(loop.load().waiting + loop.load().running, 0);
  });
}

// The last rank runs out of memory in a step, after rank 0 has queued more work.
TEST_P(EngineLoopEndsOn, ReportsAnErrorOfAStepToAllWork) {
  std::vector<Heard> heard(3);
  std::string embedding_error, queued_error;
  const std::string error = test::thrown_message([&] {
    on_ranks([&](Rank& rank) {
      infer::Engine engine(*rank.saved.model, kSmall);
      infer::Embedder embedder(*rank.saved.model, {.tokens_at_once = 1});
      EngineLoopOptions options = rank.options(engine);
      options.embedder = &embedder;
      EngineLoop loop(rank.world, rank.mesh, options);
      models::Model& model = rank.saved.model->decoding_model();
      const auto norm = model.norm;
      int64_t passes = 0;  // one in each iteration of the loop: a step, which reads one text
      model.norm = [&, norm](const at::Tensor& x, const nn::ForwardContext& step) {
        const bool is_fourth_step = ++passes == 4, is_last = rank.world.rank() + 1 == rank.world.size();
        if (is_fourth_step && rank.is_first()) {
          loop.add(one(heard_by(heard[2], generation_of(50, 9))));
          loop.add({.texts = kTexts, .on_vectors = [&](Vectors vectors) { queued_error = vectors.error; }});
        }
        require(!(is_fourth_step && is_last), "model", "out of memory");
        return norm(x, step);
      };
      bool begun = false;
      const auto poll = [&] {
        if (std::exchange(begun, true)) return;
        for (size_t i = 0; i < 2; ++i) loop.add(one(heard_by(heard[i], generation_of(60, 9))));
        loop.add({.texts = {{1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}},
                  .on_vectors = [&](Vectors vectors) { embedding_error = vectors.error; }});
      };
      try {
        loop.run(poll);
      } catch (...) {
        if (rank.is_first()) {
          EXPECT_FALSE(loop.add(one(generation_of(50, 9))).has_value());
          EXPECT_EQ(loop.load().waiting + loop.load().running, 0);
        }
        throw;
      }
    });
  });
  EXPECT_THAT(error, HasSubstr("[model] out of memory"));
  for (const Heard& own : heard) EXPECT_EQ(own.finish_reason, FinishReason::EngineEnded);
  EXPECT_EQ(heard[0].tokens.size(), 3U);
  EXPECT_TRUE(heard[2].tokens.empty());
  const std::string named = GetParam() == 1 ? "[model] out of memory" : "rank 1";
  for (const std::string& message : {heard[0].error, heard[1].error, heard[2].error, embedding_error, queued_error})
    EXPECT_THAT(message, HasSubstr(named));
}

// Rank 0 has taken the work from its queue when it learns that the other rank is gone.
TEST_P(EngineLoopEndsOn, ReportsALostRankToQueuedWork) {
  if (GetParam() == 1) GTEST_SKIP() << "there is no other rank";
  Heard heard;
  std::string embedding_error;
  const std::string error = test::thrown_message([&] {
    on_ranks([&](Rank& rank) {
      require(rank.is_first(), "test", "this rank is gone");
      infer::Engine engine(*rank.saved.model, kSmall);
      EngineLoop loop(rank.world, rank.mesh, rank.options(engine));
      int64_t polls = 0;
      loop.run([&] {
        if (++polls != 3) return;
        loop.add(one(heard_by(heard, generation_of(60, 9))));
        loop.add({.texts = kTexts, .on_vectors = [&](Vectors vectors) { embedding_error = vectors.error; }});
      });
    });
  });
  EXPECT_THAT(error, HasSubstr("this rank is gone"));
  EXPECT_EQ(heard.finish_reason, FinishReason::EngineEnded);
  EXPECT_THAT(heard.error, HasSubstr("rank 1"));
  EXPECT_EQ(embedding_error, heard.error);
}

}  // namespace
}  // namespace colossal::serve::engine_loop_ends_test
