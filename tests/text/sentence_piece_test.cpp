// SentencePiece and tiktoken files that are built here, byte by byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/text/tokenizer.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"
#include "text/made_files.h"

namespace colossal::text::sentence_piece_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

using made::kControls, made::kMark, made::message, made::number, made::piece, made::ranks, made::trainer;

std::unique_ptr<Tokenizer> read(const std::string& bytes) {
  test::TemporaryFolder folder;
  return make_tokenizer(folder.write("a.model", bytes));
}

std::string refusal(const std::string& bytes, const char* name = "a.model") {
  test::TemporaryFolder folder;
  return test::thrown_message([&] { make_tokenizer(folder.write(name, bytes)); });
}

std::string unigram() {
  return kControls + piece(kMark, -2) + piece(kMark + "a", -1) + piece("a", -1.5) + piece("b", -1.5) + piece("ab", -2) +
         piece("<x>", 0, 4) + piece("bb", 5, 5);
}

TEST(SentencePiece, EncodesUserDefinedAndUnusedPieces) {
  const auto tokenizer = read(unigram() + trainer(1));
  EXPECT_THAT(tokenizer->encode("  a   ab "), ElementsAre(4, 4, 6)) << "extra white space is removed";
  EXPECT_THAT(tokenizer->encode("axyb"), ElementsAre(4, 0, 6)) << "neighbours that are unknown are one";
  EXPECT_THAT(tokenizer->encode("bb"), ElementsAre(3, 6, 6)) << "an unused piece is none";
  EXPECT_THAT(tokenizer->encode("b<x>b"), ElementsAre(3, 6, 8, 6));
  EXPECT_THAT(tokenizer->encode("<s>"), ElementsAre(3, 0)) << "a control symbol in a text is text";
  EXPECT_THAT(tokenizer->encode(" "), ElementsAre());
  EXPECT_THAT(tokenizer->encode_prompt("a"), ElementsAre(1, 4));
  EXPECT_EQ(tokenizer->begin_id(), 1);
  EXPECT_EQ(tokenizer->end_id(), 2);
  EXPECT_EQ(tokenizer->decode({1, 4, 3, 7, 0, 2}), "a ab \xE2\x81\x87 ");
  EXPECT_EQ(tokenizer->decode({1, 4}, true), "<s> a");
  EXPECT_EQ(tokenizer->piece(4), " a");
  EXPECT_EQ(tokenizer->spelling(4), kMark + "a");
  EXPECT_THROW(tokenizer->piece(10), Error);
}

TEST(SentencePiece, AppliesWhiteSpaceOptions) {
  const std::string keeps = message(3, number(3, 0) + number(4, 0));
  const auto tokenizer = read(unigram() + trainer(1) + keeps);
  EXPECT_THAT(tokenizer->encode(" a  b "), ElementsAre(4, 3, 3, 6, 3));
  EXPECT_EQ(tokenizer->decode({4, 3, 6}), " a b");
  const auto plain = read(unigram() + piece(" ", -1) + trainer(1) + message(3, number(5, 0)));
  EXPECT_THAT(plain->encode("a b"), ElementsAre(10, 5, 10, 6)) << "spaces are not escaped";
  const auto behind = read(unigram() + trainer(1, number(24, 1)));
  EXPECT_THAT(behind->encode("b a"), ElementsAre(6, 4, 3));
}

