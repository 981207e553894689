// Sums of several scorers, which the test plays, and the scorer that the table [reward] describes.
#include "colossal/align/rewards/sum_scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <utility>

#include "colossal/align/rewards/make_scorer.h"
#include "support/thrown_message.h"

namespace colossal::align::sum_scorer_test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

Answer answer_of(const std::string& id, json members = {{"answer", "12"}}) {
  members["prompt"] = "5 + 7 =";
  return {.id = id,
          .line = std::make_shared<text::PromptLine>(text::PromptLine{std::move(members), "prompts.jsonl, line 1"}),
          .completion = {.text = "12", .tokens = 3}};
}

/// A scorer whose scores the test gives.
class Given final : public Scorer {
 public:
  void check(const text::PromptLine& line) override {
    if (line.where == "wrong") throw Error("reward", "a wrong line");
  }
  void add(Answer answer) override { waiting_.add(answer.id); }
  std::vector<Scored> take(double) override { return waiting_.take(); }
  void forget() override { waiting_.clear(), ++forgotten; }
  size_t waiting() const override { return waiting_.count(); }

  void give(const std::string& id, Score score) { waiting_.set({id, std::move(score)}); }
  void fail(const std::string& what) { waiting_.fail(Error("reward", what)); }
  int forgotten = 0;

 private:
  WaitingScores waiting_;
};

struct Sum {
  Sum() {
    auto first = std::make_unique<Given>(), second = std::make_unique<Given>();
    a = first.get(), b = second.get();
    std::vector<WeightedScorer> scorers;
    scorers.push_back({.weight = 2, .scorer = std::move(first)});
    scorers.push_back({.name = "command", .weight = -0.5, .scorer = std::move(second)});
    scorer.emplace(std::move(scorers));
  }
  Score score_of(Score first, Score second) {
    scorer->add(answer_of("x"));
    a->give("x", std::move(first)), b->give("x", std::move(second));
    return scorer->take(0).at(0).score;
  }
  std::optional<SumScorer> scorer;
  Given *a = nullptr, *b = nullptr;
};

TEST(SumScorer, AddsWeightedScores) {
  Sum sum;
  const Score score = sum.score_of({.value = 1, .parts = {{"exact", 1}}, .text = "one"},
                                   {.value = 4, .parts = {{"style", 3}, {"exact", 5}}, .text = "two"});
  EXPECT_EQ(score.value, 0);
  EXPECT_THAT(score.parts,
              ElementsAre(Pair("exact", 1), Pair("command", 4), Pair("style", 3), Pair("command_exact", 5)));
  EXPECT_EQ(score.text, "one\ntwo");
  EXPECT_FALSE(score.is_fault);
  EXPECT_EQ(sum.scorer->waiting(), 0u);
}

TEST(SumScorer, HasNoScoreIfAPartHasNone) {
  Sum sum;
  const Score score = sum.score_of({.parts = {{"exact", 1}}}, {.value = 4});
  EXPECT_FALSE(score.value.has_value());
  EXPECT_FALSE(score.is_fault);
  EXPECT_THAT(score.parts, ElementsAre(Pair("exact", 1), Pair("command", 4)));
  const Score fault = sum.score_of({.value = 1}, {.text = "ended", .is_fault = true});
  EXPECT_FALSE(fault.value.has_value());
  EXPECT_TRUE(fault.is_fault);
  EXPECT_THAT(fault.parts, IsEmpty());
  EXPECT_EQ(fault.text, "ended");
}

TEST(SumScorer, WaitsForAllParts) {
  Sum sum;
  sum.scorer->add(answer_of("x")), sum.scorer->add(answer_of("y"));
  EXPECT_THAT(test::thrown_message([&] { sum.scorer->add(answer_of("x")); }), HasSubstr("got x twice"));
  sum.a->give("x", {.value = 1}), sum.b->give("y", {.value = 2});
  EXPECT_THAT(sum.scorer->take(0), IsEmpty());
  EXPECT_EQ(sum.scorer->waiting(), 2u);
  sum.a->give("y", {.value = 3});
  const std::vector<Scored> scored = sum.scorer->take(0);
  ASSERT_EQ(scored.size(), 1u);
  EXPECT_EQ(scored[0].id, "y");
  EXPECT_EQ(scored[0].score.value, 5);
  EXPECT_EQ(sum.scorer->waiting(), 1u);
}

