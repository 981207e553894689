// What each section of a tokenizer.json does, on vocabularies of a few tokens. That the package `tokenizers` does the
// same, tests/interop/tokenizers_interop.py says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/text/byte_alphabet.h"
#include "colossal/text/decoder.h"
#include "colossal/text/hugging_face_tokenizer.h"
#include "colossal/text/json_model.h"
#include "colossal/text/normalizer.h"
#include "colossal/text/post_processor.h"
#include "colossal/text/pre_tokenizer.h"
#include "colossal/text/regex.h"
#include "colossal/text/word_patterns.h"
#include "support/temporary_folder.h"

namespace colossal::text::sections_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using Ids = std::vector<int64_t>;

const std::string kMark = kMetaspace;

std::vector<std::string> cut(const json& section, const std::string& text, bool first = true,
                             Spelling spelling = Spelling::Alphabet) {
  Words words;
  PreTokenizer(section, spelling)(text, first, words);
  std::vector<std::string> list;
  for (const Word& word : words.list) list.emplace_back(word.text);
  return list;
}

std::string normal(const json& section, const std::string& text) { return Normalizer(section)(text).text; }

json typed(const char* type, json options = json::object()) {
  options["type"] = type;
  return options;
}

json split(const char* regex, const char* behavior, bool invert = false) {
  return typed("Split", {{"pattern", {{"Regex", regex}}}, {"behavior", behavior}, {"invert", invert}});
}

Ids encoded(const json& model, const std::string& word, bool bytes = false) {
  Ids ids;
  parse_model(model, bytes)->encode(word, ids);
  return ids;
}

TEST(PreTokenizer, CutsAsLlama3Does) {
  const json byte_level = typed("ByteLevel", {{"add_prefix_space", false}, {"use_regex", false}});
  const json section = typed("Sequence", {{"pretokenizers", {split(kLlama3Words, "Isolated"), byte_level}}});
  EXPECT_TRUE(PreTokenizer(section, Spelling::Bytes).scanner());
  const std::string text = "I'LL pay 12345 now!!\n\n  ok  ";
  const std::vector<std::string> wanted{"I", "'LL", " pay", " ", "123", "45", " now", "!!\n\n", " ", " ok", "  "};
  EXPECT_EQ(cut(section, text, true, Spelling::Bytes), wanted);
  std::vector<std::string> spelled = cut(section, text);
  for (std::string& word : spelled) word = from_byte_alphabet(word);
  EXPECT_EQ(spelled, wanted);
}

/// Every pattern that the scanner knows gives what PCRE2 finds with it, whatever stands next to what.
TEST(PreTokenizer, ScansWhatThePatternsMatch) {
  const std::vector<const char*> patterns{kGpt2Words, kR50kWords, kCl100kWords, kLlama3Words, kQwen2Words};
  const std::vector<std::string> parts{"a",
                                       "Z",
                                       "\xC3\xA9",
                                       "\xE6\xBC\xA2",
                                       "1",
                                       "\xD9\xA3",
                                       "'",
                                       "s",
                                       "LL",
                                       "\xC5\xBF",
                                       " ",
                                       "\t",
                                       "\n",
                                       "\r",
                                       "\xC2\xA0",
                                       "\xC2\x85",
                                       ".",
                                       "\xCC\x81",
                                       "\xF0\x9F\xA6\x99",
                                       "-",
                                       "'ve",
                                       "\xE1\xA0\x8E"};
  unsigned state = 1;
  for (const char* pattern : patterns) {
    const auto scanner = WordScanner::of(pattern);
    ASSERT_TRUE(scanner) << pattern;
    const Regex regex(pattern, Dialect::Rust);
    for (int i = 0; i < 4000; ++i) {
      std::string text;
      for (int n = 0; n < 12; ++n) text += parts[((state = state * 1664525 + 1013904223) >> 16) % parts.size()];
      size_t at = 0;
      for (const Regex::Match& match : regex.find_all(text)) {
        ASSERT_EQ(match.begin, at) << pattern << "\n" << text;
        at += scanner->first_word(std::string_view(text).substr(at));
        ASSERT_EQ(match.end, at) << pattern << "\n" << text;
      }
      ASSERT_EQ(at, text.size());
    }
  }
}

