// Results and samples of tasks, from a scorer without a model.
#include "colossal/evaluate/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/text/tokenizer.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::evaluate::evaluate_test {
namespace {

using nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Gives each byte of a continuation -1, and repeats the last byte of a prompt.
class ByteScorer final : public Scorer {
 public:
  explicit ByteScorer(int64_t max_length = 1000) : max_length_(max_length) {}
  std::vector<Score> score(const std::vector<Pair>& pairs) override {
    asked.push_back(pairs.size());
    std::vector<Score> scores;
    for (const Pair& pair : pairs) {
      EXPECT_LE(static_cast<int64_t>(pair.context.size() + pair.continuation.size()), max_length_ + 1);
      scores.push_back({-static_cast<double>(pair.continuation.size()), false});
    }
    return scores;
  }
  std::vector<std::string> generate(const std::vector<Prompt>& prompts) override {
    asked.push_back(prompts.size());
    std::vector<std::string> answers;
    for (const Prompt& prompt : prompts) answers.emplace_back(3, static_cast<char>(prompt.ids.back()));
    return answers;
  }
  int64_t max_length() const override { return max_length_; }
  std::string dtype() const override { return "fp32"; }
  std::vector<size_t> asked;  // number of requests of each call

 private:
  int64_t max_length_;
};

class Results : public testing::Test {
 protected:
  std::vector<TaskResult> run(const std::vector<std::string>& tasks, int64_t limit = 0) {
    const auto tokenizer = text::make_tokenizer("bytes");
    const auto prepared = prepare(tasks, {.limit = limit});
    return evaluate(scorer, *tokenizer, prepared,
                    {.on_sample = [this](const ordered_json& sample) { samples.push_back(sample); }});
  }
  std::string write(const std::string& name, const std::string& keys, const std::string& data) const {
    folder.write(name + ".jsonl", data);
    return folder.write(name + ".toml", "name = \"" + name + "\"\ndata = \"" + name + ".jsonl\"\n" + keys);
  }
  const test::TemporaryFolder folder;
  std::vector<ordered_json> samples;
  ByteScorer scorer;
};

TEST_F(Results, GiveErrorsAndScoresOfChoices) {
  const std::string task = write("c",
                                 "kind = \"choices\"\nprompt = \"{{q}}\"\nchoices = [\"no\", \"{{c}}\"]\n"
                                 "target = \"{{t}}\"\nmetric = [\"acc\", \"acc_norm\"]\n",
                                 "{\"q\": \"a\", \"c\": \"yes\", \"t\": 0}\n{\"q\": \"b\", \"c\": \"y\", \"t\": 0}\n");
  const std::vector<TaskResult> results = run({task});
  EXPECT_EQ(json_of(results[0]).dump(),
            R"({"acc":0.5,"acc_error":0.5,"acc_norm":0.5,"acc_norm_error":0.5,"count":2,"truncated":0,)"
            R"("encoded_apart":0,"shots":0,"chat_template":false,"dtype":"fp32"})");
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].dump(), R"({"task":"c","line":1,"prompt":"a","target":"no","acc":1.0,"acc_norm":0.0,)"
                               R"("scores":[-3.0,-4.0]})");
  EXPECT_EQ(samples[1]["scores"], ordered_json({-3.0, -2.0}));
  EXPECT_THAT(scorer.asked, ElementsAre(4u));
}

// Other ranks run all tasks, so an error of the rank that writes samples must not end it between two of them.
TEST_F(Results, ThrowErrorsOfSamplesAfterTheLastTask) {
  const std::string keys = "prompt = \"{{q}}\"\ntarget = \"{{q}}\"\nmetric = \"exact\"\n", line = "{\"q\": \"7\"}\n";
  const auto prepared = prepare({write("a", keys, line + line), write("b", keys, line)}, {});
  int count = 0;
  const auto fail = [&](const ordered_json&) { throw Error("file", concat("no room for item ", ++count)); };
  EXPECT_EQ(
      test::thrown_message([&] { evaluate(scorer, *text::make_tokenizer("bytes"), prepared, {.on_sample = fail}); }),
      "[file] no room for item 1");
  EXPECT_THAT(scorer.asked, ElementsAre(2u, 1u));
  EXPECT_EQ(count, 1);
}

