// Scores of given answers: equal to the bit for any batch, cached blocks and first scored token; what they cost; how
// texts are split.
#include "colossal/infer/answer_scores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/infer/engine.h"
#include "colossal/run/saved_model.h"
#include "infer/engine_answers.h"
#include "support/generated_text.h"
#include "support/thrown_message.h"

namespace colossal::infer::answer_scores_test {
namespace {

using engine_test::Tokens;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kBlock = 16, kPositions = 32;  // tokens; the positions of test::write_model()

class AnswerScores : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { test::write_model(folder, GetParam()); }

  /// Runs `work` on every rank with packed weights, for which the engine promises bits.
  void with_model(const distributed::ParallelConfig& layout,
                  const std::function<void(distributed::DistributedModel&)>& work) {
    comm::run_ranks(static_cast<int>(layout.ranks()), [&](comm::World& world) {
      comm::Mesh mesh(world, layout.axes());
      const run::SavedModel saved =
          run::load_model(folder / "hf", mesh, layout, at::kCPU, {.tokenizer = "none", .packing = nn::WeightPacking{}});
      work(*saved.model);
    });
  }

  test::TemporaryFolder folder;
};

EngineOptions options_of(distributed::DistributedModel& model, int64_t blocks = 40, int64_t step_tokens = 512) {
  return {.cache_bytes = blocks * kBlock * ModelRunner::bytes_of_token(model),
          .block_tokens = kBlock,
          .step_tokens = step_tokens};
}

/// Returns a text whose first 20 tokens are those of all texts.
Tokens text_of(int64_t length, int64_t number) {
  Tokens text;
  for (int64_t t = 0; t < length; ++t) text.push_back(t < 20 ? 60 + t : 40 + (t * t + 7 * number) % 50);
  return text;
}

/// Returns answers of 1 to 9 tokens, three to each of `prompts` prompts.
std::vector<GivenAnswer> some_answers(int64_t prompts) {
  std::vector<GivenAnswer> given;
  for (int64_t i = 0; i < 3 * prompts; ++i)
    given.push_back({text_of(1 + (i / 3 * 11) % 23, i / 3), text_of(21 + i % 9, i)});
  for (GivenAnswer& one : given) one.answer.erase(one.answer.begin(), one.answer.begin() + 20);
  return given;
}

Event last_event_of(Engine& engine, Request request) {
  std::vector<Event> events;
  engine.add(std::move(request), engine_test::into(events));
  while (engine.has_work()) engine.step();
  return events.back();
}

std::vector<double> scores_of(Engine& engine, const Tokens& prompt, int64_t from) {
  std::vector<double> own;
  const Event event = last_event_of(
      engine, {.prompt = prompt, .options = {.max_tokens = 0, .prompt_logprobs = 0}, .scored_from = from});
  for (const LogProbabilities& one : event.prompt_log_probabilities) own.push_back(one.own);
  return own;
}

/// Returns layouts whose products are those of packed weights. Layouts that gather blocks multiply with LibTorch.
std::vector<distributed::ParallelConfig> some_layouts() {
  std::vector<distributed::ParallelConfig> layouts(5);
  layouts[1].tensor.size = 2, layouts[1].pipeline.size = 2;
  layouts[2].tensor = {.size = 2, .sequence = true};
  layouts[3].sequence = {.size = 2, .mode = "ring"};
  layouts[4].pipeline.size = 2;
  return layouts;
}

TEST_P(AnswerScores, EqualTheScoresOfTheWholePromptToTheBit) {
  const Tokens prompt = text_of(30, 1);
  for (const distributed::ParallelConfig& layout : some_layouts())
    with_model(layout, [&](distributed::DistributedModel& model) {
      Engine plain(model, options_of(model));
      const std::vector<double> want = scores_of(plain, prompt, 1);
      ASSERT_EQ(want.size(), 29U);
      Engine engine(model, options_of(model));
      last_event_of(engine, {.prompt = prompt, .options = {.max_tokens = 1}});
      for (const int64_t from : {1, 2, 16, 17, 18, 29}) {
        const int64_t found = engine.counts().found_tokens, block = kBlock * model.cache_ranks();
        EXPECT_EQ(scores_of(engine, prompt, from), std::vector<double>(want.begin() + from - 1, want.end())) << from;
        EXPECT_EQ(engine.counts().found_tokens - found, (from - 1) / block * block) << from;
      }
    });
}

TEST_P(AnswerScores, EqualThoseOfEachAnswerAloneToTheBit) {
  const std::vector<GivenAnswer> given = some_answers(4);
  for (const distributed::ParallelConfig& layout : some_layouts())
    with_model(layout, [&](distributed::DistributedModel& model) {
      std::vector<AnswerScore> want;
      for (const GivenAnswer& one : given) {
        Engine alone(model, options_of(model));
        want.push_back(answer_scores(alone, {one}).at(0));
        ASSERT_EQ(want.back().log_probabilities.size(), one.answer.size());
      }
      for (const int64_t step_tokens : {5, 512})
        for (const int64_t blocks : {2, 40}) {
          Engine engine(model, options_of(model, blocks, step_tokens));
          const std::vector<AnswerScore> got = answer_scores(engine, given);
          ASSERT_EQ(got.size(), want.size());
          for (size_t i = 0; i < want.size(); ++i) {
            EXPECT_EQ(got[i].log_probabilities, want[i].log_probabilities) << i;
            EXPECT_EQ(got[i].is_greedy, want[i].is_greedy) << i;
          }
          EXPECT_FALSE(engine.has_work());
        }
    });
}

TEST_P(AnswerScores, EqualThoseOfGeneratedTokens) {
  const Tokens prompt = text_of(18, 3);
  with_model({}, [&](distributed::DistributedModel& model) {
    Engine engine(model, options_of(model));
    std::vector<Event> events;
    engine.add({.prompt = prompt, .options = {.max_tokens = 6, .logprobs = 0}}, engine_test::into(events));
    while (engine.has_work()) engine.step();
    GivenAnswer greedy{prompt, {}};
    std::vector<double> want;
    for (const Event& event : events) {
      greedy.answer.push_back(event.token);
      want.push_back(event.log_probabilities->own);
    }
    GivenAnswer other = greedy;
    other.answer.back() = greedy.answer.back() == 0 ? 1 : 0;
    const std::vector<AnswerScore> scores = answer_scores(engine, {greedy, other});
    EXPECT_EQ(scores[0].log_probabilities, want);
    EXPECT_TRUE(scores[0].is_greedy);
    EXPECT_FALSE(scores[1].is_greedy);
    EXPECT_LT(scores[1].sum(), scores[0].sum());
    double sum = 0;
    for (const double one : want) sum += one;
    EXPECT_EQ(scores[0].sum(), sum);
  });
}

TEST_P(AnswerScores, ReadSharedPromptsOnceAndNoLastToken) {
  with_model({}, [&](distributed::DistributedModel& model) {
    Engine engine(model, options_of(model));
    const Tokens prompt = text_of(20, 0);
    std::vector<GivenAnswer> given(4, {prompt, {40, 41}});
    for (int64_t i = 0; i < 4; ++i) given[static_cast<size_t>(i)].answer[0] = 50 + i;
    answer_scores(engine, given);
    EXPECT_EQ(engine.counts().prompt_tokens, 4 * 21);
    EXPECT_EQ(engine.counts().found_tokens, 3 * kBlock);
    std::vector<Event> events;
    engine.add(scoring_request(given[0]), engine_test::into(events));
    engine.step();
    EXPECT_FALSE(engine.has_work());  // no step for a token after the prompt
    ASSERT_EQ(events.size(), 1U);
    EXPECT_EQ(events[0].token, -1);
    EXPECT_EQ(events[0].finish_reason, FinishReason::AtLength);
    EXPECT_EQ(events[0].found, kBlock);
  });
}

TEST_P(AnswerScores, ReadNothingForFurtherAnswersOfOneToken) {
  const Tokens prompt = text_of(20, 0), other = text_of(9, 1);
  const std::vector<GivenAnswer> given{
      {prompt, {50}}, {prompt, {51}}, {prompt, {52, 40}}, {prompt, {53}}, {other, {54}}};
  with_model({}, [&](distributed::DistributedModel& model) {
    std::vector<AnswerScore> want;
    for (const GivenAnswer& one : given) {
      Engine alone(model, options_of(model));
      want.push_back(answer_scores(alone, {one}).at(0));
    }
    Engine engine(model, options_of(model));
    const std::vector<AnswerScore> got = answer_scores(engine, given);
    EXPECT_EQ(engine.counts().prompt_tokens, 20 + 21 + 9);
    for (size_t i = 0; i < given.size(); ++i) {
      EXPECT_EQ(got[i].log_probabilities, want[i].log_probabilities) << i;
      EXPECT_EQ(got[i].is_greedy, want[i].is_greedy) << i;
    }
    Request request = scoring_request(given[0]);
    request.alternatives = {100'000};
    EXPECT_THAT(test::thrown_message([&] { engine.add(std::move(request)); }),
                HasSubstr("alternatives must be ids in the model's vocabulary"));
  });
}

TEST_P(AnswerScores, IgnoreDraftTokens) {
  const std::vector<GivenAnswer> given = some_answers(4);
  with_model({}, [&](distributed::DistributedModel& model) {
    Engine plain(model, options_of(model));
    EngineOptions options = options_of(model);
    options.draft_tokens = 3;
    Engine drafting(model, options);
    const auto want = answer_scores(plain, given), got = answer_scores(drafting, given);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i].log_probabilities, want[i].log_probabilities) << i;
  });
}

