// The loop of a replica on one rank and on two: answers, cancellations, limits, embeddings between steps, errors.
#include "colossal/serve/engine_loop.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/run/saved_model.h"
#include "infer/engine_answers.h"
#include "support/generated_text.h"
#include "support/ranks_values.h"

namespace colossal::serve::engine_loop_test {
namespace {

using infer::Event;
using infer::FinishReason;
using infer::engine_test::Tokens;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const infer::EngineOptions kSmall{.cache_bytes = 1 << 20, .block_tokens = 16};
const std::vector<std::vector<int64_t>> kTexts{{5, 6, 7}, {8}, {9, 10, 11, 12, 13}, {5, 6, 7}};

/// One rank with a model.
struct Rank {
  comm::World& world;
  comm::Mesh& mesh;
  const run::SavedModel& saved;
  infer::SchemaCache& schemas;

  EngineLoopOptions options(infer::Engine& engine) const {
    return {.engine = &engine, .schemas = &schemas, .end_ids = saved.end_ids};
  }
  bool is_first() const { return world.rank() == 0; }
};

/// Runs tests on as many ranks as the parameter says, which share each matrix.
class EngineLoopOn : public testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() {
    folder = std::make_unique<test::TemporaryFolder>();
    test::write_model(*folder, "llama-tiny");
  }
  static void TearDownTestSuite() { folder.reset(); }

  void on_ranks(const std::function<void(Rank&)>& work) {
    distributed::ParallelConfig layout;
    layout.tensor.size = GetParam();
    comm::run_ranks(GetParam(), [&](comm::World& world) {
      comm::Mesh mesh(world, layout.axes());
      const run::SavedModel saved = run::load_model(*folder / "hf", mesh, layout, at::kCPU,
                                                    {.tokenizer = "bytes", .packing = nn::WeightPacking{}});
      infer::SchemaCache schemas(*saved.tokenizer, saved.end_ids);
      Rank rank{world, mesh, saved, schemas};
      work(rank);
    });
  }

  static inline std::unique_ptr<test::TemporaryFolder> folder;
};
INSTANTIATE_TEST_SUITE_P(Ranks, EngineLoopOn, testing::Values(1, 2));

/// What a caller heard of one generation.
struct Heard {
  Tokens tokens;
  FinishReason finish_reason = FinishReason::None;
  std::string error;
  int64_t found = 0;

  infer::OnEvent listener() {
    return [this](const Event& event) {
      EXPECT_EQ(finish_reason, FinishReason::None) << "no event follows the last one";
      if (event.is_answer()) tokens.push_back(event.token);
      finish_reason = event.finish_reason, error = event.error, found = event.found;
    };
  }
  bool has_ended() const { return finish_reason != FinishReason::None; }
};

Generation generation_of(int64_t first, int64_t max_tokens) {
  return {.prompt = {first, first + 1, first + 2}, .options = {.max_tokens = max_tokens}, .ignores_end = true};
}

Generation heard_by(Heard& heard, Generation generation) {
  generation.on_event = heard.listener();
  return generation;
}

std::vector<Generation> one(Generation generation) {
  std::vector<Generation> list;
  list.push_back(std::move(generation));
  return list;
}

/// Returns the tokens that an engine of its own generates.
Tokens want_of(const Rank& rank, const Generation& generation) {
  infer::Engine engine(*rank.saved.model, kSmall);
  return infer::engine_test::answers_of(engine,
                                        {{.prompt = generation.prompt,
                                          .options = generation.options,
                                          .constraint = rank.schemas.constraint(generation.options.json_schema)}})
      .at(0);
}

TEST_P(EngineLoopOn, AnswersThreadsLikeTheEngine) {
  on_ranks([](Rank& rank) {
    std::vector<Generation> generations;
    for (int64_t i = 0; i < 9; ++i) {
      generations.push_back(generation_of(60 + i, 4 + i));
      generations.back().options.sampling = {.temperature = i % 2 ? 1.0 : 0.0, .seed = i};
      generations.back().client = std::to_string(i % 3);
    }
    generations[8].options = {.max_tokens = 25, .json_schema = R"({"enum": ["a", 12]})"};
    generations[8].ignores_end = false;
    std::vector<Tokens> want;
    for (size_t i = 0; i < 8; ++i) want.push_back(want_of(rank, generations[i]));
    infer::Engine engine(*rank.saved.model, kSmall);
    EngineLoop loop(rank.world, rank.mesh, rank.options(engine));
    std::vector<Heard> heard(9);
    std::vector<std::thread> threads;
    std::atomic<int> left = 3;
    for (size_t t = 0; t < 3 && rank.is_first(); ++t)
      threads.emplace_back([&, t] {
        for (size_t i = t; i < 9; i += 3) {  // its next request when it has the answer to the last
          const auto ended = std::make_shared<std::promise<void>>();
          Generation generation = generations[i];
          generation.on_event = [ended, listener = heard[i].listener()](const Event& event) {
            listener(event);
            if (event.finish_reason != FinishReason::None) ended->set_value();
          };
          EXPECT_TRUE(loop.add(one(std::move(generation))).has_value());
          ended->get_future().wait();
        }
        if (--left == 0) loop.end();
      });
    loop.run({});
    for (std::thread& thread : threads) thread.join();
    if (!rank.is_first()) return;
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(heard[i].tokens, want[i]) << i;
      EXPECT_EQ(heard[i].finish_reason, FinishReason::AtLength);
    }
    EXPECT_EQ(heard[8].finish_reason, FinishReason::AtEnd) << heard[8].error;
    const auto value = nlohmann::json::parse(rank.saved.tokenizer->decode(heard[8].tokens));
    EXPECT_TRUE(value == "a" || value == 12) << value;
    int64_t generated = 0;
    for (const Heard& own : heard) generated += static_cast<int64_t>(own.tokens.size());
    EXPECT_EQ(loop.load().generated_tokens, generated);
  });
}