TEST(SentencePiece, JoinsByScoreThenFromTheLeft) {
  const std::string pieces = kControls + piece(kMark, -9) + piece("a", -9) + piece("b", -9) + piece("ab", -2) +
                             piece("aa", -1) + piece(kMark + "aa", -3) + piece("aab", -4, 5) + piece("<ab>", 0, 4);
  const auto tokenizer = read(pieces + trainer(2));
  EXPECT_THAT(tokenizer->encode("aab"), ElementsAre(8, 5)) << "aa before ab";
  EXPECT_THAT(tokenizer->encode("aaa"), ElementsAre(8, 4));
  EXPECT_THAT(tokenizer->encode("baab"), ElementsAre(3, 5, 7, 5)) << "what became an unused piece is taken apart";
  EXPECT_THAT(tokenizer->encode("a<ab>"), ElementsAre(3, 4, 10)) << "a user-defined symbol joins nothing";
  EXPECT_EQ(tokenizer->encode(std::string(200'000, 'a')).size(), 100'000u) << "minutes, were it quadratic";
}

TEST(SentencePiece, SplitsIntoWordsAndCharacters) {
  const std::string pieces = kControls + piece(kMark + "a", -1) + piece("a", -1) + piece(kMark, -1);
  EXPECT_THAT(read(pieces + trainer(3))->encode("a b a"), ElementsAre(3, 0, 3));
  EXPECT_THAT(read(pieces + trainer(3) + message(3, number(3, 0)))->encode("</s> a"), ElementsAre(0, 3));
  EXPECT_THAT(read(pieces + trainer(4))->encode("a ba"), ElementsAre(5, 4, 5, 0, 4));
}

TEST(SentencePiece, ComparesUnigramSumsInFp32) {
  const float a = std::nextafter(-1.F, 0.F);  // a + b is -8 in fp32, but more in fp64
  const std::string pieces = kControls + piece("ab", -8) + piece("a", a) + piece("b", -7);
  EXPECT_THAT(read(pieces + trainer(1) + message(3, number(3, 0)))->encode("ab"), ElementsAre(3));
}

TEST(SentencePiece, AddsSpecialTokensOfTheConfig) {
  test::TemporaryFolder folder;
  const std::string file = folder.write("a.model", unigram() + trainer(1));
  EXPECT_THAT(make_tokenizer(file)->encode_whole("a").ids, ElementsAre(1, 4));
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "T5Tokenizer", "add_bos_token": false})");
  EXPECT_THAT(make_tokenizer(file)->encode_whole("a").ids, ElementsAre(4, 2)) << "T5's texts end with </s>";
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer", "add_eos_token": true})");
  const Encoding pair = make_tokenizer(file)->encode_pair("a", "ab");
  EXPECT_THAT(pair.ids, ElementsAre(1, 4, 2, 1, 4, 6, 2)) << "each text has both tokens";
  EXPECT_THAT(pair.types, ElementsAre(0, 0, 0, 1, 1, 1, 1));
}

TEST(SentencePiece, FallsBackToBytes) {
  std::string pieces = kControls + piece(kMark + "a", -1);
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    pieces += piece(name, 0, 6);
  }
  const auto tokenizer = read(pieces + trainer(1, number(35, 1)));
  EXPECT_THAT(tokenizer->encode("a\xC3\xA9"), ElementsAre(3, 4 + 0xC3, 4 + 0xA9));
  EXPECT_EQ(tokenizer->decode({3, 4 + 0xC3, 4 + 0xA9}), "a\xC3\xA9");
  EXPECT_THAT(tokenizer->encode("a\xFF"), ElementsAre(3, 4 + 0xEF, 4 + 0xBF, 4 + 0xBD))
      << "U+FFFD for what is no UTF-8";
}