TEST_P(AnswerScores, ReachOneTokenPastThePositions) {
  with_model({}, [&](distributed::DistributedModel& model) {
    Engine engine(model, options_of(model));
    const std::vector<double> whole = scores_of(engine, text_of(kPositions + 1, 0), 1);
    EXPECT_EQ(whole.size(), static_cast<size_t>(kPositions));
    const std::vector<double> shorter = scores_of(engine, text_of(kPositions, 0), 1);
    EXPECT_EQ(std::vector<double>(whole.begin(), whole.end() - 1), shorter);
    EXPECT_THAT(test::thrown_message([&] { scores_of(engine, text_of(kPositions + 2, 0), 1); }),
                HasSubstr("must fit the model's positions: got 34 tokens, 32 positions"));
    EXPECT_THAT(scores_of(engine, {5}, 1), IsEmpty());
  });
}

TEST_P(AnswerScores, RefuseFirstTokensOutsideThePrompt) {
  with_model({}, [&](distributed::DistributedModel& model) {
    Engine engine(model, options_of(model));
    for (const int64_t from : {-1, 0, 5, 6})
      EXPECT_THAT(test::thrown_message([&] { scores_of(engine, {1, 2, 3, 4, 5}, from); }),
                  HasSubstr(concat("scored_from must be 1 to 4, the last token of the prompt, because no token is "
                                   "before the first: got ",
                                   from)));
    EXPECT_THAT(test::thrown_message([&] { engine.add({.prompt = {1, 2, 3}, .scored_from = 2}); }),
                HasSubstr("scored_from must be 1 without prompt_logprobs: got 2; set prompt_logprobs"));
    EXPECT_FALSE(engine.has_work());
  });
}

