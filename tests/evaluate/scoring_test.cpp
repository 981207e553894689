// Encoding, windows and scores of a real model equal those of the harness (G63 to G65), in any batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "colossal/comm/run_ranks.h"
#include "colossal/evaluate/encoding.h"
#include "colossal/evaluate/engine_scorer.h"
#include "colossal/run/saved_model.h"
#include "support/paths.h"
#include "support/thrown_message.h"

namespace colossal::evaluate::scoring_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<int64_t>;

const std::string kStories = test::source_dir() + "/../shared/data/stories260K-hf";
constexpr double kGolden = 1e-4;  // the reference's bound: the harness computes in fp32

/// Tokens are bytes, except that a space and the letter after it are one token, like "ab".
class JoiningTokenizer final : public text::Tokenizer {
 public:
  explicit JoiningTokenizer(int64_t begin = -1, int64_t end = 256) : begin_(begin), end_(end) {}
  Ids encode(std::string_view text) const override {
    Ids ids;
    for (size_t i = 0; i < text.size(); ++i) {
      const bool joins = i + 1 < text.size() && (text[i] == ' ' || text.substr(i, 2) == "ab");
      ids.push_back(joins ? 1000 + text[++i] : text[i]);
    }
    return ids;
  }
  Ids encode_prompt(std::string_view text) const override {
    Ids ids = encode(text);
    if (begin_ >= 0) ids.insert(ids.begin(), begin_);
    return ids;
  }
  std::string piece(int64_t id) const override { return id < 256 ? std::string(1, static_cast<char>(id)) : ""; }
  std::string spelling(int64_t id) const override { return id == 256 ? "</s>" : id == 257 ? "<s>" : piece(id); }
  int64_t vocabulary_size() const override { return 2000; }
  int64_t end_id() const override { return end_; }
  int64_t begin_id() const override { return begin_; }

 private:
  int64_t begin_, end_;
};

TEST(Encoder, MovesSpacesAndCutsTheWholeText) {
  const JoiningTokenizer tokenizer;
  Encoder encoder(tokenizer, {});
  for (const auto& [context, continuation] : {std::pair("xy", " z"), std::pair("xy ", "z")}) {
    const Pair pair = encoder.pair(context, continuation);
    EXPECT_THAT(pair.context, ElementsAre('x', 'y'));
    EXPECT_THAT(pair.continuation, ElementsAre(1000 + 'z'));
  }
  EXPECT_EQ(encoder.apart(), 0);
}

TEST(Encoder, EncodesPartsAloneIfATokenSpansTheBorder) {
  const JoiningTokenizer tokenizer;
  Encoder encoder(tokenizer, {});
  const Pair pair = encoder.pair("xa", "b");
  EXPECT_THAT(pair.context, ElementsAre('x', 'a'));
  EXPECT_THAT(pair.continuation, ElementsAre('b'));
  EXPECT_EQ(encoder.apart(), 1);
  EXPECT_THAT(encoder.pair("xa", "bc").continuation, ElementsAre('c'));  // as the harness cuts
  EXPECT_EQ(encoder.apart(), 1);
}

TEST(Encoder, PutsThePrefixBeforeATextWithoutContext) {
  const JoiningTokenizer with_begin(257), without;
  EXPECT_THAT(Encoder(with_begin, {}).pair("", "xy").context, ElementsAre(257));
  EXPECT_THAT(Encoder(with_begin, {}).pair("", "xy").continuation, ElementsAre('x', 'y'));
  EXPECT_THAT(Encoder(without, {}).pair(" ", "xy").context, ElementsAre(256));
  EXPECT_THAT(Encoder(without, {}).pair(" ", "xy").continuation, ElementsAre(1000 + 'x', 'y'));
}

TEST(Encoder, AddsTheBeginTokenAsToldAndOnce) {
  const JoiningTokenizer with_begin(257);
  EXPECT_THAT(Encoder(with_begin, {}).encode("x"), ElementsAre(257, 'x'));
  EXPECT_THAT(Encoder(with_begin, true).encode("x"), ElementsAre(257, 'x'));
  EXPECT_THAT(Encoder(with_begin, false).encode("x"), ElementsAre('x'));
  EXPECT_EQ(Encoder(with_begin, true).encode("<s>x"), with_begin.encode("<s>x"));
}

