// `colossal chat` with input from a file, as a script runs it. A user at a terminal sees the same, except for the keys.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "cli/outcome.h"
#include "support/adapter_folder.h"
#include "support/generated_text.h"

namespace colossal::cli::chat_test {
namespace {

using ::testing::HasSubstr;

Outcome chat(const test::TemporaryFolder& folder, const std::string& input, std::vector<std::string> words) {
  const std::string path = folder.write("input", input);
  const int before = dup(STDIN_FILENO), file = open(path.c_str(), O_RDONLY);
  dup2(file, STDIN_FILENO);
  close(file);
  words.insert(words.end(), {"--from", folder / "hf", "--tokenizer", "bytes", "--kv-cache", "1MiB"});
  Outcome outcome = run_command("chat", words);
  dup2(before, STDIN_FILENO);
  close(before);
  return outcome;
}

class Chat : public testing::Test {
 protected:
  void SetUp() override {
    test::write_model(folder, "llama-tiny");
    folder.write("hf/chat_template.jinja", "{% for m in messages %}{{ m.content }}|{% endfor %}{{ tail }}");
  }
  test::TemporaryFolder folder;
};

TEST_F(Chat, AnswersLineByLine) {
  const std::vector<std::string> words{"--max-tokens", "4"};
  const auto one = chat(folder, "Hi\n", words);
  ASSERT_EQ(one.status, 0) << one.err;
  EXPECT_THAT(one.err, HasSubstr("stops after 4 tokens"));
  EXPECT_FALSE(one.out.empty());
  // The conversation restarts, and the last line has no line feed.
  EXPECT_EQ(chat(folder, "\nHi\r\n/clear\nHi", words).out, one.out + one.out);
  const auto system = chat(folder, "/system Be\nHi\n", words);
  EXPECT_NE(system.out, one.out);
  EXPECT_EQ(chat(folder, "Hi\n", {"--max-tokens", "4", "--system", "Be"}).out, system.out);
  EXPECT_EQ(chat(folder, "/system Be\n/system\nHi\n/exit\nHi\n", words).out, one.out);
  EXPECT_NE(chat(folder, "Hi\n", {"--max-tokens", "4", "--variables", R"({"tail": "xyz"})"}).out, one.out);
}

TEST_F(Chat, RendersByTheTemplateOfItsAdapter) {
  test::write_adapters(folder / "poet", {"q_proj", "o_proj"}, 2, 1);
  folder.write("poet/chat_template.jinja", "{% for m in messages %}[{{ m.content }}]{% endfor %}");
  const auto answer = [&](const std::string& file) {
    std::vector<std::string> words{"--max-tokens", "8", "--adapter", folder / "poet"};
    if (!file.empty()) words.insert(words.end(), {"--chat-template", folder / file});
    const Outcome outcome = chat(folder, "Hi\n", words);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_EQ(answer(""), answer("poet/chat_template.jinja"));
  EXPECT_NE(answer(""), answer("hf/chat_template.jinja"));
  unlink((folder / "hf/chat_template.jinja").c_str());
  EXPECT_FALSE(answer("").empty()) << "the model has none";
}

TEST_F(Chat, ContinuesAfterInvalidInput) {
  const std::vector<std::string> words{"--max-tokens", "4"};
  const std::string wanted = chat(folder, "Hi\n", words).out;
  const auto got = chat(folder, std::string(4000, 'x') + "\n\xff\n/what\nHi\n", words);
  EXPECT_EQ(got.status, 0);
  EXPECT_EQ(got.out, wanted);
  EXPECT_THAT(got.err, HasSubstr("must fit the model's positions"));
  EXPECT_THAT(got.err, HasSubstr("must be UTF-8"));
  EXPECT_THAT(got.err, HasSubstr("unknown command /what"));
}

TEST_F(Chat, NamesInvalidAndMissingOptions) {
  EXPECT_THAT(chat(folder, "", {"--variables", "[]"}).err, HasSubstr("must be a JSON object"));
  EXPECT_THAT(chat(folder, "", {"--variables", "{"}).err, HasSubstr("--variables: not valid JSON"));
  const std::string deep = "{\"a\": " + std::string(10000, '[') + std::string(10000, ']') + "}";
  EXPECT_THAT(chat(folder, "", {"--variables", deep}).err, HasSubstr("--variables: nested too deeply"));
  unlink((folder / "hf/chat_template.jinja").c_str());
  const auto outcome = chat(folder, "Hi\n", {});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("has no chat template"));
  EXPECT_THAT(outcome.err, HasSubstr("--chat-template"));
  const std::string file = folder.write("own.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_EQ(chat(folder, "Hi\n", {"--max-tokens", "2", "--chat-template", file}).status, 0);
}

}  // namespace
}  // namespace colossal::cli::chat_test
