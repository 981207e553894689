// Truncation of texts to a number of tokens, which keeps special tokens.
#include "colossal/text/fitted_encoding.h"

#include <gtest/gtest.h>

#include "support/temporary_folder.h"

namespace colossal::text::fitted_encoding_test {
namespace {

using Ids = std::vector<int64_t>;

TEST(FittedEncoding, TruncatesTheTextAndKeepsSpecialTokens) {
  const test::TemporaryFolder folder;
  const auto tokenizer = make_tokenizer(folder.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\nc\n"));
  const auto fitted = [&](size_t most) { return encode_fitted(*tokenizer, "a b c", most); };
  EXPECT_EQ(fitted(5).ids, Ids({2, 4, 5, 6, 3}));
  EXPECT_FALSE(fitted(5).is_cut);
  EXPECT_EQ(fitted(4).ids, Ids({2, 4, 5, 3}));
  EXPECT_TRUE(fitted(4).is_cut);
  EXPECT_EQ(fitted(2).ids, Ids({2, 3}));
  EXPECT_EQ(fitted(1).ids, Ids({2}));
  EXPECT_EQ(encode_fitted(*tokenizer, "", 2).ids, Ids({2, 3}));
}

TEST(FittedEncoding, TruncatesTextsWithoutSpecialTokens) {
  const auto tokenizer = make_tokenizer("bytes");
  EXPECT_EQ(encode_fitted(*tokenizer, "abc", 2).ids, Ids({'a', 'b'}));
  EXPECT_EQ(encode_fitted(*tokenizer, "abc", 3).ids, Ids({'a', 'b', 'c'}));
}

}  // namespace
}  // namespace colossal::text::fitted_encoding_test
