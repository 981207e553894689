// `colossal tokenize` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "cli/outcome.h"
#include "support/temporary_folder.h"

namespace colossal::cli::tokenize_test {
namespace {

using ::testing::HasSubstr;

constexpr char kWords[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\nplay\n##ing\n,\ncaf\n##e\n";

Outcome tokenize(const std::vector<std::string>& words) { return run_command("tokenize", words); }

TEST(Tokenize, WritesOneListPerLine) {
  const test::TemporaryFolder folder;
  const std::string vocabulary = folder.write("vocab.txt", kWords);
  const std::string file = folder.write("text", "Playing, playing\n\ncaf\xC3\xA9");
  const auto run = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--tokenizer", vocabulary, file});
    const auto outcome = tokenize(words);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_EQ(run({}), "[4,5,6,4,5]\n[]\n[7,8]\n");
  EXPECT_EQ(run({"--threads", "3"}), "[4,5,6,4,5]\n[]\n[7,8]\n");
  EXPECT_EQ(run({"--pieces"}), "[\"play\",\"##ing\",\",\",\"play\",\"##ing\"]\n[]\n[\"caf\",\"##e\"]\n");
  for (const char* threads : {"1", "3"})
    EXPECT_EQ(run({"--special", "--threads", threads}), "[2,4,5,6,4,5,3]\n[2,3]\n[2,7,8,3]\n");
  EXPECT_EQ(run({"--count"}), "7\n");
  EXPECT_EQ(run({"--whole"}), "[4,5,6,4,5,7,8]\n");
  folder.write("text", "\"playing\"\n{\"text\": \"caf\xC3\xA9\", \"label\": 1}\n");
  EXPECT_EQ(run({"--json"}), "[4,5]\n[7,8]\n");
  folder.write("text", "[2, 4, 5, 6, 3]\n[]\n");
  for (const char* threads : {"1", "3"}) EXPECT_EQ(run({"--decode", "--threads", threads}), "\"playing,\"\n\"\"\n");
  EXPECT_EQ(run({"--decode", "--special"}), "\"[CLS] playing, [SEP]\"\n\"\"\n");
}

TEST(Tokenize, RendersChats) {
  const test::TemporaryFolder folder;
  folder.write("vocab.txt", kWords);
  folder.write("tokenizer_config.json", R"({"chat_template": "{% for m in messages %}{{ m.content }}, {% endfor %})"
                                        R"({% if add_generation_prompt %}play{% endif %}"})");
  const std::string file = folder.write("chats", R"({"messages": [{"role": "user", "content": "playing"}]}
[{"role": "user", "content": "caf\u00e9"}, {"role": "assistant", "content": "play"}]
)");
  const auto run = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--chat", "--tokenizer", folder.path(), file});
    const auto outcome = tokenize(words);
    return outcome.status == 0 ? outcome.out : outcome.err;
  };
  EXPECT_EQ(run({}), "[4,5,6]\n[7,8,6,4,6]\n");
  EXPECT_EQ(run({"--rendered", "--threads", "2"}), run({"--rendered"}));
  EXPECT_EQ(run({"--rendered"}), "\"playing, \"\n\"caf\xC3\xA9, play, \"\n");
  EXPECT_EQ(run({"--rendered", "--generation-prompt"}), "\"playing, play\"\n\"caf\xC3\xA9, play, play\"\n");
  folder.write("chats", "[]\n{}\n");
  EXPECT_THAT(run({"--rendered"}), HasSubstr("line 2: a chat must be an object with \"messages\""));
  EXPECT_THAT(run({"--json"}), HasSubstr("--chat and --json"));
  EXPECT_THAT(run({"--decode"}), HasSubstr("--decode and --chat"));
  EXPECT_THAT(run({"--rendered", "--count"}), HasSubstr("--count and --rendered"));
  EXPECT_THAT(run({"--rendered", "--pieces"}), HasSubstr("--rendered and --pieces"));
  EXPECT_THAT(run({"--rendered", "--special"}), HasSubstr("--rendered and --special"));
}

