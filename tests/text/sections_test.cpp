// The effect of each section of a tokenizer.json, on vocabularies of a few tokens. tests/interop/tokenizers_interop.py
// checks that the package `tokenizers` gives the same results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/text/tokenizers/decoder.h"
#include "colossal/text/tokenizers/json_model.h"
#include "colossal/text/tokenizers/normalizer.h"
#include "colossal/text/tokenizers/post_processor.h"
#include "colossal/text/tokenizers/tokenizer_files.h"
#include "support/temporary_folder.h"
#include "text/made_files.h"

namespace colossal::text::sections_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int64_t>;

const std::string kMark = kMetaspace;

std::string normal(const json& section, const std::string& text) { return Normalizer(section)(text).text; }

json typed(const char* type, json options = json::object()) {
  options["type"] = type;
  return options;
}

Ids encoded(const json& model, const std::string& word, bool bytes = false) {
  Ids ids;
  parse_model(model, bytes)->encode(word, ids);
  return ids;
}

TEST(Normalizer, AppliesUnicodeForms) {
  EXPECT_EQ(normal(typed("NFD"), "\xC3\xA9"), "e\xCC\x81");
  EXPECT_EQ(normal(typed("NFC"), "e\xCC\x81"), "\xC3\xA9");
  EXPECT_EQ(normal(typed("NFKC"), "\xEF\xAC\x81\xC2\xBD"),
            "fi1\xE2\x81\x84"
            "2");
  EXPECT_EQ(normal(typed("NFKD"), "\xEA\xB0\x81"), "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8") << "a Hangul syllable";
  EXPECT_EQ(normal(typed("NFD"), "a\xCC\x81\xCC\xA3"), "a\xCC\xA3\xCC\x81") << "marks in the order of their classes";
  EXPECT_EQ(normal(typed("NFC"), "a\xFF"), "a\xEF\xBF\xBD");
  std::string marks = "a";
  for (int i = 0; i < 200'000; ++i) marks += i % 2 ? "\xCC\x81" : "\xCC\xA3";
  EXPECT_EQ(normal(typed("NFD"), marks).size(), marks.size()) << "minutes, were it quadratic";
}

TEST(Normalizer, AppliesCharacterRules) {
  EXPECT_EQ(normal(typed("Lowercase"), "\xC4\xB0\xC3\x89\xCE\xA3"), "i\xCC\x87\xC3\xA9\xCF\x83");
  EXPECT_EQ(normal(typed("StripAccents"), "e\xCC\x81"), "e");
  EXPECT_EQ(normal(typed("Strip"), " a b\xE3\x80\x80"), "a b");
  EXPECT_EQ(normal(typed("Strip", {{"strip_left", false}}), " a "), " a");
  EXPECT_EQ(normal(typed("Strip", {{"strip_right", false}}), " a "), "a ");
  EXPECT_EQ(normal(typed("Strip"), "  "), "");
  EXPECT_EQ(normal(typed("Nmt"), "a\x01\t\xE2\x80\x8B\xEF\xBB\xBF"), "a   ");
  EXPECT_EQ(normal(typed("Prepend", {{"prepend", "_"}}), "a"), "_a");
  EXPECT_EQ(normal(typed("Prepend", {{"prepend", "_"}}), ""), "");
  EXPECT_EQ(normal(typed("ByteLevel"), " a"),
            "\xC4\xA0"
            "a");
  EXPECT_EQ(normal(typed("Replace", {{"pattern", {{"String", " "}}}, {"content", "_"}}), "a b"), "a_b");
  EXPECT_EQ(normal(typed("Replace", {{"pattern", {{"Regex", " {2,}"}}}, {"content", " "}}), "a   b c"), "a b c");
  EXPECT_EQ(normal(typed("Replace", {{"pattern", {{"Regex", "x*"}}}, {"content", "-"}}), "axb"), "-a-b-");
  const json both = typed("Sequence", {{"normalizers", {typed("NFD"), typed("StripAccents"), typed("Lowercase")}}});
  EXPECT_EQ(normal(both, "\xC3\x89"), "e");
}

TEST(Normalizer, NormalizesLikeBert) {
  EXPECT_EQ(normal(typed("BertNormalizer"),
                   "\xC3\x89\t\x07\xEF\xBF\xBD"
                   "a\xE6\xBC\xA2"
                   "b"),
            "e a \xE6\xBC\xA2 b");
  const json cased = typed("BertNormalizer", {{"lowercase", false}, {"strip_accents", nullptr}});
  EXPECT_EQ(normal(cased, "\xC3\x89"), "\xC3\x89");
  const json kept =
      typed("BertNormalizer", {{"clean_text", false}, {"handle_chinese_chars", false}, {"strip_accents", false}});
  EXPECT_EQ(normal(kept, "\xC3\x89\t\xE6\xBC\xA2"), "\xC3\xA9\t\xE6\xBC\xA2");
}

TEST(Normalizer, AppliesPrecompiledMaps) {
  const json map = typed("Precompiled", {{"precompiled_charsmap", made::base64(made::charsmap('q', "kw"))}});
  EXPECT_EQ(normal(map, "aq q"), "akw kw");
  EXPECT_EQ(normal(map,
                   "q\xCC\x81"
                   "a"),
            "kwa")
      << "a cluster of few bytes is replaced whole, as the package does";
  EXPECT_EQ(normal(typed("Precompiled"), "aq"), "aq");
}

const json kVocabulary = {{"<unk>", 0},  {"a", 1},      {"b", 2},      {"ab", 3}, {"@a", 4},  {"b</w>", 5},
                          {"ab</w>", 6}, {"<0xC3>", 7}, {"<0xA9>", 8}, {"aa", 9}, {"@b", 10}, {"a@b", 11}};

json bpe(json options) {
  options["type"] = "BPE";
  options["vocab"] = kVocabulary;
  if (!options.contains("merges")) options["merges"] = {"a b", "a b</w>"};
  return options;
}

TEST(Model, AppliesBpeOptions) {
  EXPECT_THAT(encoded(bpe({}), "abxa"), ElementsAre(3, 1)) << "what has no token is dropped";
  EXPECT_THAT(encoded(bpe({{"unk_token", "<unk>"}}), "xyb"), ElementsAre(0, 0, 2));
  EXPECT_THAT(encoded(bpe({{"unk_token", "<unk>"}, {"fuse_unk", true}}), "xyb"), ElementsAre(0, 2));
  EXPECT_THAT(encoded(bpe({{"byte_fallback", true}, {"unk_token", "<unk>"}}), "\xC3\xA9x"), ElementsAre(7, 8, 0));
  EXPECT_THAT(encoded(bpe({{"byte_fallback", true}, {"unk_token", "<unk>"}}),
                      "x\xC3\xA9"
                      "a"),
              ElementsAre(7, 8, 0, 1))
      << "the unknown one waits for the next that is known, as in the package";
  EXPECT_THAT(encoded(bpe({{"end_of_word_suffix", "</w>"}}), "aab"), ElementsAre(1, 6));
  EXPECT_THAT(encoded(bpe({{"continuing_subword_prefix", "@"}, {"merges", {"a @b"}}}), "ab"), ElementsAre(3));
  EXPECT_THAT(encoded(bpe({{"continuing_subword_prefix", "@"}, {"merges", json::array()}}), "aba"),
              ElementsAre(1, 10, 4));
  EXPECT_THAT(encoded(bpe({{"merges", json::array()}}), "aa"), ElementsAre(1, 1));
  EXPECT_THAT(encoded(bpe({{"merges", json::array()}, {"ignore_merges", true}}), "aa"), ElementsAre(9));
  EXPECT_THAT(encoded(bpe({{"merges", json::array({json::array({"a", "b"})})}}), "ab"), ElementsAre(3));
}

TEST(Model, JoinsLongAndShortWordsAlike) {
  const json model = {
      {"type", "BPE"},
      {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}, {"ba", 3}, {"aba", 4}, {"abab", 5}, {"bb", 6}, {"c", 7}}},
      {"merges", {"a b", "b b", "b a", "ab ab", "ab a"}}};
  const auto made = parse_model(model, false);
  unsigned state = 7;
  for (int i = 0; i < 200; ++i) {
    std::string word;
    for (int n = 0; n < 40; ++n) word += (state = state * 1664525 + 1013904223) >> 31 ? 'a' : 'b';
    Ids few, many;
    made->encode(word, few);
    made->encode(std::string(60, 'c') + word, many);  // c is never joined with another character
    ASSERT_EQ(few, Ids(many.begin() + 60, many.end())) << word;
  }
}

