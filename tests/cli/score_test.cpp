// `colossal score` as a user runs it, from a run that trains a reward model. tests/interop compares scores with
// transformers, tests/align with those in training.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "cli/outcome.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "support/generated_text.h"
#include "support/paths.h"
#include "support/temporary_folder.h"

namespace colossal::cli::score_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::HasSubstr;

class Score : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new test::TemporaryFolder;
    std::string lines;
    for (int i = 0; i < 24; ++i)
      lines += concat(R"({"prompt": "Add )", i, R"(: ", "chosen": "It is )", i, R"(.", "rejected": "no"})", "\n");
    lines += R"({"prompt": "Add 2: ", "answers": ["It is 2.", "It is", "no"]})"
             "\n";
    folder().write("pairs.jsonl", lines);
    train({"--alignment.method=sft", "--training.steps=1", "--run.folder=" + (folder() / "base"),
           "--data.path=" + folder().write("chats.jsonl", R"({"prompt": "a", "completion": "b"})")});
    train(reward({"--run.folder=" + (folder() / "run")}));
  }
  static void TearDownTestSuite() { delete folder_; }
  static const test::TemporaryFolder& folder() { return *folder_; }

  static std::vector<std::string> reward(const std::vector<std::string>& flags) {
    std::vector<std::string> all{"--alignment.method=reward", "--alignment.answers=3",
                                 "--data.path=" + (folder() / "pairs.jsonl"), "--training.steps=10"};
    all.insert(all.end(), flags.begin(), flags.end());
    return all;
  }
  static void train(const std::vector<std::string>& flags) {
    std::vector<std::string> words{test::source_dir() + "/examples/sft.toml",
                                   "--run.device=cpu",
                                   "--data.chat_template=",
                                   "--data.sequence=32",
                                   "--data.held_out=0",
                                   "--training.batch_size=8",
                                   "--optimizer.learning_rate=0.005",
                                   "--optimizer.warmup_steps=0",
                                   "--training.evaluate_batches=0",
                                   "--training.sample_tokens=0"};
    words.insert(words.end(), flags.begin(), flags.end());
    const bool has_source =
        std::any_of(flags.begin(), flags.end(), [](const auto& flag) { return flag.starts_with("--model.from"); });
    if (!has_source)
      words.insert(words.end(), {"--model.hidden=32", "--model.layers=2", "--model.heads=4", "--model.kv_heads=4",
                                 "--model.ffn=32", "--model.positions=64"});
    const Outcome outcome = run_command("train", words);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
  }
  static Outcome score(std::vector<std::string> words, const std::string& from = "run") {
    words.insert(words.begin(), {"--from", folder() / from});
    return run_command("score", words);
  }
  static std::vector<json> lines_of(const Outcome& outcome) {
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    std::vector<json> lines;
    for (size_t begin = 0; begin < outcome.out.size();) {
      const size_t end = outcome.out.find('\n', begin);
      lines.push_back(json::parse(outcome.out.substr(begin, end - begin)));
      begin = end + 1;
    }
    return lines;
  }

 private:
  static inline test::TemporaryFolder* folder_ = nullptr;
};

TEST_F(Score, PrintsALineForEachKindOfRecord) {
  const std::string input = folder().write("in.jsonl", R"({"prompt": "Add 5: ", "chosen": "It is 5.", "rejected": "no"}

{"prompt": "Add 5: ", "completion": "It is 5."}
{"prompt": "Add 5: ", "answers": ["It is 5.", "no"]}
{"text": "Add 5: no"}
)");
  const Outcome outcome = score({"--input", input});
  const std::vector<json> lines = lines_of(outcome);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0].size(), 3u);
  EXPECT_EQ(lines[0]["line"], 1);
  EXPECT_GT(lines[0]["chosen"].get<double>(), lines[0]["rejected"].get<double>());
  EXPECT_EQ(lines[1], (json{{"line", 3}, {"score", lines[0]["chosen"]}})) << "the same bits in any batch";
  EXPECT_EQ(lines[2], (json{{"line", 4}, {"scores", {lines[0]["chosen"], lines[0]["rejected"]}}}));
  EXPECT_EQ(lines[3], (json{{"line", 5}, {"score", lines[0]["rejected"]}}));
  EXPECT_THAT(outcome.err, HasSubstr("1 pair, 100.0 % of them with the higher score for the chosen answer"));
}