TEST(Encoder, RefusesWhatItCannotEncode) {
  const JoiningTokenizer none(-1, -1), without;
  EXPECT_THAT(test::thrown_message([&] { Encoder(none, {}).pair("", "x"); }), HasSubstr("begin or an end token"));
  EXPECT_THAT(test::thrown_message([&] { Encoder(without, true); }), HasSubstr("leave out --add-bos-token"));
  EXPECT_THAT(test::thrown_message([&] { Encoder(without, {}).pair("x", ""); }), HasSubstr("at least one token"));
}

TEST(Windows, PredictEachTokenOnce) {
  const std::vector<Pair> windows = rolling_windows({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0, 4);  // G65
  ASSERT_EQ(windows.size(), 3u);
  EXPECT_EQ(windows[0].context, Ids({0}));
  EXPECT_EQ(windows[0].continuation, Ids({1, 2, 3, 4}));
  EXPECT_EQ(windows[1].context, Ids({4}));
  EXPECT_EQ(windows[1].continuation, Ids({5, 6, 7, 8}));
  EXPECT_EQ(windows[2].context, Ids({6, 7, 8}));
  EXPECT_EQ(windows[2].continuation, Ids({9, 10}));
  EXPECT_TRUE(rolling_windows({}, 0, 4).empty());
}

TEST(Truncation, KeepsTheLastIds) {
  const Pair pair = fitted({{1, 2, 3}, {4, 5}}, 3);
  EXPECT_EQ(pair.context, Ids({2, 3}));
  EXPECT_EQ(pair.continuation, Ids({4, 5}));
  EXPECT_EQ(fitted({{1, 2, 3}, {4, 5}}, 4).context, Ids({1, 2, 3}));
  EXPECT_EQ(fitted({{1, 2}, {3, 4, 5}}, 2).context, Ids({2}));
  EXPECT_EQ(fitted({{1, 2}, {3, 4, 5}}, 2).continuation, Ids({4, 5}));
}

class Stories : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kStories)) GTEST_SKIP() << "no " << kStories;
  }
  using Work = std::function<void(EngineScorer&, const text::Tokenizer&)>;
  static void with_scorer(const infer::EngineOptions& options, const Work& work) {
    comm::run_ranks(1, [&](comm::World& world) {
      const distributed::ParallelConfig layout;
      comm::Mesh mesh(world, layout.axes());
      const run::SavedModel saved = run::load_model(kStories, mesh, layout, at::kCPU, {.packing = nn::WeightPacking{}});
      EngineScorer scorer(*saved.model, options, *saved.tokenizer, saved.end_ids, "fp32");
      work(scorer, *saved.tokenizer);
    });
  }
  static Score score(Encoder& encoder, Scorer& scorer, const std::string& context, const std::string& continuation) {
    return scorer.score({fitted(encoder.pair(context, continuation), scorer.max_length())}).front();
  }
  static double rolling(const Encoder& encoder, Scorer& scorer, const std::string& text) {
    double sum = 0;
    for (const Score& s : scorer.score(rolling_windows(encoder.encode(text), encoder.prefix(), scorer.max_length())))
      sum += s.sum;
    return sum;
  }
};

TEST_F(Stories, ScoreAsTheHarnessDoes) {  // G63
  const std::string girl = "Once upon a time, there was a little";
  const std::string cat = "Question: What did the cat do?\nAnswer:", sat = " The cat sat on the mat.";
  with_scorer({}, [&](EngineScorer& scorer, const text::Tokenizer& tokenizer) {
    Encoder encoder(tokenizer, {}), without_begin(tokenizer, false);
    const Score first = score(encoder, scorer, girl, " girl"), moved = score(encoder, scorer, girl + " ", "girl");
    EXPECT_NEAR(first.sum, -0.4514160752, kGolden);
    EXPECT_TRUE(first.is_greedy);
    EXPECT_EQ(moved.sum, first.sum);
    const Score stone = score(encoder, scorer, girl, " stone");
    EXPECT_NEAR(stone.sum, -12.4418697357, kGolden);
    EXPECT_FALSE(stone.is_greedy);
    EXPECT_NEAR(score(without_begin, scorer, girl, " girl").sum, -0.4648043215, kGolden);
    EXPECT_NEAR(score(encoder, scorer, "", "Once upon a time").sum, -0.2740897536, kGolden);
    EXPECT_NEAR(score(encoder, scorer, cat, sat).sum, -30.7665328979, kGolden);
  });
  with_scorer({.max_length = 16}, [&](EngineScorer& scorer, const text::Tokenizer& tokenizer) {
    Encoder encoder(tokenizer, {});
    EXPECT_EQ(scorer.max_length(), 16);
    EXPECT_NEAR(score(encoder, scorer, cat, sat).sum, -34.3288650513, kGolden);
  });
}

