// The tokenizer of letters against ids computed with EsmTokenizer of transformers 5.23.
#include "colossal/text/tokenizers/letters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::text::letters_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int64_t>;

constexpr char kVocabulary[] =
    "<cls>\n<pad>\n<eos>\n<unk>\nL\nA\nG\nV\nS\nE\nR\nT\nI\nD\nP\nK\nQ\nN\nF\nY\nM\nH\nW\nC\nX\nB\nU\nZ\nO\n.\n-\n"
    "<null_1>\n<mask>";

/// A folder with a vocab.txt, which make_tokenizer() reads.
struct Folder {
  explicit Folder(const std::string& config = "", const std::string& vocabulary = kVocabulary) {
    folder.write("vocab.txt", vocabulary);
    if (!config.empty()) folder.write("tokenizer_config.json", config);
  }
  std::unique_ptr<Tokenizer> tokenizer() const { return make_tokenizer(folder.path()); }
  test::TemporaryFolder folder;
};

TEST(Letters, GiveTheIdsOfTransformers) {
  const auto tokenizer = Folder().tokenizer();
  const std::vector<std::pair<std::string, Ids>> rows{{"MKTAYI", {20, 15, 11, 5, 19, 12}},
                                                      {"MK<mask>T", {20, 15, 32, 11}},
                                                      {" M K\tT ", {20, 15, 11}},
                                                      {"MjjK k", {20, 3, 15, 3}},
                                                      {"<cls>M<eos>", {0, 20, 2}},
                                                      {"<null_1>.-X", {31, 29, 30, 24}},
                                                      {"<c<clsM", {3, 20}},
                                                      {"\u00e9 M", {3, 20}},
                                                      {"M<mask", {20, 3}},
                                                      {"MKJ OUBZ", {20, 15, 3, 28, 26, 25, 27}},
                                                      {"", {}}};
  for (const auto& [text, ids] : rows) {
    EXPECT_EQ(tokenizer->encode(text), ids) << text;
    EXPECT_EQ(tokenizer->encode_placed(text).ids, ids) << text;
    Ids whole = ids;
    whole.insert(whole.begin(), 0), whole.push_back(2);
    EXPECT_EQ(tokenizer->encode_whole(text).ids, whole) << text;
    EXPECT_EQ(tokenizer->encode_document(text), whole) << text;
  }
  EXPECT_THAT(tokenizer->encode_pair("MK", "A").ids, ElementsAre(0, 20, 15, 2, 5, 2));
  EXPECT_THAT(tokenizer->encode_placed(" M jjK").begins, ElementsAre(1, 3, 5));
}

TEST(Letters, NameTheirSpecialTokens) {
  const auto tokenizer = Folder().tokenizer();
  EXPECT_EQ(tokenizer->vocabulary_size(), 33);
  EXPECT_EQ(tokenizer->begin_id(), 0);
  EXPECT_EQ(tokenizer->end_id(), 2);
  EXPECT_EQ(tokenizer->mask_id(), 32);
  EXPECT_EQ(tokenizer->spelling(32), "<mask>");
  EXPECT_EQ(tokenizer->decode({0, 20, 15, 32, 31, 2}), "MK<null_1>");
  EXPECT_EQ(tokenizer->decode({0, 20, 15, 32, 2}, true), "<cls>MK<mask><eos>");
  EXPECT_THAT(test::thrown_message([&] { tokenizer->spelling(33); }), HasSubstr("must be in [0, 33): got 33"));
}

// The class decides if tokenizer_config.json names one. Else the vocabulary does.
TEST(Letters, FollowClassOrVocabulary) {
  EXPECT_EQ(Folder(R"({"tokenizer_class": "EsmTokenizer"})").tokenizer()->mask_id(), 32);
  EXPECT_EQ(Folder(R"({"tokenizer_class": "EsmTokenizer", "mask_token": {"content": "-"}})").tokenizer()->mask_id(),
            30);
  const auto words = Folder("", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nmk\n").tokenizer();
  EXPECT_THAT(words->encode_whole("MK").ids, ElementsAre(2, 5, 3));
  EXPECT_THAT(
      test::thrown_message([] { Folder(R"({"tokenizer_class": "EsmTokenizer", "cls_token": "<s>"})").tokenizer(); }),
      HasSubstr("vocab.txt: the cls token <s> must be in the vocabulary; add it"));
}

}  // namespace
}  // namespace colossal::text::letters_test