TEST(SentencePiece, RefusesDamagedFiles) {
  EXPECT_EQ(refusal(unigram() + trainer(1)), "");
  EXPECT_THAT(refusal(""), HasSubstr("one piece must be the unknown one: got 0"));
  EXPECT_THAT(refusal(unigram() + piece("a", 0)), HasSubstr("a.model: the piece a occurs twice"));
  EXPECT_THAT(refusal(unigram() + piece("", 0)), HasSubstr("a piece must not be empty"));
  EXPECT_THAT(refusal(unigram() + piece("c", 0, 7)), HasSubstr("the type of a piece must be in [1, 6]: got 7"));
  EXPECT_THAT(refusal(unigram() + piece("c", std::numeric_limits<float>::infinity())), HasSubstr("must be finite"));
  EXPECT_THAT(refusal(unigram() + piece("<0x00>", 0, 6)), HasSubstr("byte_fallback is off"));
  EXPECT_THAT(refusal(unigram() + trainer(1, number(35, 1))), HasSubstr("no piece is <0x00>"));
  EXPECT_THAT(refusal(unigram() + trainer(5)), HasSubstr("model_type must be"));
  EXPECT_THAT(refusal(unigram() + message(5, message(2, "x"))), HasSubstr("a denormalizer is not supported"));
  EXPECT_THAT(refusal(unigram() + message(3, message(2, "xxxxxxxx"))), HasSubstr("precompiled character map"));
  const std::string map = made::charsmap('q', "k");
  EXPECT_EQ(refusal(unigram() + message(3, message(2, map))), "");
  EXPECT_THAT(refusal(unigram() + message(3, message(2, map.substr(0, map.size() - 1)))),
              HasSubstr("ends within a replacement"));
  EXPECT_THAT(refusal(unigram() + message(3, message(2, made::charsmap('q', std::string(1025, 'k'))))),
              HasSubstr("must be of at most 1024 bytes: got 1025"));
  EXPECT_THAT(refusal(unigram() + "\x0A\x7F"), HasSubstr("a field ends after its message"));
  EXPECT_THAT(refusal(unigram() + "\x0B"), HasSubstr("a field of an unknown type"));
  EXPECT_THAT(refusal(unigram() + "\x80"), HasSubstr("it ends within a number"));
  EXPECT_THAT(refusal(unigram() + std::string(11, '\x80')), HasSubstr("a number of more than ten bytes"));
}

TEST(Tiktoken, JoinsByRank) {
  test::TemporaryFolder folder;
  const std::string file = folder.write("own.tiktoken", ranks());
  folder.write("encoding.json",
               json({{"pattern", R"(\p{L}+|[^\p{L}]+)"}, {"special_tokens", {{"<end>", 300}}}}).dump());
  const auto tokenizer = make_tokenizer(file);
  EXPECT_THAT(tokenizer->encode("aab"), ElementsAre(258)) << "a word that is a token is that token";
  EXPECT_THAT(tokenizer->encode("aaab"), ElementsAre(256, 257));
  EXPECT_THAT(tokenizer->encode("baab"), ElementsAre('b', 258));
  EXPECT_THAT(tokenizer->encode("a<end>\xFF"), ElementsAre('a', 300)) << "bytes that are not UTF-8 match no pattern";
  EXPECT_EQ(tokenizer->vocabulary_size(), 301);
  EXPECT_EQ(tokenizer->decode({258, 300, 0xC3, 0xA9}), "aab\xC3\xA9");
  EXPECT_EQ(tokenizer->decode({258, 300}, true), "aab<end>");
  EXPECT_EQ(tokenizer->spelling(' '), "\xC4\xA0");
  EXPECT_THAT(tokenizer->encode_pair("ab", "a").types, ElementsAre(0, 1));
  const std::string known = folder.write("gpt2.bpe", ranks());
  EXPECT_THAT(make_tokenizer(known)->encode("ab 1"), ElementsAre(257, ' ', '1'));
}

TEST(Tiktoken, RefusesDamagedFiles) {
  EXPECT_THAT(refusal(ranks(), "own.txt2"), HasSubstr("without a pattern: name it gpt2"));
  EXPECT_THAT(refusal(ranks() + "YWE= x\n", "gpt2.bpe"), HasSubstr("line 260 must be a token in base64"));
  EXPECT_THAT(refusal(ranks() + "YWE= 900\n", "gpt2.bpe"),
              HasSubstr("line 260: a token or a rank is empty or occurs twice"));
  EXPECT_THAT(refusal(ranks() + "YWF* 900\n", "gpt2.bpe"), HasSubstr("base64 has no character of code 42"));
  EXPECT_THAT(refusal(ranks() + "YWFhYQ== 9999999999\n", "gpt2.bpe"), HasSubstr("must be in [0, "));
  std::string longest;
  for (int i = 0; i < 342; ++i) longest += "YWFh";
  EXPECT_THAT(refusal(ranks() + longest + " 900\n", "gpt2.bpe"),
              HasSubstr("line 260: a token must be of at most 1024 bytes: got 1026"));
  EXPECT_THAT(refusal("YWE= 0\n", "gpt2.bpe"), HasSubstr("the byte 0 must have a rank"));
}

}  // namespace
}  // namespace colossal::text::sentence_piece_test