TEST_F(Stories, ChooseAsTheHarnessDoes) {  // G64
  const std::vector<std::string> choices{"in the park", "m\xc3\xbcnchen", "a", "to sleep all day long"};
  const std::vector<double> golden{-11.3523502350, -80.2340469360, -4.0180263519, -22.5607929230};
  with_scorer({}, [&](EngineScorer& scorer, const text::Tokenizer& tokenizer) {
    Encoder encoder(tokenizer, {});
    std::vector<Pair> pairs;
    for (const std::string& choice : choices)
      pairs.push_back(encoder.pair("Question: Where did Lily play?\nAnswer:", " " + choice));
    const std::vector<Score> scores = scorer.score(pairs);
    for (size_t i = 0; i < golden.size(); ++i) EXPECT_NEAR(scores[i].sum, golden[i], kGolden) << choices[i];
  });
}

TEST_F(Stories, PredictTextsAsTheHarnessDoes) {  // G65
  const std::string text = "Once upon a time, there was a little girl named Lily. She liked to play in the park.";
  with_scorer({}, [&](EngineScorer& scorer, const text::Tokenizer& tokenizer) {
    EXPECT_NEAR(rolling(Encoder(tokenizer, {}), scorer, text), -19.8110637665, kGolden);
    EXPECT_NEAR(rolling(Encoder(tokenizer, false), scorer, text), -11.1425933838, kGolden);
  });
  with_scorer({.max_length = 8}, [&](EngineScorer& scorer, const text::Tokenizer& tokenizer) {
    EXPECT_NEAR(rolling(Encoder(tokenizer, {}), scorer, text), -27.4702523351, kGolden);
  });
}

TEST_F(Stories, HaveTheSameBitsInAnyBatch) {
  std::vector<std::vector<double>> sums;
  std::vector<std::vector<std::string>> answers;
  // Steps of other sizes, a cache that holds two prompts, and no reuse of prefixes.
  for (const infer::EngineOptions& options :
       {infer::EngineOptions{}, infer::EngineOptions{.step_tokens = 96, .max_running = 3},
        infer::EngineOptions{.cache_bytes = 1 << 20, .keeps_prefixes = false}, infer::EngineOptions{.max_running = 1}})
    with_scorer(options, [&](EngineScorer& scorer, const text::Tokenizer& tokenizer) {
      Encoder encoder(tokenizer, {});
      std::vector<Pair> pairs;
      std::vector<Prompt> prompts;
      for (int i = 0; i < 4; ++i) {
        std::string context;
        for (int k = 0; k < 1 + 3 * i; ++k) context += "Lily saw a cat number " + std::to_string(i * k) + ". ";
        for (const char* choice : {"It", "It ran to the park"})
          pairs.push_back(fitted(encoder.pair(context, std::string(" ") + choice), scorer.max_length()));
        prompts.push_back({encoder.encode(context), {".", "park"}, 6 + i});
      }
      sums.emplace_back();
      for (const Score& score : scorer.score(pairs)) sums.back().push_back(score.sum);
      answers.push_back(scorer.generate(prompts));
    });
  for (size_t i = 1; i < sums.size(); ++i) {
    EXPECT_EQ(sums[i], sums[0]) << i;
    EXPECT_EQ(answers[i], answers[0]) << i;
  }
  for (const std::string& answer : answers[0]) EXPECT_EQ(answer.find('.'), std::string::npos) << answer;
}

}  // namespace
}  // namespace colossal::evaluate::scoring_test