TEST_P(EngineLoopOn, ReadsThePromptOfChoicesOnce) {
  on_ranks([](Rank& rank) {
    std::vector<Generation> choices(3);
    for (int64_t i = 0; i < 3; ++i) {
      choices[i] = generation_of(60, 5);
      while (choices[i].prompt.size() < 20) choices[i].prompt.push_back(7);
      choices[i].options.sampling = {.temperature = 1, .seed = i};
      choices[i].after = i == 0 ? -1 : 0;
    }
    std::vector<Tokens> want;
    for (const Generation& choice : choices) want.push_back(want_of(rank, choice));
    infer::Engine engine(*rank.saved.model, kSmall);
    EngineLoopOptions options = rank.options(engine);
    options.first_ticket = 2, options.ticket_stride = 4;
    EngineLoop loop(rank.world, rank.mesh, options);
    std::vector<Heard> heard(4);
    if (rank.is_first()) {
      for (size_t i = 0; i < 3; ++i) choices[i].on_event = heard[i].listener();
      EXPECT_EQ(loop.add(std::move(choices)), 2);
      EXPECT_EQ(loop.add(one(heard_by(heard[3], generation_of(30, 3)))), 14) << "after tickets 2, 6 and 10";
    }
    loop.run([&] {
      if (std::all_of(heard.begin(), heard.end(), [](const Heard& own) { return own.has_ended(); })) loop.end();
    });
    if (!rank.is_first()) return;
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(heard[i].tokens, want[i]) << i;
      EXPECT_EQ(heard[i].found, i == 0 ? 0 : 16) << "the full block of the prompt";
    }
    EXPECT_EQ(loop.load().prompt_tokens, 3 * 20 + 3);
    EXPECT_EQ(loop.load().found_tokens, 2 * 16);
    EXPECT_EQ(loop.load().generated_tokens, 3 * 5 + 3);
  });
}

// Two requests of a cache for one: the first one reads its prompt in two steps and then answers, the other one waits.
TEST_P(EngineLoopOn, FreesBlocksOneStepAfterACancellation) {
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
TEST_P(EngineLoopOn, DeliversNoEventAfterACancellation) {
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
      if (heard == 3 && loop.load().running == 0) loop.end();
    });
    if (rank.is_first()) {
      EXPECT_EQ(heard, 3);
      EXPECT_GT(loop.load().generated_tokens, 3) << "the step had more events";
    }
    EXPECT_FALSE(engine.has_work());
  });
}