TEST(SumScorer, ForgetsAllAfterAnError) {
  Sum sum;
  for (const char* id : {"x", "y", "z"}) sum.scorer->add(answer_of(id));
  sum.a->give("x", {.value = 1}), sum.b->give("x", {.value = 2});
  sum.a->give("y", {.value = 1});
  EXPECT_EQ(sum.scorer->take(0).size(), 1u);
  sum.b->fail("no");
  EXPECT_EQ(test::thrown_message([&] { sum.scorer->take(0); }), "[reward] no");
  EXPECT_EQ(sum.scorer->waiting() + sum.a->waiting() + sum.b->waiting(), 0u);
  EXPECT_EQ(sum.score_of({.value = 1}, {.value = 2}).value, 1) << "it can be used again";
  sum.scorer->add(answer_of("x"));
  const int before = sum.a->forgotten;
  sum.scorer->forget();
  EXPECT_EQ(sum.a->forgotten, before + 1);
  EXPECT_EQ(sum.scorer->waiting(), 0u);
}

TEST(SumScorer, ChecksLinesAndWeights) {
  Sum sum;
  EXPECT_EQ(test::thrown_message([&] { sum.scorer->check({{}, "wrong"}); }), "[reward] a wrong line");
  EXPECT_EQ(test::thrown_message([&] { sum.scorer->check({{}, "right"}); }), "");
  EXPECT_EQ(test::thrown_message([] { SumScorer none({}); }), "[reward] a sum must have at least one scorer: got none");
  std::vector<WeightedScorer> scorers;
  scorers.push_back({.name = "model", .weight = NAN, .scorer = std::make_unique<Given>()});
  EXPECT_THAT(test::thrown_message([&] { SumScorer none(std::move(scorers)); }),
              HasSubstr("a weight must be a finite number: got nan for model"));
}

TEST(RewardTable, MakesTheScorersThatItNames) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const Descriptor other(ends[1]);
  const std::string command =
      R"(while read -r line; do echo '{"id": "x", "score": 2, "scores": {"style": 0.25}}'; done)";
  const auto scorer = make_scorer(
      {.verifiers = {"exact", "length"}, .weights = {10, 100}, .command = {"sh", "-c", command}, .workers = 1},
      text::built_in_verifiers(), Descriptor(ends[0]));
  EXPECT_THAT(test::thrown_message([&] { scorer->check(*answer_of("x").line); }),
              HasSubstr("length reads `max_tokens`"));
  scorer->add(answer_of("x", {{"answer", "12"}, {"max_tokens", 2}}));
  const std::string line = R"({"id": "x", "score": 0.5, "text": "fine"})"
                           "\n";
  ASSERT_EQ(write(other.value(), line.data(), line.size()), static_cast<ssize_t>(line.size()));
  const std::vector<Scored> scored = scorer->take(std::numeric_limits<double>::infinity());
  ASSERT_EQ(scored.size(), 1u);
  EXPECT_EQ(scored[0].score.value, 12.5);
  EXPECT_THAT(scored[0].score.parts, ElementsAre(Pair("exact", 1), Pair("length", 0), Pair("command", 2),
                                                 Pair("style", 0.25), Pair("function", 0.5)));
  EXPECT_EQ(scored[0].score.text, "length: 3 tokens, at most 2\nfine");
}

TEST(RewardTable, PassesOnWhatACommandMayDo) {
  const auto message = [](const run::RewardKeys& keys) {
    const auto scorer = make_scorer(keys, text::built_in_verifiers());
    return test::thrown_message([&] {
      const Score score = scores_of(*scorer, {answer_of("x")})[0];
      throw Error("score", concat(score.value.has_value(), " ", score.is_fault));
    });
  };
  EXPECT_EQ(message({.command = {"false"}, .on_fault = "null"}), "[score] 0 1");
  EXPECT_THAT(message({.command = {"false"}}), HasSubstr("the command `false` ended with status 1"));
  EXPECT_THAT(message({.command = {"sleep", "1000"}, .timeout = 0.05, .retries = 1}),
              HasSubstr("took longer than 0.05 seconds for an answer, in 2 tries"));
}

TEST(RewardTable, MakesNothingForAModelAlone) {
  EXPECT_EQ(make_scorer({.from = "runs/reward"}, text::built_in_verifiers()), nullptr);
  EXPECT_THAT(test::thrown_message([] { make_scorer({}, text::built_in_verifiers()); }),
              HasSubstr("answers must get a score"));
}

}  // namespace
}  // namespace colossal::align::sum_scorer_test
