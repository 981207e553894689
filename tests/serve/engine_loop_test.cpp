// The loop of a replica on one rank and on two: answers, choices, embeddings between steps, idle times.
#include "colossal/serve/engine_loop.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <limits>
#include <memory>
#include <thread>

#include "colossal/serve/embedding_work.h"
#include "serve/loop_ranks.h"
#include "support/thrown_message.h"

namespace colossal::serve::engine_loop_test {
namespace {

using namespace loop_ranks;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class EngineLoopOn : public LoopRanks {};
INSTANTIATE_TEST_SUITE_P(Ranks, EngineLoopOn, testing::Values(1, 2));

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
  });
}

TEST_P(EngineLoopOn, ReadsThePromptOfChoicesOnce) {
  on_ranks([](Rank& rank) {
    std::vector<Generation> choices(4, generation_of(60, 5));
    choices[0].prompt = {30, 31, 32};  // another prompt of the same request
    for (int64_t i = 1; i < 4; ++i) {
      choices[i].prompt.resize(20, 7);
      choices[i].options.sampling = {.temperature = 1, .seed = i};
      choices[i].after = i == 1 ? -1 : 1;
    }
    std::vector<Tokens> want;
    for (const Generation& choice : choices) want.push_back(want_of(rank, choice));
    infer::Engine engine(*rank.saved.model, kSmall);
    EngineLoop loop(rank.world, rank.mesh, rank.options(engine));
    std::vector<Heard> heard(5);
    if (rank.is_first()) {
      for (size_t i = 0; i < 4; ++i) choices[i].on_event = heard[i].listener();
      EXPECT_EQ(loop.add(std::move(choices)), 1);
      EXPECT_EQ(loop.add(one(heard_by(heard[4], generation_of(40, 3)))), 5) << "after tickets 1 to 4";
    }
    loop.run([&] {
      if (std::all_of(heard.begin(), heard.end(), [](const Heard& own) { return own.has_ended(); })) loop.end();
    });
    if (!rank.is_first()) return;
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(heard[i].tokens, want[i]) << i;
      EXPECT_EQ(heard[i].found, i < 2 ? 0 : 16) << "the full block of the prompt";
    }
    EXPECT_EQ(engine.counts().prompt_tokens, 3 + 3 * 20 + 3);
    EXPECT_EQ(engine.counts().found_tokens, 2 * 16);
  });
}

TEST_P(EngineLoopOn, CompilesSchemasAsideOnAllRanks) {
  on_ranks([](Rank& rank) {
    infer::Engine engine(*rank.saved.model, kSmall);
    EngineLoop loop(rank.world, rank.mesh, rank.options(engine));
    const std::string schema = R"({"const": "aside"})";
    if (rank.is_first()) loop.prepare(schema);
    loop.run([&] {
      if (rank.schemas.has(schema)) loop.end();
    });
    while (!rank.schemas.has(schema)) std::this_thread::yield();  // the limit of tests ends it
  });
}

TEST_P(EngineLoopOn, WorksAsideWhileItHasNoRequests) {
  on_ranks([](Rank& rank) {
    const Tokens want = want_of(rank, generation_of(60, 5));
    infer::Engine engine(*rank.saved.model, kSmall);
    EngineLoopOptions options = rank.options(engine);
    int pieces = 0, polls = 0;
    options.work_aside = [&] { return pieces < 3 && ++pieces > 0; };
    EngineLoop loop(rank.world, rank.mesh, options);
    Heard heard;
    if (rank.is_first()) loop.add(one(heard_by(heard, generation_of(60, 5))));
    loop.run([&] {
      EXPECT_TRUE(heard.has_ended() || pieces == 0) << "requests have precedence";
      if (heard.has_ended() && ++polls == 5) loop.end();
    });
    if (!rank.is_first()) return;
    EXPECT_EQ(heard.tokens, want);
    EXPECT_EQ(pieces, 3);
  });
}

