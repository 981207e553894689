// Where the tokens of a text begin, for all kinds of tokenizers.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "colossal/base/json.h"
#include "colossal/text/tokenizer.h"
#include "colossal/text/tokenizers/tokenizer_files.h"
#include "support/paths.h"

namespace colossal::text::placed_tokens_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using Begins = std::vector<size_t>;

const std::string kShared = test::source_dir() + "/../shared/data/tokenizers/";

/// Returns the tokens, after a check that the ids are those of encode() and that the begins ascend within the text.
PlacedTokens placed_of(const Tokenizer& tokenizer, const std::string& text) {
  PlacedTokens placed = tokenizer.encode_placed(text);
  EXPECT_EQ(placed.ids, tokenizer.encode(text)) << text;
  EXPECT_EQ(placed.begins.size(), placed.ids.size()) << text;
  EXPECT_TRUE(std::is_sorted(placed.begins.begin(), placed.begins.end())) << text;
  for (const size_t begin : placed.begins) EXPECT_LE(begin, text.size()) << text;
  return placed;
}

Begins begins_of(const Tokenizer& tokenizer, const std::string& text) { return placed_of(tokenizer, text).begins; }

/// Returns a tokenizer.json's tokenizer whose model is a WordLevel, BPE or other `model`.
std::unique_ptr<Tokenizer> made(const json& model, const json& normalizer, const json& pre_tokenizer) {
  const json added = json::array({{{"id", 0}, {"content", "<s>"}, {"special", true}, {"normalized", false}}});
  return make_hugging_face_tokenizer(
      {{"model", model}, {"normalizer", normalizer}, {"pre_tokenizer", pre_tokenizer}, {"added_tokens", added}},
      json::object(), "made");
}

json characters(const std::vector<std::string>& tokens, const json& more = json::object()) {
  json vocabulary = json::object();
  for (const std::string& token : tokens) vocabulary[token] = vocabulary.size();
  json model = {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}};
  model.update(more);
  return model;
}

TEST(PlacedTokens, FollowBytes) {
  const auto bytes = make_tokenizer("bytes");
  EXPECT_THAT(begins_of(*bytes, "a\xC3\xA9"), ElementsAre(0, 1, 2));
  EXPECT_THAT(begins_of(*bytes, ""), ElementsAre());
}

TEST(PlacedTokens, CountFromTheTextAroundAddedTokens) {
  const json metaspace = {{"type", "Metaspace"}, {"prepend_scheme", "always"}};
  const auto tokenizer = made(characters({"<s>", "\u2581", "a", "b"}), nullptr, metaspace);
  // "<s>", then the mark that is put before "a", "a", the space, "b"
  EXPECT_THAT(begins_of(*tokenizer, "<s>a b"), ElementsAre(0, 3, 3, 4, 5));
  EXPECT_THAT(begins_of(*tokenizer, "a<s> b<s>"), ElementsAre(0, 0, 1, 4, 5, 6));
}

TEST(PlacedTokens, FollowCharactersThatNormalizersChange) {
  const std::vector<std::string> letters = {"<s>", "a", "b", "e", "f", "i", "\u0301", "\u00e9", "_"};
  const auto begins = [&](const json& normalizer, const std::string& text) {
    return begins_of(*made(characters(letters), normalizer, nullptr), text);
  };
  const std::string ligature =
                        "a\xEF\xAC\x81"
                        "b",
                    composed =
                        "\xC3\xA9"
                        "b",
                    apart =
                        "e\xCC\x81"
                        "b";
  EXPECT_THAT(begins({{"type", "NFKC"}}, ligature), ElementsAre(0, 1, 1, 4));  // the ligature becomes "f" and "i"
  EXPECT_THAT(begins({{"type", "NFD"}}, composed), ElementsAre(0, 0, 2));
  EXPECT_THAT(begins({{"type", "NFC"}}, apart), ElementsAre(0, 3));
  EXPECT_THAT(begins({{"type", "Lowercase"}}, "AbA"), ElementsAre(0, 1, 2));
  EXPECT_THAT(begins({{"type", "Strip"}}, "  ab "), ElementsAre(2, 3));
  EXPECT_THAT(begins({{"type", "Prepend"}, {"prepend", "_"}}, "ab"), ElementsAre(0, 0, 1));
  EXPECT_THAT(begins({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "_"}}, "a b"),
              ElementsAre(0, 1, 2));
  EXPECT_THAT(begins({{"type", "Replace"}, {"pattern", {{"Regex", " +"}}}, {"content", "_"}}, "a   b"),
              ElementsAre(0, 1, 4));
  EXPECT_THAT(begins({{"type", "Sequence"}, {"normalizers", {{{"type", "Strip"}}, {{"type", "Lowercase"}}}}}, " Ab"),
              ElementsAre(1, 2));
}