TEST(PreTokenizer, SplitsByEveryBehavior) {
  EXPECT_THAT(cut(split("[.]+", "Isolated"), "a..b.c"), ElementsAre("a", "..", "b", ".", "c"));
  EXPECT_THAT(cut(split("[.]", "Removed"), "a..b.c"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(cut(split("[.]", "MergedWithPrevious"), "a..b.c"), ElementsAre("a.", ".", "b.", "c"));
  EXPECT_THAT(cut(split("[.]", "MergedWithNext"), "a..b.c"), ElementsAre("a", ".", ".b", ".c"));
  EXPECT_THAT(cut(split("[.]", "Contiguous"), "a..b.c"), ElementsAre("a", "..", "b", ".", "c"));
  EXPECT_THAT(cut(split("[a-z]+", "Removed", true), "a..bc.c"), ElementsAre("a", "bc", "c"));
  EXPECT_THAT(cut(split("[a-z]+", "MergedWithNext", true), "a..bc"), ElementsAre("a", "..bc"));
  EXPECT_THAT(cut(split("(?=[A-Z])", "Isolated"), "aBcDe"), ElementsAre("a", "Bc", "De")) << "of nothing, it cuts";
  EXPECT_THAT(cut(split(R"(\s+$)", "Removed"), "a  \nb "), ElementsAre("a", "\nb")) << "$ is the end of a line";
  EXPECT_THAT(cut(split(R"([^\S\n]+)", "Removed"), "a\xC2\x85\xE1\xA0\x8E b\nc"),
              ElementsAre("a", "\xE1\xA0\x8E", "b\nc"))
      << "U+0085 is white space, U+180E is none";
  EXPECT_THAT(cut(split(R"(\w+|\h)", "Isolated"), "a\xCC\x81_1-"), ElementsAre("a\xCC\x81_1", "-"));
}

TEST(PreTokenizer, CutsByMetaspace) {
  EXPECT_THAT(cut(typed("Metaspace"), "a b  c"), ElementsAre(kMark + "a", kMark + "b", kMark, kMark + "c"));
  EXPECT_THAT(cut(typed("Metaspace", {{"prepend_scheme", "first"}}), "a b", false), ElementsAre("a", kMark + "b"));
  EXPECT_THAT(cut(typed("Metaspace", {{"prepend_scheme", "first"}}), "a"), ElementsAre(kMark + "a"));
  EXPECT_THAT(cut(typed("Metaspace", {{"prepend_scheme", "never"}}), "a"), ElementsAre("a"));
  EXPECT_THAT(cut(typed("Metaspace", {{"add_prefix_space", false}}), "a"), ElementsAre("a"));
  EXPECT_THAT(cut(typed("Metaspace", {{"split", false}, {"replacement", "_"}}), "a b"), ElementsAre("_a_b"));
  const json after =
      typed("Sequence",
            {{"pretokenizers",
              {typed("CharDelimiterSplit", {{"delimiter", "|"}}), typed("Metaspace", {{"prepend_scheme", "first"}})}}});
  EXPECT_THAT(cut(after, "a|b"), ElementsAre(kMark + "a", "b"));
  EXPECT_THAT(cut(after, "|b"), ElementsAre("b")) << "what starts behind a delimiter does not start the text";
}

TEST(PreTokenizer, CutsByClassesOfCharacters) {
  EXPECT_THAT(cut(typed("Digits", {{"individual_digits", true}}), "a12b"), ElementsAre("a", "1", "2", "b"));
  EXPECT_THAT(cut(typed("Digits"), "a12b\xD9\xA3"), ElementsAre("a", "12", "b", "\xD9\xA3"));
  EXPECT_THAT(cut(typed("Whitespace"), "a_b, c!?"), ElementsAre("a_b", ",", "c", "!?"));
  EXPECT_THAT(cut(typed("WhitespaceSplit"), " a,\xE3\x80\x80 b "), ElementsAre("a,", "b"));
  EXPECT_THAT(cut(typed("BertPreTokenizer"), "a.b $c"), ElementsAre("a", ".", "b", "$", "c"));
  EXPECT_THAT(cut(typed("Punctuation"), "a..b"), ElementsAre("a", ".", ".", "b"));
  EXPECT_THAT(cut(typed("Punctuation", {{"behavior", "Contiguous"}}), "a..b"), ElementsAre("a", "..", "b"));
  EXPECT_THAT(cut(typed("FixedLength", {{"length", 2}}), "a\xC3\xA9z"), ElementsAre("a\xC3\xA9", "z"));
  EXPECT_THAT(cut(nullptr, "a b"), ElementsAre("a b"));
  EXPECT_THAT(cut(nullptr, ""), ElementsAre());
  EXPECT_THAT(cut(typed("ByteLevel"), "a"), ElementsAre(to_byte_alphabet(" a"))) << "a prefix space is the default";
}

TEST(PreTokenizer, StepsBehindTheByteAlphabetSeeIt) {
  // The third byte of U+2032 is spelled U+00B2, a digit.
  const json steps = typed("Sequence", {{"pretokenizers",
                                         {typed("ByteLevel", {{"add_prefix_space", false}, {"use_regex", false}}),
                                          typed("Digits", {{"individual_digits", true}})}}});
  EXPECT_THAT(cut(steps, "\xE2\x80\xB2", true, Spelling::Bytes), ElementsAre("\xE2\x80", "\xB2"));
}

TEST(Normalizer, ByForms) {
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

TEST(Normalizer, ByCharacters) {
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

TEST(Normalizer, AsBertDoes) {
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

/// A character map with one rule: `from`, one byte, becomes `to`.
std::string charsmap(char from, const std::string& to) {
  std::vector<uint32_t> units(256);
  const auto byte = static_cast<unsigned char>(from);
  units[0] = 1u << 10;  // the root's children are at 1 ^ byte
  const uint32_t child = 1 ^ byte, leaf = child ^ 2;
  units[child] = (2u << 10) | (1u << 8) | byte;  // a rule ends here, its value is at child ^ 2
  units[leaf] = 1u << 31;                        // the offset of the value: 0
  const uint32_t size = 1024;
  std::string bytes(reinterpret_cast<const char*>(&size), 4);
  bytes.append(reinterpret_cast<const char*>(units.data()), size);
  return bytes + to + std::string(1, '\0');
}

std::string base64(const std::string& bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : bytes) {
    bits = bits << 8 | static_cast<unsigned char>(c);
    for (count += 8; count >= 6; count -= 6) text += kDigits[bits >> (count - 6) & 63];
  }
  if (count > 0) text += kDigits[bits << (6 - count) & 63];
  return text;
}

TEST(Normalizer, ByAPrecompiledMap) {
  const json map = typed("Precompiled", {{"precompiled_charsmap", base64(charsmap('q', "kw"))}});
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

TEST(Model, BpeWithItsOptions) {
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

TEST(Model, LongAndShortWordsAreJoinedAlike) {
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
    made->encode(std::string(60, 'c') + word, many);  // a c joins nothing
    ASSERT_EQ(few, Ids(many.begin() + 60, many.end())) << word;
  }
}

TEST(Model, Unigram) {
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

TEST(Model, WordPieceAndWordLevel) {
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

TEST(Model, OldFilesNameNoType) {
  json model = bpe({});
  model.erase("type");
  EXPECT_STREQ(model_type(model), "BPE");
  EXPECT_STREQ(model_type({{"vocab", json::array()}}), "Unigram");
  EXPECT_STREQ(model_type({{"vocab", json::object()}, {"max_input_chars_per_word", 100}}), "WordPiece");
  EXPECT_STREQ(model_type({{"vocab", json::object()}}), "WordLevel");
}

TEST(Decoder, ByType) {
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
  const json strip = typed("Strip", {{"content", " "}, {"start", 1}, {"stop", 0}});
  const json llama = typed("Sequence", {{"decoders",
                                         {typed("Replace", {{"pattern", {{"String", kMark}}}, {"content", " "}}),
                                          typed("ByteFallback"), typed("Fuse"), strip}}});
  EXPECT_EQ(decoded(llama, {kMark + "a", kMark + "b", "<0x21>"}), "a b!");
  EXPECT_EQ(Decoder(llama)({kMark + "a"}, true), " a") << "within a text nothing is taken from its front";
}

TEST(PostProcessor, PutsTokensAroundOneTextOrTwo) {
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

TEST(AddedTokens, WithTheirOptions) {
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
  EXPECT_THAT(encoded_with({{"content", "xy"}, {"single_word", true}}, "a xy"), ElementsAre(4, 5));
  EXPECT_THAT(encoded_with({{"content", "xy"}, {"single_word", true}}, "axy"), ElementsAre(0));
}

}  // namespace
}  // namespace colossal::text::sections_test