TEST_F(Results, TakeTheBestTargetOfAnAnswer) {
  const std::string task = write("g", "prompt = \"{{q}}\"\ntarget = \"{{t}}\"\nmetric = [\"exact\", \"f1\"]\n",
                                 "{\"q\": \"7\", \"t\": [\"8\", \"777\"]}\n{\"q\": \"6\", \"t\": 666}\n"
                                 "{\"q\": \"5\", \"t\": \"5\"}\n");
  const std::vector<TaskResult> results = run({task});
  const ordered_json json = json_of(results[0]);
  EXPECT_DOUBLE_EQ(json["exact"], 2.0 / 3);
  EXPECT_DOUBLE_EQ(json["exact_error"], 1.0 / 3);
  EXPECT_EQ(json["count"], 3);
  EXPECT_EQ(samples[0]["target"], ordered_json({"8", "777"}));
  EXPECT_EQ(samples[2].dump(),
            R"({"task":"g","line":3,"prompt":"5","target":"5","exact":0.0,"f1":0.0,"answer":"555"})");
  EXPECT_TRUE(std::isnan(run({task}, 1)[0].metrics[0].error));
}

TEST_F(Results, SumOverDocuments) {
  const std::string task =
      write("p", "kind = \"perplexity\"\ntarget = \"{{text}}\"\ncounted = \"{{page}}\"\n",
            "{\"text\": \"abcd\", \"page\": \"a b\"}\n{\"text\": \"abcdef\", \"page\": \"a b c d\"}\n");
  const TaskResult result = run({task})[0];
  ASSERT_EQ(result.metrics.size(), 3u);
  EXPECT_EQ(result.metrics[0].metric, "word_perplexity");
  EXPECT_DOUBLE_EQ(result.metrics[0].value, std::exp(10.0 / 6));
  EXPECT_DOUBLE_EQ(result.metrics[1].value, std::exp(10.0 / 10));
  EXPECT_DOUBLE_EQ(result.metrics[2].value, 1 / std::log(2.0));
  EXPECT_EQ(json_of(result).contains("bits_per_byte_error"), false);
  EXPECT_EQ(samples[1]["scores"], ordered_json({-6.0}));
  EXPECT_FALSE(samples[1].contains("prompt"));
}

TEST_F(Results, HaveARowForEachSubject) {
  folder.write("d/a.csv", "1,x\n");
  folder.write("d/b.csv", "2,y\n3,x\n");
  const std::string task = folder.write("s.toml", R"(name = "s"
kind = "choices"
data = "d/{{subject}}.csv"
columns = ["q", "t"]
description = "About {{subject_name}}: "
prompt = "{{q}}"
choices = ["x", "y"]
target = "{{t}}"
metric = "acc"
[subjects]
a = "Apples"
b = "Bees"
)");
  const TaskResult result = run({task})[0];
  EXPECT_EQ(result.count, 3);
  EXPECT_DOUBLE_EQ(result.metrics[0].value, 2.0 / 3);  // the mean over questions, not over subjects
  ASSERT_EQ(result.subjects.size(), 2u);
  EXPECT_EQ(json_of(result)["subjects"].dump(),
            R"({"a":{"acc":1.0,"acc_error":null,"count":1,"truncated":0,"encoded_apart":0},)"
            R"("b":{"acc":0.5,"acc_error":0.5,"count":2,"truncated":0,"encoded_apart":0}})");
  EXPECT_EQ(samples[2]["subject"], "b");
  EXPECT_EQ(samples[2]["prompt"], "About Bees: 3");
  EXPECT_EQ(samples[2]["line"], 2);
}

TEST_F(Results, CountTruncatedItems) {
  scorer = ByteScorer(6);
  const std::string choices =
      write("c", "kind = \"choices\"\nprompt = \"{{q}}\"\nchoices = [\"1\", \"22\"]\ntarget = \"1\"",
            "{\"q\": \"abcd\"}\n{\"q\": \"abcde\"}\n{\"q\": \"ab\"}\n");
  EXPECT_EQ(run({choices})[0].truncated, 1);
  const std::string answers = write("g", "prompt = \"{{q}}\"\ntarget = \"t\"\nmetric = \"exact\"\nmax_tokens = 2",
                                    "{\"q\": \"abcd\"}\n{\"q\": \"abcde\"}\n");
  EXPECT_EQ(run({answers})[0].truncated, 1);
  const std::string long_answers =
      write("l", "prompt = \"{{q}}\"\ntarget = \"t\"\nmetric = \"exact\"\nmax_tokens = 6", "{\"q\": \"a\"}\n");
  EXPECT_THAT(test::thrown_message([&] { run({long_answers}); }), HasSubstr("max_tokens must leave room"));
}

}  // namespace
}  // namespace colossal::evaluate::evaluate_test