TEST(PlacedTokens, SkipWhatHasNoToken) {
  const json dropped = characters({"<s>", "a", "b"});
  EXPECT_THAT(begins_of(*made(dropped, nullptr, nullptr),
                        "xxab\u00e9"
                        "b"),
              ElementsAre(2, 3, 6));
  const json each = characters({"<s>", "a", "b", "?"}, {{"unk_token", "?"}});
  EXPECT_THAT(begins_of(*made(each, nullptr, nullptr), "a\u00e9xb"), ElementsAre(0, 1, 3, 4));
  const json fused = characters({"<s>", "a", "b", "?"}, {{"unk_token", "?"}, {"fuse_unk", true}});
  EXPECT_THAT(begins_of(*made(fused, nullptr, nullptr), "a\u00e9xb"), ElementsAre(0, 1, 4));
  const json bytes = characters({"<s>", "a", "b", "<0xC3>", "<0xA9>"}, {{"byte_fallback", true}});
  EXPECT_THAT(begins_of(*made(bytes, nullptr, nullptr),
                        "a\u00e9"
                        "b"),
              ElementsAre(0, 1, 2, 3));
  const json words = {
      {"type", "WordPiece"}, {"vocab", {{"[UNK]", 0}, {"play", 1}, {"##ing", 2}}}, {"unk_token", "[UNK]"}};
  EXPECT_THAT(begins_of(*made(words, nullptr, {{"type", "Whitespace"}}), " playing nothing play"),
              ElementsAre(1, 5, 9, 17));
}

TEST(PlacedTokens, FollowSpellingsOfBytes) {
  const auto begins = [&](const json& pre_tokenizer, const std::string& text) {
    const json model = characters({"<s>", "a", "b", "\u0120", "\u00c3", "\u00a9",
                                   "\u0120"
                                   "a"},
                                  {{"merges", json::array({"\u0120 a"})}});
    return begins_of(*made(model, nullptr, pre_tokenizer), text);
  };
  const json plain = {{"type", "ByteLevel"}, {"add_prefix_space", false}}, prefixed = {{"type", "ByteLevel"}};
  EXPECT_THAT(begins(plain, "b\u00e9 a"), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(begins(prefixed, "ab"), ElementsAre(0, 1));  // the space that is put before "a" is part of its token
  const json digits = {{"type", "Sequence"}, {"pretokenizers", {plain, {{"type", "Digits"}}}}};
  EXPECT_THAT(begins(digits, "b\u00e9 a"), ElementsAre(0, 1, 2, 3));
}

/// Returns the letters of ASCII at the front of `text`, in lower case.
std::string letters(std::string_view text) {
  std::string front;
  for (const char c : text) {
    if (std::isalpha(static_cast<unsigned char>(c)) == 0) break;
    front += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return front;
}

TEST(PlacedTokens, BeginAtTheirLetters) {
  if (!std::filesystem::exists(kShared)) GTEST_SKIP() << "no " << kShared;
  std::vector<std::string> texts;
  std::ifstream lines(kShared + "texts.jsonl");
  int number = 0;
  for (std::string line; std::getline(lines, line);)
    if (++number % 3 == 0) texts.push_back(json::parse(line).at("text"));
  size_t compared = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(kShared)) {
    const std::string name = file.path().filename().string();
    if (name != "tokenizer.json" && name != "vocab.txt" && !name.ends_with(".model") && !name.ends_with(".tiktoken"))
      continue;
    SCOPED_TRACE(file.path().string());
    const auto tokenizer = make_tokenizer(file.path().string());
    for (const std::string& text : texts) {
      const PlacedTokens placed = placed_of(*tokenizer, text);
      for (size_t i = 0; i < placed.ids.size(); ++i) {
        const std::string piece = tokenizer->piece(placed.ids[i]), own = letters(piece);
        const std::string there = letters(text.substr(placed.begins[i]));
        if (own.size() != piece.size() || there.empty()) continue;  // letters that a normalizer made
        const size_t both = std::min(own.size(), there.size());     // it may also drop an accent between letters
        EXPECT_EQ(there.substr(0, both), own.substr(0, both)) << text;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 3'000u);
}

}  // namespace
}  // namespace colossal::text::placed_tokens_test