TEST_P(EngineLoopOn, EndsRequestsWithErrorsAlone) {
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

TEST_P(EngineLoopOn, TakesWorkUpToItsLimit) {
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
        for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(loop.add(several(heard[i], 1)).has_value());
        EXPECT_FALSE(loop.add(several(refused, 2)).has_value()) << "all choices of a request or none";
        EXPECT_TRUE(loop.add({.texts = kTexts, .on_vectors = [&](Vectors) { ++embedded; }}).has_value());
        EXPECT_FALSE(loop.add(several(refused, 1)).has_value());
        EXPECT_FALSE(loop.add({.texts = kTexts}).has_value());
        EXPECT_EQ(loop.load().waiting, 3);
      } else if (step == 1) {
        EXPECT_EQ(loop.load().waiting, 1) << "the engine runs one at a time";
        EXPECT_FALSE(loop.add(several(refused, 3)).has_value());
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

TEST_P(EngineLoopOn, ReturnsOnAllRanksAfterItsEnd) {
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

TEST_P(EngineLoopOn, EmbedsBetweenSteps) {
  on_ranks([](Rank& rank) {
    const Tokens want = want_of(rank, generation_of(60, 9));
    infer::Engine engine(*rank.saved.model, kSmall);
    infer::Embedder embedder(*rank.saved.model, {.normalize = true, .tokens_at_once = 5});
    const at::Tensor vectors = embedder.embed(kTexts);
    EngineLoopOptions options = rank.options(engine);
    options.embedder = &embedder;
    EngineLoop loop(rank.world, rank.mesh, options);
    Heard heard;
    std::vector<std::string> ended;
    bool begun = false;
    const auto add = [&](const std::string& name, std::vector<std::vector<int64_t>> texts, size_t steps) {
      return loop.add({.texts = std::move(texts), .on_vectors = [&, name, steps](Vectors own) {
                         EXPECT_EQ(own.error, "");
                         EXPECT_EQ(heard.tokens.size(), steps) << "generation goes on beside " << name;
                         ended.push_back(name);
                         ASSERT_EQ(own.rows.size(), name == "one" ? 1U : name == "none" ? 0U : 4U);
                         for (size_t i = 0; i < own.rows.size(); ++i) {
                           const auto place = name == "one" ? 3 : static_cast<int64_t>(i);  // alone in its row, as here
                           EXPECT_TRUE(at::equal(at::tensor(own.rows[i]), vectors[place])) << name << i;
                         }
                       }});
    };
    loop.run([&] {
      if (!std::exchange(begun, true)) {
        loop.add(one(heard_by(heard, generation_of(60, 9))));
        add("all", kTexts, 4);  // three rows of at most 5 tokens, in turns with the others
        const auto cancelled = add("cancelled", kTexts, 0);
        add("one", {kTexts[3]}, 2);
        add("none", {}, 0);
        loop.cancel(*cancelled);
      }
      if (heard.has_ended()) loop.end();
    });
    if (!rank.is_first()) return;
    EXPECT_THAT(ended, ElementsAre("none", "one", "all"));
    EXPECT_EQ(heard.tokens, want);
    EXPECT_EQ(loop.load().prompt_tokens, 3 + 12 + 3);
  });
}

TEST_P(EngineLoopOn, PollsWithoutStepsWhileIdle) {
  on_ranks([](Rank& rank) {
    infer::Engine engine(*rank.saved.model, kSmall);
    EngineLoop loop(rank.world, rank.mesh, rank.options(engine));
    const auto sent = [&] { return rank.world.traffic().total().calls; };
    const int64_t before = sent();
    Heard heard;
    int64_t polls = 0, after_work = 0, quiet = 0;
    loop.run([&] {
      if (++polls < 4) {
        EXPECT_EQ(sent(), before);
      } else if (polls == 4) {
        loop.add(one(heard_by(heard, generation_of(60, 2))));
      } else if (heard.has_ended() && quiet++ == 0) {
        after_work = sent();
      } else if (quiet == 4) {
        EXPECT_EQ(sent(), after_work);
        loop.end();
      }
    });
    if (rank.is_first()) {
      EXPECT_EQ(heard.tokens.size(), 2U);
    } else {
      EXPECT_EQ(polls, 0) << "only rank 0 polls";
    }
  });
}

// The last rank runs out of memory in a step, after rank 0 has queued more work.
TEST_P(EngineLoopOn, ReportsAnErrorOfAStepToAllWork) {
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
      int64_t passes = 0;  // two in each iteration of the loop: a step and a row of embeddings
      model.norm = [&, norm](const at::Tensor& x, const nn::ForwardContext& step) {
        const bool is_fourth_step = ++passes == 7, is_last = rank.world.rank() + 1 == rank.world.size();
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
  for (const Heard& own : heard) EXPECT_EQ(own.finish_reason, FinishReason::Failed);
  EXPECT_EQ(heard[0].tokens.size(), 3U);
  EXPECT_TRUE(heard[2].tokens.empty());
  const std::string named = GetParam() == 1 ? "[model] out of memory" : "rank 1";
  for (const std::string& message : {heard[0].error, heard[1].error, heard[2].error, embedding_error, queued_error})
    EXPECT_THAT(message, HasSubstr(named));
}

// Rank 0 has taken the work from its queue when it learns that the other rank is gone.
TEST_P(EngineLoopOn, ReportsALostRankToQueuedWork) {
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
  EXPECT_EQ(heard.finish_reason, FinishReason::Failed);
  EXPECT_THAT(heard.error, HasSubstr("rank 1"));
  EXPECT_EQ(embedding_error, heard.error);
}

}  // namespace
}  // namespace colossal::serve::engine_loop_test
