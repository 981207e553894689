// Captions as ids of one length: bytes and CLIP's tokenizer, pads, and the words that do not fit.
#include "colossal/text/captions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/text/tokenizers/tokenizer_files.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"
#include "text/clip_files.h"

namespace colossal::text::captions_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Captions, PutBytesBetweenBeginAndEnd) {
  const Captions captions = make_captions("bytes", 8);
  EXPECT_THAT(captions("cat").ids, ElementsAre(256, 'c', 'a', 't', 257, 258, 258, 258));
  EXPECT_THAT(captions("").ids, ElementsAre(256, 257, 258, 258, 258, 258, 258, 258));
  EXPECT_THAT(captions("\xC3\xA9").ids, ElementsAre(256, 0xC3, 0xA9, 257, 258, 258, 258, 258));
  EXPECT_EQ(captions.vocabulary(), 259);
  EXPECT_EQ(make_captions("bytes").length(), 77);
}

// T5's captions have no begin token.
TEST(Captions, MayBeginWithTheirText) {
  const Captions captions = make_captions("bytes", 5, /*begins=*/false);
  EXPECT_THAT(captions("cat").ids, ElementsAre('c', 'a', 't', 257, 258));
  EXPECT_EQ(captions("cat").length, 4);
  const Caption longer = captions("a cat");
  EXPECT_THAT(longer.ids, ElementsAre('a', ' ', 'c', 'a', 257));
  EXPECT_EQ(captions.warning(longer), "the caption is longer than 4 tokens; lost: t");
}

TEST(Captions, LoseWhatDoesNotFitAndSayIt) {
  const Captions captions = make_captions("bytes", 8);
  const Caption whole = captions("a horse"), exact = captions("a hors");
  EXPECT_THAT(whole.ids, ElementsAre(256, 'a', ' ', 'h', 'o', 'r', 's', 257));
  EXPECT_EQ(whole.lost, "e");
  EXPECT_EQ(captions.warning(whole), "the caption is longer than 6 tokens; lost: e");
  EXPECT_EQ(exact.ids, whole.ids);
  EXPECT_EQ(exact.lost, "");
  EXPECT_EQ(captions.warning(exact), "");
  EXPECT_EQ(captions("a hor\xC3\xA9!").lost, "\xEF\xBF\xBD!") << "a half of a character";
}

TEST(Captions, PadWithTheTokenOfTheFolder) {
  const test::TemporaryFolder first, second, plain;
  clip::write_folder(first);
  clip::write_folder(second, {{"pad_token", "!"}});
  clip::write_folder(plain, nullptr, nlohmann::json::object());
  EXPECT_THAT(make_captions(first.path(), 6)("a photo").ids, ElementsAre(535, 320, 515, 536, 536, 536));
  EXPECT_THAT(make_captions(second.path(), 6)("a photo").ids, ElementsAre(535, 320, 515, 536, 0, 0));
  EXPECT_THAT(make_captions(plain.path(), 6)("a photo").ids, ElementsAre(535, 320, 515, 536, 536, 536));
  EXPECT_EQ(make_captions(first.path()).vocabulary(), 537);
}

TEST(Captions, LoseTheTextOfTheTokensBeyond) {
  const test::TemporaryFolder folder;
  clip::write_folder(folder);
  const Captions captions = make_captions(folder.path());
  std::string text;
  for (int i = 0; i < 75; ++i) text += "Photo  ";
  EXPECT_EQ(captions(text).lost, "");
  const Caption caption = captions(text + "A Dog, riding");
  EXPECT_EQ(caption.ids.size(), 77U);
  EXPECT_EQ(std::count(caption.ids.begin(), caption.ids.end(), 515), 75);
  EXPECT_EQ(caption.ids.back(), 536);
  EXPECT_EQ(caption.lost, "A Dog, riding");
  EXPECT_EQ(captions.warning(caption), "the caption is longer than 75 tokens; lost: A Dog, riding");
}

TEST(Captions, PutLearnedWordsInPlaceOfTheirSpelling) {
  const Captions captions = make_captions("bytes", 10).with_words({{"<b>", 2}, {"cat", 1}, {"cats", 1}}, 600);
  EXPECT_THAT(captions("a <b>!").ids, ElementsAre(256, 'a', ' ', 600, 601, '!', 257, 258, 258, 258));
  EXPECT_THAT(captions("cat").ids, ElementsAre(256, 602, 257, 258, 258, 258, 258, 258, 258, 258));
  EXPECT_THAT(captions("cats").ids, ElementsAre(256, 603, 257, 258, 258, 258, 258, 258, 258, 258)) << "the longest";
  EXPECT_THAT(captions("acat").ids, ElementsAre(256, 'a', 'c', 'a', 't', 257, 258, 258, 258, 258)) << "another word";
  EXPECT_THAT(captions("cato").ids, ElementsAre(256, 'c', 'a', 't', 'o', 257, 258, 258, 258, 258)) << "another word";
  EXPECT_EQ(captions("1234567 cat").lost, "cat");
}

TEST(Captions, NeedTokensAroundThem) {
  const test::TemporaryFolder folder;
  const TokenizerFiles files = files_of_bytes();
  folder.write("tokenizer.json", files.tokenizer.dump());
  folder.write("tokenizer_config.json", files.config.dump());
  EXPECT_THAT(test::thrown_message([&] { make_captions(folder.path()); }),
              HasSubstr("a tokenizer of captions must have a begin token in its vocabulary of 257: got -1"));
  EXPECT_THAT(test::thrown_message([&] { make_captions("bytes", 1); }), HasSubstr("must be at least 2: got 1"));
}

}  // namespace
}  // namespace colossal::text::captions_test