TEST_F(Score, GivesTheSameScoresFromEveryFolder) {
  const std::vector<std::string> input{"--input", folder() / "pairs.jsonl"};
  const Outcome want = score(input);
  ASSERT_EQ(run_command("export", {"--from", folder() / "run", "--to", folder() / "hf"}).status, 0);
  EXPECT_EQ(score(input, "hf").out, want.out);
  train(reward({"--model.from=" + (folder() / "base"), "--adapter.kind=lora", "--adapter.rank=2",
                "--run.folder=" + (folder() / "lora")}));
  const std::vector<json> of_run = lines_of(score(input, "lora"));
  ASSERT_EQ(run_command("export", {"--from", folder() / "lora", "--adapter-only", "--to", folder() / "peft"}).status,
            0);
  const json config = json::parse(test::read_all(folder() / "peft/adapter_config.json"));
  EXPECT_EQ(config["task_type"], "SEQ_CLS");
  EXPECT_EQ(config["modules_to_save"], json::array({"score"}));
  for (const char* adapter : {"lora", "peft"}) {
    std::vector<std::string> words = input;
    words.insert(words.end(), {"--adapter", folder() / adapter});
    const std::vector<json> beside = lines_of(score(words, "base"));
    ASSERT_EQ(beside.size(), of_run.size()) << adapter;
    for (size_t i = 0; i + 1 < of_run.size(); ++i)  // the last line is a ranking
      EXPECT_NEAR(beside[i]["chosen"].get<double>(), of_run[i]["chosen"].get<double>(), 1e-5) << adapter;
  }
  ASSERT_EQ(run_command("export", {"--from", folder() / "lora", "--to", folder() / "merged"}).status, 0);
  EXPECT_NEAR(lines_of(score(input, "merged"))[0]["chosen"].get<double>(), of_run[0]["chosen"].get<double>(), 1e-5);
}

TEST_F(Score, RefusesWhatHasNoScore) {
  const std::string pair = R"({"prompt": "q", "chosen": "a", "rejected": "b"})";
  const auto refused = [&](const std::string& line, const std::vector<std::string>& flags = {}) {
    std::vector<std::string> words{"--input", folder().write("bad.jsonl", line + "\n")};
    words.insert(words.end(), flags.begin(), flags.end());
    const Outcome outcome = score(words);
    EXPECT_NE(outcome.status, 0);
    EXPECT_EQ(outcome.out, "");
    return outcome.err;
  };
  EXPECT_THAT(refused("{"), HasSubstr("bad.jsonl:1"));
  EXPECT_THAT(refused(pair + "\n" + R"({"prompt": "q", "answers": ["a"]})"),
              AllOf(HasSubstr("bad.jsonl:2"), HasSubstr("two or more")));
  EXPECT_THAT(refused(json{{"text", std::string(80, 'a')}}.dump()),
              AllOf(HasSubstr("bad.jsonl:1"), HasSubstr("positions")));
  EXPECT_THAT(refused(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})"),
              HasSubstr("--chat-template"));
  EXPECT_THAT(score({"--input", folder() / "nowhere"}).err, HasSubstr("cannot read"));
  EXPECT_THAT(score({"--input", folder() / "pairs.jsonl"}, "base").err,
              AllOf(HasSubstr("[score]"), HasSubstr("it has no head of a reward model")));
  EXPECT_THAT(score({"--input", "-", "--parallel.tensor=2"}).err,
              HasSubstr("several ranks cannot read standard input"));
}

TEST_F(Score, NamesItsCommandWhereTextIsNeeded) {
  EXPECT_THAT(run_command("generate", {"--from", folder() / "run", "--prompt", "a"}).err,
              HasSubstr("`colossal score`"));
  EXPECT_THAT(run_command("serve", {"--from", folder() / "run", "--port", "0"}).err, HasSubstr("`colossal score`"));
  folder().write("template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_THAT(run_command("chat", {"--from", folder() / "run", "--chat-template", folder() / "template.jinja"}).err,
              HasSubstr("`colossal score`"));
  EXPECT_THAT(run_command("embed", {"--from", folder() / "run", "--text", "a"}).err, HasSubstr("which scores text"));
}

}  // namespace
}  // namespace colossal::cli::score_test
