// `colossal tokenize` as a person meets it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

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

TEST(Tokenize, WritesAListALine) {
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

TEST(Tokenize, SaysWhatIsWrong) {
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
  EXPECT_THAT(error("[9]\n", {"--decode"}), HasSubstr("token ids are in [0, 9): got 9"));
  EXPECT_THAT(error("{}\n", {"--json"}), HasSubstr("line 1 must be a JSON string"));
  EXPECT_THAT(error(std::string(1000, '[') + "\n", {"--json"}), HasSubstr("nested too deeply"));
  EXPECT_THAT(error("", {"--whole", "--decode"}), HasSubstr("--whole"));
  EXPECT_THAT(tokenize({"--tokenizer", vocabulary, folder / "absent"}).err, HasSubstr("cannot read"));
  for (const char* flag : {"--count", "--whole"}) {
    const auto of_folder = tokenize({"--tokenizer", vocabulary, flag, folder.path()});
    EXPECT_THAT(of_folder.err, HasSubstr("cannot read " + folder.path()));
    EXPECT_EQ(of_folder.status, 1);
  }
  EXPECT_THAT(tokenize({"--tokenizer", folder / "absent"}).err, HasSubstr("there is no "));
  EXPECT_THAT(tokenize({}).err, HasSubstr("--tokenizer"));
}

TEST(Tokenize, SaysThatItsOutputCannotBeWritten) {
  const test::TemporaryFolder folder;
  const std::string vocabulary = folder.write("vocab.txt", kWords), file = folder.write("text", "playing\n");
  std::vector<std::string> words{"colossal", "tokenize", "--tokenizer", vocabulary, file};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  std::fflush(stdout);
  const int out = dup(1), full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(dup2(full, 1), 0);
  testing::internal::CaptureStderr();
  const int status = main(static_cast<int>(argv.size()), argv.data());
  const std::string err = testing::internal::GetCapturedStderr();
  std::clearerr(stdout);
  ASSERT_GE(dup2(out, 1), 0);
  close(out);
  close(full);
  EXPECT_EQ(status, 1);
  EXPECT_THAT(err, HasSubstr("standard output cannot be written"));
}

TEST(TokenizerTrain, WritesATokenizerThatTokenizes) {
  const test::TemporaryFolder folder;
  const std::string text = folder.write("text", "low low\nlow");
  const std::vector<std::string> words{"train",       "--vocabulary-size", "259", "--output",
                                       folder / "to", "--special",         "[E]", text};
  const auto outcome = run_command("tokenizer", words);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("259 tokens, 2 merges, learnt from 3 words"));
  folder.write("text", "low[E]\n");
  EXPECT_EQ(tokenize({"--tokenizer", folder / "to", text}).out, "[258,0]\n");
  EXPECT_THAT(run_command("tokenizer", words).err, HasSubstr("is there already"));
  EXPECT_THAT(
      run_command("tokenizer", {"train", "--vocabulary-size", "300", "--output", folder / "x", folder.path()}).err,
      HasSubstr("cannot read"));
  EXPECT_EQ(run_command("tokenizer", {"trian"}).status, 2);
}

}  // namespace
}  // namespace colossal::cli::tokenize_test