TEST(Model, EncodesByUnigram) {
  json rows = json::array();
  for (const auto& [piece, score] : std::vector<std::pair<const char*, double>>{
           {"<unk>", 0.0}, {"a", -1.0}, {"b", -1.0}, {"ab", -1.5}, {"abc", -9.0}, {"<0xC3>", -2.0}, {"<0xA9>", -2.0}})
    rows.push_back(json::array({piece, score}));
  json model = {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", rows}};
  EXPECT_THAT(encoded(model, "abab"), ElementsAre(3, 3));
  EXPECT_THAT(encoded(model, "abxya"), ElementsAre(3, 0, 1)) << "neighbours that are unknown are one";
  EXPECT_THAT(encoded(model, "abc"), ElementsAre(4)) << "unknown costs ten more than the least score";
  model["byte_fallback"] = true;
  EXPECT_THAT(encoded(model, "a\xC3\xA9"), ElementsAre(1, 5, 6));
  model.erase("unk_id");
  EXPECT_THROW(encoded(model, "x"), Error);
  model["unk_id"] = 7;
  EXPECT_THROW(encoded(model, "a"), Error);
}

TEST(Model, EncodesByWordPieceAndWordLevel) {
  json model = {{"type", "WordPiece"},
                {"vocab", {{"[UNK]", 0}, {"play", 1}, {"##ing", 2}, {"##s", 3}, {"pl", 4}, {"\xC3\xA9", 5}}},
                {"max_input_chars_per_word", 8}};
  EXPECT_THAT(encoded(model, "playing"), ElementsAre(1, 2));
  EXPECT_THAT(encoded(model, "playingx"), ElementsAre(0));
  EXPECT_THAT(encoded(model, "playingss"), ElementsAre(0)) << "nine characters";
  EXPECT_THAT(encoded(model, "\xC3\xA9s"), ElementsAre(5, 3));
  model["unk_token"] = "[NONE]";
  EXPECT_THROW(encoded(model, "x"), Error);
  const json level = {{"type", "WordLevel"}, {"vocab", {{"<unk>", 0}, {"word", 1}}}, {"unk_token", "<unk>"}};
  EXPECT_THAT(encoded(level, "word"), ElementsAre(1));
  EXPECT_THAT(encoded(level, "words"), ElementsAre(0));
}

TEST(Model, ReadsOldFilesWithoutType) {
  json model = bpe({});
  model.erase("type");
  EXPECT_STREQ(model_type(model), "BPE");
  EXPECT_STREQ(model_type({{"vocab", json::array()}}), "Unigram");
  EXPECT_STREQ(model_type({{"vocab", json::object()}, {"max_input_chars_per_word", 100}}), "WordPiece");
  EXPECT_STREQ(model_type({{"vocab", json::object()}}), "WordLevel");
}

TEST(Decoder, DecodesByType) {
  const auto decoded = [](const json& section, const std::vector<std::string>& tokens) {
    return Decoder(section)(tokens);
  };
  EXPECT_EQ(decoded(nullptr, {"a", "b"}), "a b");
  EXPECT_EQ(decoded(typed("ByteLevel"), {"\xC4\xA0"
                                         "a",
                                         "\xE6\xBC\xA2"}),
            " a\xE6\xBC\xA2");
  EXPECT_EQ(decoded(typed("WordPiece"), {"play", "##ing", ",", "do", "n't"}), "playing, don't");
  EXPECT_EQ(decoded(typed("WordPiece", {{"cleanup", false}}), {"a", "."}), "a .");
  EXPECT_EQ(decoded(typed("Metaspace"), {kMark + "a", kMark + "b"}), "a b");
  EXPECT_EQ(decoded(typed("Metaspace", {{"prepend_scheme", "never"}}), {kMark + "a"}), " a");
  EXPECT_EQ(decoded(typed("BPEDecoder"), {"a", "b</w>", "c</w>"}), "ab c");
  EXPECT_EQ(decoded(typed("ByteFallback"), {"<0xC3>", "<0xA9>", "<0xZZ>"}), "\xC3\xA9<0xZZ>");
  EXPECT_EQ(decoded(typed("CTC"), {"a", "a", "<pad>", "a", "|", "b"}), "aa b");
  EXPECT_EQ(decoded(typed("Strip", {{"content", " "}, {"start", 1}, {"stop", 1}}), {"  a", "b  "}), " ab ");
  EXPECT_EQ(decoded(typed("Strip", {{"start", std::numeric_limits<int64_t>::max()}}), {"  "}), "");
  EXPECT_THAT(
      [&] { decoded(typed("Strip", {{"content", ""}, {"start", std::numeric_limits<int64_t>::max()}}), {"a"}); },
      testing::ThrowsMessage<Error>(HasSubstr("must be one character")))
      << "it never ended";
  EXPECT_THAT([&] { decoded(typed("Strip", {{"start", -1}}), {"a"}); },
              testing::ThrowsMessage<Error>(HasSubstr("must not be negative: got -1 and 0")));
  const json strip = typed("Strip", {{"content", " "}, {"start", 1}, {"stop", 0}});
  const json llama = typed("Sequence", {{"decoders",
                                         {typed("Replace", {{"pattern", {{"String", kMark}}}, {"content", " "}}),
                                          typed("ByteFallback"), typed("Fuse"), strip}}});
  EXPECT_EQ(decoded(llama, {kMark + "a", kMark + "b", "<0x21>"}), "a b!");
  EXPECT_EQ(Decoder(llama)({kMark + "a"}, true), " a") << "within a text nothing is taken from its front";
}

TEST(PostProcessor, AddsSpecialTokensToTextsAndPairs) {
  const json bert = typed("BertProcessing", {{"sep", {"[SEP]", 9}}, {"cls", {"[CLS]", 8}}});
  EXPECT_THAT(PostProcessor(bert)({1, 2}).ids, ElementsAre(8, 1, 2, 9));
  EXPECT_THAT(PostProcessor(bert)({1}, {2, 3}).ids, ElementsAre(8, 1, 9, 2, 3, 9));
  EXPECT_THAT(PostProcessor(bert)({1}, {2, 3}).types, ElementsAre(0, 0, 0, 1, 1, 1));
  json roberta = bert;
  roberta["type"] = "RobertaProcessing";
  EXPECT_THAT(PostProcessor(roberta)({1}, {2}).ids, ElementsAre(8, 1, 9, 9, 2, 9));
  EXPECT_THAT(PostProcessor(roberta)({1}, {2}).types, ElementsAre(0, 0, 0, 0, 0, 0));
  const auto token = [](int type) { return json{{"SpecialToken", {{"id", "x"}, {"type_id", type}}}}; };
  const auto text = [](const char* id, int type) { return json{{"Sequence", {{"id", id}, {"type_id", type}}}}; };
  const json shape = typed("TemplateProcessing", {{"single", {token(0), text("A", 0)}},
                                                  {"pair", {text("B", 2), token(1), text("A", 0)}},
                                                  {"special_tokens", {{"x", {{"id", "x"}, {"ids", {7, 6}}}}}}});
  const PostProcessor processor(typed("Sequence", {{"processors", {typed("ByteLevel"), shape}}}));
  EXPECT_THAT(processor({1}).ids, ElementsAre(7, 6, 1));
  EXPECT_THAT(processor({1}, {2}).ids, ElementsAre(2, 7, 6, 1));
  EXPECT_THAT(processor({1}, {2}).types, ElementsAre(2, 1, 1, 0));
  EXPECT_THAT(processor.before(), ElementsAre(7, 6));
  EXPECT_THAT(PostProcessor(nullptr)({1}, {2}).types, ElementsAre(0, 1));
}

TEST(AddedTokens, AppliesOptions) {
  const auto encoded_with = [](json token, const std::string& text) {
    test::TemporaryFolder folder;
    token["id"] = 5;
    const json tokenizer = {
        {"model",
         {{"type", "WordLevel"}, {"unk_token", "?"}, {"vocab", {{"?", 0}, {"a", 1}, {" ", 2}, {" a", 3}, {"a ", 4}}}}},
        {"normalizer", {{"type", "Lowercase"}}},
        {"added_tokens", {token}}};
    return read_hugging_face_tokenizer(folder.write("tokenizer.json", tokenizer.dump()))->encode(text);
  };
  EXPECT_THAT(encoded_with({{"content", "<X>"}}, "a<X> a"), ElementsAre(1, 5, 3)) << "both are normalized";
  EXPECT_THAT(encoded_with({{"content", "<X>"}}, "a<x>"), ElementsAre(1, 5));
  EXPECT_THAT(encoded_with({{"content", "<X>"}, {"special", true}}, "a<x>"), ElementsAre(0)) << "special ones are not";
  EXPECT_THAT(encoded_with({{"content", "<X>"}, {"lstrip", true}, {"rstrip", true}}, "a <X>\t a"),
              ElementsAre(1, 5, 1));
  EXPECT_THAT(encoded_with({{"content", "."}, {"lstrip", true}, {"rstrip", true}}, "a . . a"), ElementsAre(1, 5, 5, 1));
  EXPECT_THAT(encoded_with({{"content", "\n"}, {"lstrip", true}, {"rstrip", true}}, "a\n\na"), ElementsAre(1, 5, 1))
      << "the first takes the second along, which is white space";
  for (const bool right : {false, true})
    EXPECT_THAT(encoded_with({{"content", "\n"}, {"lstrip", !right}, {"rstrip", right}}, std::string(400'000, '\n')),
                testing::Each(5))
        << "minutes, were it quadratic";
  EXPECT_THAT(encoded_with({{"content", "xy"}, {"single_word", true}}, "a xy"), ElementsAre(4, 5));
  EXPECT_THAT(encoded_with({{"content", "xy"}, {"single_word", true}}, "axy"), ElementsAre(0));
}

}  // namespace
}  // namespace colossal::text::sections_test