TEST_P(AnswerScores, CheckAllAnswersBeforeTheFirstStep) {
  with_model({}, [&](distributed::DistributedModel& model) {
    Engine engine(model, options_of(model));
    EXPECT_THAT(test::thrown_message([&] { answer_scores(engine, {{{1}, {2}}, {{1}, {}}}); }),
                HasSubstr("answer 1: a prompt and its answer must have at least one token each: got 1 and 0"));
    EXPECT_THAT(test::thrown_message([&] { answer_scores(engine, {{{1}, {2}}, {{1}, {100'000}}}); }),
                HasSubstr("answer 1: prompt ids must lie in the model's vocabulary"));
    EXPECT_EQ(engine.counts().prompt_tokens, 0);
    EXPECT_FALSE(engine.has_work());
    EXPECT_THAT(answer_scores(engine, {}), IsEmpty());
  });
}

TEST_P(AnswerScores, ShareTheEngineWithOtherRequests) {
  const std::vector<GivenAnswer> given = some_answers(3);
  with_model({}, [&](distributed::DistributedModel& model) {
    EngineOptions options = options_of(model);
    options.max_waiting = 2, options.max_running = 3;
    Engine engine(model, options);
    std::vector<Event> events;
    engine.add({.prompt = {5, 6}, .options = {.max_tokens = 4}}, engine_test::into(events));
    EXPECT_EQ(answer_scores(engine, given).size(), given.size());
    EXPECT_EQ(events.size(), 4U);
    engine.add({.prompt = {5, 6}, .options = {.max_tokens = 4}}, [](const Event&) { throw Error("test", "mine"); });
    EXPECT_THAT(test::thrown_message([&] { answer_scores(engine, given); }), HasSubstr("mine"));
    while (engine.has_work()) test::thrown_message([&] { engine.step(); });
    EXPECT_EQ(engine.load().blocks_used, 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Models, AnswerScores, testing::Values("gpt2-tiny", "llama-tiny"),
                         [](const auto& info) { return info.param.substr(0, info.param.find('-')); });

std::vector<std::pair<size_t, int64_t>> turns_of(const std::vector<GivenAnswer>& given, int64_t step_tokens) {
  std::vector<std::pair<size_t, int64_t>> turns;
  for (const ScoringTurn& turn : scoring_turns(given, step_tokens)) turns.emplace_back(turn.index, turn.after);
  return turns;
}

TEST(ScoringTurns, SendFurtherAnswersAStepAfterTheirPrompt) {
  using Turns = std::vector<std::pair<size_t, int64_t>>;
  const GivenAnswer a{Tokens(6, 1), {1}}, b{Tokens(6, 2), {1}}, c{Tokens(6, 3), {1}};
  EXPECT_EQ(turns_of({a, a, a, b, c, c}, 7), (Turns{{0, -1}, {3, -1}, {1, 0}, {2, 0}, {4, -1}, {5, 4}}));
  EXPECT_EQ(turns_of({a, a, a, b, c, c}, 8), (Turns{{0, -1}, {3, -1}, {4, -1}, {1, 0}, {2, 0}, {5, 2}}));
  EXPECT_EQ(turns_of({a, b, a}, 8), (Turns{{0, -1}, {1, -1}, {2, -1}}));
  EXPECT_THAT(turns_of({}, 8), IsEmpty());
}

/// One id per byte, and further ids for "ab", " 2" and the begin token "<s>"; the longest match wins.
class PairTokenizer final : public text::Tokenizer {
 public:
  explicit PairTokenizer(int64_t begin, int64_t end = -1) : begin_(begin), end_(end) {}
  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int64_t> ids;
    while (!text.empty()) {
      size_t length = 1;
      int64_t id = static_cast<unsigned char>(text[0]);
      for (size_t i = 0; i < kPieces.size(); ++i)
        if (text.starts_with(kPieces[i])) length = kPieces[i].size(), id = 256 + static_cast<int64_t>(i);
      ids.push_back(id);
      text.remove_prefix(length);
    }
    return ids;
  }
  std::vector<int64_t> encode_prompt(std::string_view text) const override {
    Tokens ids = encode(text);
    if (begin_ >= 0) ids.insert(ids.begin(), begin_);
    return ids;
  }
  std::string piece(int64_t id) const override {
    return id < 256 ? std::string(1, static_cast<char>(id)) : std::string(kPieces[static_cast<size_t>(id - 256)]);
  }
  int64_t vocabulary_size() const override { return 259; }
  int64_t end_id() const override { return end_; }
  int64_t begin_id() const override { return begin_; }

 private:
  static constexpr std::array<std::string_view, 3> kPieces{"ab", " 2", "<s>"};
  int64_t begin_, end_;
};

TEST(EncodedAnswers, SplitTheTextBehindThePrompt) {
  const PairTokenizer plain(-1), begins(258);
  const EncodedAnswer simple = encode_answer(plain, "1=", "2");
  EXPECT_THAT(simple.ids.prompt, ElementsAre('1', '='));
  EXPECT_THAT(simple.ids.answer, ElementsAre('2'));
  EXPECT_FALSE(simple.is_apart);
  for (const auto& [prompt, answer] : {std::pair("1= \n ", "2"), std::pair("1=", " \n 2")}) {
    const EncodedAnswer spaced = encode_answer(begins, prompt, answer);
    EXPECT_THAT(spaced.ids.prompt, ElementsAre(258, '1', '='));
    EXPECT_THAT(spaced.ids.answer, ElementsAre(' ', '\n', 257));
    EXPECT_FALSE(spaced.is_apart);
  }
}

TEST(EncodedAnswers, EncodeApartWhatATokenJoins) {
  const EncodedAnswer apart = encode_answer(PairTokenizer(258), "xa", "bab");
  EXPECT_THAT(apart.ids.prompt, ElementsAre(258, 'x', 'a'));
  EXPECT_THAT(apart.ids.answer, ElementsAre('b', 256));
  EXPECT_TRUE(apart.is_apart);
}

TEST(EncodedAnswers, BeginWithOneBeginToken) {
  EXPECT_THAT(encode_answer(PairTokenizer(258), "<s>x", "y").ids.prompt, ElementsAre(258, 'x'));
  EXPECT_THAT(encode_answer(PairTokenizer(258), "", "xy").ids.prompt, ElementsAre(258));
  EXPECT_THAT(encode_answer(PairTokenizer(258), "", "xy").ids.answer, ElementsAre('x', 'y'));
  EXPECT_THAT(encode_answer(PairTokenizer(-1, 7), " ", "x").ids.prompt, ElementsAre(7));
  EXPECT_THAT(encode_answer(PairTokenizer(-1, 7), " ", "x").ids.answer, ElementsAre(' ', 'x'));
  EXPECT_THAT(test::thrown_message([] { encode_answer(PairTokenizer(-1), "", "x"); }), HasSubstr("pass a prompt"));
  EXPECT_THAT(test::thrown_message([] { encode_answer(PairTokenizer(258), "x", ""); }),
              HasSubstr("an answer must have at least one token: got \"\""));
}

}  // namespace
}  // namespace colossal::infer::answer_scores_test
