// `colossal evaluate --tasks` as a user runs it. Values are tested in tests/evaluate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "cli/outcome.h"
#include "colossal/base/json.h"
#include "support/adapter_folder.h"
#include "support/generated_text.h"
#include "support/temporary_folder.h"

namespace colossal::cli::evaluate_test {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;

class Evaluate : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new test::TemporaryFolder;
    test::write_model(*folder_, "gpt2-tiny");
    folder_->write("data/q.jsonl",
                   "{\"q\": \"to be\", \"c\": [\"or\", \"not\"], \"a\": 0}\n"
                   "{\"q\": \"or not\", \"c\": [\"to\", \"be\", \"it\"], \"a\": \"be\"}\n");
    folder_->write("ask.toml",
                   "name = \"ask\"\nkind = \"choices\"\ndata = \"q.jsonl\"\nprompt = \"{{q}}\"\n"
                   "choices = \"{{c}}\"\ntarget = \"{{a}}\"\n");
    folder_->write("say.toml",
                   "name = \"say\"\ndata = \"q.jsonl\"\nprompt = \"{{q}}\"\ntarget = \"{{c[0]}}\"\n"
                   "metric = [\"exact\", \"f1\"]\nmax_tokens = 3\n");
  }
  static void TearDownTestSuite() { delete folder_; }
  static const test::TemporaryFolder& folder() { return *folder_; }

  static Outcome evaluate(std::vector<std::string> words) {
    words.insert(words.begin(), {"--from", folder() / "run"});
    return run_command("evaluate", words);
  }
  static Outcome on_tasks(std::vector<std::string> words) {
    words.insert(words.begin(),
                 {"--tasks", folder() / "ask.toml" + "," + (folder() / "say.toml"), "--data", folder() / "data"});
    return evaluate(words);
  }

 private:
  static inline test::TemporaryFolder* folder_ = nullptr;
};

TEST_F(Evaluate, PrintsAnObjectOfTasksAndWritesSamples) {
  const Outcome outcome = on_tasks({"--json", "--samples", folder() / "samples.jsonl"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const ordered_json json = ordered_json::parse(outcome.out);
  EXPECT_EQ(json["ask"]["count"], 2);
  EXPECT_EQ(json["ask"]["dtype"], "fp32");
  EXPECT_TRUE(json["ask"].contains("acc_norm_error"));
  EXPECT_EQ(json["say"]["shots"], 0);
  EXPECT_TRUE(json["say"].contains("f1_error"));
  std::istringstream lines(test::read_all(folder() / "samples.jsonl"));
  std::vector<ordered_json> samples;
  for (std::string line; std::getline(lines, line);) samples.push_back(ordered_json::parse(line));
  ASSERT_EQ(samples.size(), 4u);
  EXPECT_EQ(samples[1]["task"], "ask");
  EXPECT_EQ(samples[1]["line"], 2);
  EXPECT_EQ(samples[1]["target"], "be");
  EXPECT_EQ(samples[1]["scores"].size(), 3u);
  EXPECT_TRUE(samples[2]["answer"].is_string());
  const Outcome narrow = on_tasks({"--json", "--step-tokens", "96"});
  EXPECT_EQ(narrow.out, outcome.out);
}

TEST_F(Evaluate, PrintsATable) {
  const Outcome outcome = on_tasks({"--shots", "1", "--limit", "1"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("task                              metric"));
  EXPECT_THAT(outcome.out, HasSubstr("say: shots 1, chat template off, fp32"));
}

TEST_F(Evaluate, RendersByTheTemplateOfAnAdapter) {
  const test::TemporaryFolder own;
  test::write_model(own, "llama-tiny");
  test::write_adapters(own / "poet", {"q_proj"}, 2, 1);
  own.write("poet/chat_template.jinja", "{% for m in messages %}[{{ m.content }}]{% endfor %}");
  own.write("run/chat_template.jinja", "{% for m in messages %}<{{ m.content }}>{% endfor %}");
  const Outcome outcome =
      run_command("evaluate", {"--from", own / "run", "--adapter", own / "poet", "--tasks", folder() / "ask.toml",
                               "--data", folder() / "data", "--chat-template", "--samples", own / "samples.jsonl"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(test::read_all(own / "samples.jsonl"), HasSubstr(R"("prompt":"[to be]")"));
}

TEST_F(Evaluate, RefusesOptionsWithoutEffect) {
  EXPECT_THAT(evaluate({}).err,
              HasSubstr("exactly one of --perplexity, --tasks, --pictures, --reconstruct and --structures"));
  EXPECT_THAT(evaluate({"--perplexity", "x", "--shots", "1", "--kv-cache", "1MiB"}).err,
              HasSubstr("--shots and --kv-cache have no effect without --tasks"));
  EXPECT_THAT(on_tasks({"--stride", "2"}).err, HasSubstr("--stride has no effect without --perplexity"));
  EXPECT_THAT(on_tasks({"--chat-template"}).err, HasSubstr("has no chat template; leave out --chat-template"));
  EXPECT_THAT(evaluate({"--tasks", "arc_eazy"}).err, HasSubstr("did you mean `arc_easy`?"));
}

}  // namespace
}  // namespace colossal::cli::evaluate_test