TEST_P(EngineLoopOn, EmbedsWithinSteps) {
  on_ranks([](Rank& rank) {
    const Tokens want = want_of(rank, generation_of(60, 9));
    infer::EngineOptions small = kSmall;
    small.step_tokens = 6;
    infer::Engine engine(*rank.saved.model, small);
    infer::Embedder embedder(*rank.saved.model, {.normalize = true, .tokens_at_once = 5});
    const at::Tensor vectors = embedder.embed(kTexts);
    EngineLoopOptions options = rank.options(engine);
    options.embedder = &embedder;
    EngineLoop loop(rank.world, rank.mesh, options);
    Heard heard;
    std::vector<std::string> ended;
    bool begun = false;
    const auto add = [&](const std::string& name, std::vector<std::vector<int64_t>> texts, size_t steps) {
      return loop.add({.texts = std::move(texts), .client = name, .on_vectors = [&, name, steps](Vectors own) {
                         EXPECT_EQ(own.error, "");
                         EXPECT_EQ(heard.tokens.size(), steps) << "generation goes on beside " << name;
                         ended.push_back(name);
                         ASSERT_EQ(own.rows.size(), name == "one" ? 1U : name == "none" ? 0U : 4U);
                         for (size_t i = 0; i < own.rows.size(); ++i) {
                           const auto place = name == "one" ? 3 : static_cast<int64_t>(i);  // alone in its row, as here
                           // LibTorch's products may differ in the last bits. Vectors have length 1.
                           const at::Tensor row = at::tensor(own.rows[i]);
                           const double bound = row.numel() * std::numeric_limits<float>::epsilon();
                           EXPECT_LE((row - vectors[place]).abs().max().item<double>(), bound) << name << i;
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
  });
}

TEST_P(EngineLoopOn, ReadsALongTextInSteps) {
  on_ranks([](Rank& rank) {
    const Tokens want = want_of(rank, generation_of(60, 20));
    infer::EngineOptions small = kSmall;
    small.step_tokens = 8;
    infer::Engine engine(*rank.saved.model, small);
    infer::Embedder embedder(*rank.saved.model, {.tokens_at_once = 8});
    EngineLoopOptions options = rank.options(engine);
    options.embedder = &embedder;
    EngineLoop loop(rank.world, rank.mesh, options);
    Heard heard;
    size_t steps = 0, made_at_end = 0;
    int64_t most_blocks = 0;
    loop.run([&] {
      if (steps++ == 0) {
        loop.add(one(heard_by(heard, generation_of(60, 20))));
      } else if (steps == 3) {
        loop.add({.texts = {Tokens(32, 9)}, .client = "texts", .on_vectors = [&](Vectors own) {
                    EXPECT_EQ(own.rows.size(), 1U);
                    made_at_end = heard.tokens.size();
                  }});
        EXPECT_EQ(loop.load().waiting, 1);
      } else if (steps == 4) {
        EXPECT_EQ(loop.load().waiting, 0);
        EXPECT_EQ(loop.load().running, 2);
      }
      EXPECT_EQ(heard.tokens.size(), std::min<size_t>(steps - 1, 20)) << "a token in each step";
      most_blocks = std::max(most_blocks, loop.load().blocks_used);
      if (heard.has_ended()) loop.end();
    });
    if (!rank.is_first()) return;
    EXPECT_EQ(made_at_end, 2U + 5U) << "7 tokens of the text in each step";
    EXPECT_EQ(most_blocks, 2 + 1) << "of 28 tokens of the text and 8 of the completion";
    EXPECT_EQ(heard.tokens, want);
  });
}

TEST_P(EngineLoopOn, RefusesTextsThatExceedAStepOrTheCache) {
  on_ranks([](Rank& rank) {
    infer::EngineOptions small = kSmall;
    small.cache_bytes = infer::ModelRunner::bytes_of_token(*rank.saved.model) * 16;
    const infer::Engine engine(*rank.saved.model, small);
    const infer::Embedder embedder(*rank.saved.model, {.tokens_at_once = 8});
    const auto refusal = [&](const infer::Engine* own, int64_t tokens) {
      return test::thrown_message([&] { check_text(embedder, own, Tokens(static_cast<size_t>(tokens), 9)); });
    };
    EXPECT_EQ(refusal(&engine, 16), "");
    EXPECT_THAT(refusal(&engine, 17), HasSubstr("a text must have at most 16 tokens, as positions and cache allow: got "
                                                "17; shorten it, or raise --kv-cache"));
    EXPECT_EQ(refusal(nullptr, 8), "");
    EXPECT_THAT(refusal(nullptr, 9),
                HasSubstr("a text must have at most 8 tokens, those of a step, because the model sees a whole text at "
                          "once: got 9; shorten it, or raise --step-tokens"));
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

}  // namespace
}  // namespace colossal::serve::engine_loop_test
