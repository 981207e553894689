// `colossal tokenizer train` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "cli/outcome.h"
#include "support/temporary_folder.h"

namespace colossal::cli::train_tokenizer_test {
namespace {

using ::testing::HasSubstr;

TEST(TrainTokenizer, LearnsAVocabularyThatTokenizes) {
  const test::TemporaryFolder folder;
  const std::string lines = folder.write("lines.txt", "the cat\nthe hat\nthe cat\n");
  const std::string json = folder.write("lines.jsonl", "{\"text\": \"the cat\\n\"}\n\"the hat\\n\"\n\"the cat\\n\"\n");
  const auto train = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "train");
    return run_command("tokenizer", words);
  };
  const Outcome made =
      train({"--to", folder / "a", "--vocabulary", "262", "--threads", "2", "--special", "[PAD]", lines});
  EXPECT_EQ(made.status, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("262 tokens"));
  EXPECT_EQ(train({"--to", folder / "b", "--vocabulary", "262", "--json", "--special", "[PAD]", json}).status, 0);
  EXPECT_EQ(test::read_all(folder / "a/tokenizer.json"), test::read_all(folder / "b/tokenizer.json"));
  const Outcome pieces = run_command("tokenize", {"--tokenizer", folder / "a", "--pieces", lines});
  EXPECT_THAT(pieces.out, HasSubstr("the\""));
  folder.write("lines.txt", "[PAD]the");
  EXPECT_THAT(run_command("tokenize", {"--tokenizer", folder / "a", lines}).out, testing::StartsWith("[0,"));
  folder.write("lines.txt", "the cat\nthe hat\nthe cat\n");
  EXPECT_THAT(train({"--to", folder / "a", lines}).err, HasSubstr("already holds a tokenizer"));
  EXPECT_THAT(train({"--to", folder / "c", folder / "none"}).err, HasSubstr("cannot read " + folder / "none"));
  EXPECT_THAT(train({"--to", folder / "c", folder.path()}).err, HasSubstr("is a folder"));
  EXPECT_THAT(train({"--to", folder / "c", "--json", lines}).err, HasSubstr("line 1 must be"));
  EXPECT_THAT(train({"--to", folder / "c", "--vocabulary", "9", lines}).err, HasSubstr("which are 257: got 9"));
  EXPECT_THAT(train({"--to", folder / "c", "--special", "\xFF", lines}).err,
              HasSubstr("must be UTF-8: got \xEF\xBF\xBD"));
  EXPECT_THAT(train({"--to", folder / "c", "--kind", "unigram", "--min-frequency", "3", lines}).err,
              HasSubstr("--min-frequency needs --kind bpe"));
  const std::string packed = folder.write("texts.txt.gz", "\x1f\x8b\x08packed\n");
  EXPECT_THAT(train({"--to", folder / "c", packed}).err, HasSubstr(packed + " must be a text file: got a gzip file"));
  EXPECT_FALSE(std::filesystem::exists(folder / "c")) << "nothing is written of what could not be learned";
  EXPECT_EQ(run_command("tokenizer", {}).status, 2);
}

}  // namespace
}  // namespace colossal::cli::train_tokenizer_test
