// Vocabularies learnt from a few words. That the package `tokenizers` learns the same from more,
// tests/interop/tokenizers_interop.py says.
#include "colossal/text/bpe_trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/text/tokenizer.h"
#include "support/temporary_folder.h"

namespace colossal::text::bpe_trainer_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

std::vector<std::string> joined(const LearnedBpe& learned) {
  return {learned.tokens.begin() + static_cast<std::ptrdiff_t>(learned.special) + 256, learned.tokens.end()};
}

TEST(BpeTrainer, CountsWordsByAnyNumberOfThreads) {
  for (const int threads : {1, 3}) {
    WordCounts counts{{"old", 1}};
    count_words({"a bb\n", "old bb", "", " bb"}, threads, counts);
    EXPECT_THAT(counts, testing::UnorderedElementsAre(Pair("a", 1), Pair(" bb", 3), Pair("\n", 1), Pair("old", 2)));
  }
}

TEST(BpeTrainer, JoinsTheCommonestPairThenTheLeast) {
  const auto learned = [](const WordCounts& counts, int64_t more, int64_t least = 0) {
    return joined(learn_bpe(counts, {.vocabulary_size = 256 + more, .least_count = least, .special = {}}));
  };
  EXPECT_THAT(learned({{"low", 5}, {"lower", 2}, {"newest", 6}, {"widest", 3}}, 4),
              ElementsAre("es", "est", "lo", "low"));
  EXPECT_THAT(learned({{"zb", 2}, {"ac", 2}}, 1), ElementsAre("ac")) << "of equals the least ids";
  EXPECT_THAT(learned({{"aaaa", 1}}, 3), ElementsAre("aa", "aaaa")) << "until no pair is left";
  EXPECT_THAT(learned({{"abab", 2}, {"cd", 3}}, 9, 3), ElementsAre("ab", "cd")) << "abab is there twice";
}

TEST(BpeTrainer, SpecialTokensComeFirst) {
  const LearnedBpe learned = learn_bpe({{" ab", 2}}, {.vocabulary_size = 260, .special = {"<end>", "<pad>"}});
  EXPECT_EQ(learned.tokens[0], "<end>");
  EXPECT_EQ(learned.tokens[2], "!") << "bytes are in the order of the alphabet that spells them";
  EXPECT_THAT(joined(learned), ElementsAre("ab",
                                           "\xC4\xA0"
                                           "ab"));
  test::TemporaryFolder folder;
  folder.write("tokenizer.json", tokenizer_json(learned).dump());
  const auto tokenizer = make_tokenizer(folder.path());
  EXPECT_THAT(tokenizer->encode("<pad> ab<end>"), ElementsAre(1, 259, 0));
  EXPECT_EQ(tokenizer->decode({259, 258}), " abab");
}

TEST(BpeTrainer, SaysWhatIsWrong) {
  const auto error = [](const BpeTraining& training) -> std::string {
    try {
      learn_bpe({}, training);
      return "no error";
    } catch (const Error& e) {
      return e.what();
    }
  };
  EXPECT_THAT(error({.vocabulary_size = 257, .special = {"a b", "<pad>"}}),
              HasSubstr("the vocabulary must hold 258 special tokens and bytes: got 257"));
  EXPECT_THAT(error({.vocabulary_size = 300, .special = {""}}), HasSubstr("is empty or there twice"));
  EXPECT_THAT(error({.vocabulary_size = 300, .special = {"<a>", "<a>"}}), HasSubstr("<a> is empty or there twice"));
}

}  // namespace
}  // namespace colossal::text::bpe_trainer_test