TEST(Tokenize, PrintsLabelsOfChats) {
  const test::TemporaryFolder folder;
  folder.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\nuser\nassistant\nplay\nno\n");
  const std::string source =
      folder.write("chat.jinja",
                   "{% for m in messages %}{{ m.role }} {{ m.content }} {{ eos_token }}{% endfor %}"
                   "{% if add_generation_prompt %}assistant {% endif %}");
  folder.write("tokenizer_config.json",
               R"({"eos_token": "[SEP]", "chat_template": )"
               R"("{% for m in messages %}{{ messages | length }} {{ m.content }}{% endfor %}"})");
  const std::string file = folder.write("chats.jsonl", R"({"messages": [{"role": "user", "content": "play"}, )"
                                                       R"({"role": "assistant", "content": "no"}]}
[{"from": "human", "value": "play"}, {"from": "gpt", "value": "play"}, {"from": "human", "value": "no"},)"
                                                       R"( {"from": "gpt", "value": "no"}]
{"prompt": "play ", "chosen": "no", "rejected": "play"}
)");
  const auto run = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--chat", "--labels", "--tokenizer", folder.path(), file});
    const auto outcome = tokenize(words);
    return outcome.status == 0 ? outcome.out : outcome.err;
  };
  const std::string pair = R"({"chosen":{"ids":[2,6,7,3],"labels":[-100,-100,7,3]},)"
                           R"("rejected":{"ids":[2,6,6,3],"labels":[-100,-100,6,3]}})"
                           "\n";
  EXPECT_EQ(run({"--chat-template", source, "--threads", "2"}),
            R"({"ids":[4,6,3,5,7,3],"labels":[-100,-100,-100,-100,7,3]})"
            "\n"
            R"({"ids":[4,6,3,5,6,3,4,7,3,5,7,3],"labels":[-100,-100,-100,-100,6,3,-100,-100,-100,-100,7,3]})"
            "\n" +
                pair);
  EXPECT_THAT(run({"--chat-template", source, "--answers", "last"}),
              HasSubstr(R"("labels":[-100,-100,-100,-100,-100,-100,-100,-100,-100,-100,7,3]})"));
  EXPECT_THAT(run({"--chat-template", source, "--answers", "everything"}), HasSubstr(R"("labels":[4,6,3,5,7,3]})"));
  EXPECT_THAT(run({}), HasSubstr("line 1: the chat template writes the text up to message 2 differently"));
  EXPECT_THAT(run({"--pieces"}), HasSubstr("--labels and --pieces exclude each other"));
  folder.write("tokenizer_config.json", R"({"eos_token": "[SEP]"})");
  EXPECT_THAT(run({}), HasSubstr("line 1: messages need a chat template"));
  folder.write("chats.jsonl", "[{\"role\": \"bot\", \"content\": \"no\"}]\n");
  EXPECT_THAT(run({}), HasSubstr("line 1: message 1: roles are"));
  folder.write("chats.jsonl", "{\n");
  EXPECT_THAT(run({}), HasSubstr("line 1: "));
  EXPECT_THAT(tokenize({"--labels", "--tokenizer", folder.path(), file}).err, HasSubstr("--chat"));
}

TEST(Tokenize, RefusesInvalidInput) {
  const test::TemporaryFolder folder;
  const std::string vocabulary = folder.write("vocab.txt", kWords);
  const auto error = [&](const std::string& text, std::vector<std::string> words) {
    words.insert(words.end(), {"--tokenizer", vocabulary, folder.write("text", text)});
    const auto outcome = tokenize(words);
    EXPECT_NE(outcome.status, 0);
    return outcome.err;
  };
  EXPECT_THAT(error("[1]\n[1,\n", {"--decode"}), HasSubstr("line 2 must be a JSON list of token ids"));
  EXPECT_THAT(error("[1.5]\n", {"--decode"}), HasSubstr("line 1 must be a JSON list of token ids"));
  EXPECT_THAT(error("[9]\n", {"--decode"}), HasSubstr("token ids must be in [0, 9): got 9"));
  EXPECT_THAT(error("{}\n", {"--json"}), HasSubstr("line 1 must be a JSON string"));
  EXPECT_THAT(error(std::string(1000, '[') + "\n", {"--json"}), HasSubstr("nested too deeply"));
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{{"--decode", "--whole"},
                                                                                     {"--decode", "--json"},
                                                                                     {"--decode", "--count"},
                                                                                     {"--decode", "--pieces"},
                                                                                     {"--whole", "--json"},
                                                                                     {"--count", "--pieces"}})
    EXPECT_THAT(error("", flags), HasSubstr(flags[0] + " and " + flags[1] + " exclude each other"));
  EXPECT_THAT(tokenize({"--tokenizer", vocabulary, folder / "absent"}).err, HasSubstr("cannot read"));
  for (const char* flag : {"--count", "--whole"}) {
    const auto of_folder = tokenize({"--tokenizer", vocabulary, flag, folder.path()});
    EXPECT_THAT(of_folder.err, HasSubstr("cannot read " + folder.path()));
    EXPECT_EQ(of_folder.status, 1);
  }
  EXPECT_THAT(tokenize({"--tokenizer", folder / "absent"}).err, HasSubstr("there is no "));
  EXPECT_THAT(tokenize({}).err, HasSubstr("--tokenizer"));
}

TEST(Tokenize, ReportsFailedWrites) {
  const test::TemporaryFolder folder;
  const std::string vocabulary = folder.write("vocab.txt", kWords), file = folder.write("text", "playing\n");
  const std::string many = folder.write("many", [] {
    std::string lines;
    for (int i = 0; i < 100000; ++i) lines += "playing\n";
    return lines;
  }());
  for (const std::string& path : {file, many}) {  // one output fits the buffer, the other fills it
    const Outcome failed = run_on_full_disk({"tokenize", "--tokenizer", vocabulary, path});
    EXPECT_EQ(failed.status, 1);
    EXPECT_EQ(failed.err, "colossal: [output] standard output cannot be written: No space left on device\n");
  }
}

}  // namespace
}  // namespace colossal::cli::tokenize_test
