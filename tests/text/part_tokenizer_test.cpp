// make_part_tokenizer(): parts of a text get no space in front and lose none, whatever step of the file adds or drops
// it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/text/tokenizer.h"
#include "support/paths.h"
#include "support/temporary_folder.h"

namespace colossal::text::part_tokenizer_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;

/// The pieces of `text` under a tokenizer with these sections, for whole texts and for parts.
struct Pieces {
  std::vector<std::string> whole, part;
};

Pieces pieces_of(const json& normalizer, const json& pre_tokenizer, const std::string& text) {
  const std::string space =
      pre_tokenizer.is_object() && pre_tokenizer["type"] == "ByteLevel" ? "\xC4\xA0" : "\xE2\x96\x81";
  const json vocabulary = {{"a", 0}, {"b", 1}, {space, 2}, {space + "a", 3}};
  const json tokenizer = {{"normalizer", normalizer},
                          {"pre_tokenizer", pre_tokenizer},
                          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {space + " a"}}}}};
  const test::TemporaryFolder folder;
  folder.write("tokenizer.json", tokenizer.dump());
  const auto spelled = [&](const auto& used) {
    std::vector<std::string> pieces;
    for (const int64_t id : used->encode(text)) {
      const std::string piece = used->spelling(id);
      pieces.push_back(piece.starts_with(space) ? "_" + piece.substr(space.size()) : piece);
    }
    return pieces;
  };
  return {spelled(make_tokenizer(folder.path())), spelled(make_part_tokenizer(folder.path()))};
}

TEST(PartTokenizer, PutsNoSpaceInFront) {
  const json prepend = {{"type", "Prepend"}, {"prepend", "\xE2\x96\x81"}};
  const json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\xE2\x96\x81"}};
  const json both = {{"type", "Sequence"}, {"normalizers", {prepend, replace}}};
  const std::vector<std::pair<json, json>> files{
      {both, nullptr},
      {nullptr, {{"type", "Metaspace"}, {"replacement", "\xE2\x96\x81"}, {"prepend_scheme", "always"}}},
      {nullptr, {{"type", "Metaspace"}, {"replacement", "\xE2\x96\x81"}, {"prepend_scheme", "first"}}},
      {nullptr, {{"type", "Metaspace"}, {"replacement", "\xE2\x96\x81"}, {"add_prefix_space", true}}},
      {nullptr, {{"type", "ByteLevel"}, {"add_prefix_space", true}}},
  };
  for (const auto& [normalizer, pre_tokenizer] : files) {
    const std::string which = normalizer.dump() + pre_tokenizer.dump();
    const Pieces inner = pieces_of(normalizer, pre_tokenizer, "ab");
    EXPECT_THAT(inner.whole, ElementsAre("_a", "b")) << which;
    EXPECT_THAT(inner.part, ElementsAre("a", "b")) << which;
    EXPECT_THAT(pieces_of(normalizer, pre_tokenizer, "b a").part, ElementsAre("b", "_a")) << which;
    EXPECT_THAT(pieces_of(normalizer, pre_tokenizer, " ab").part, ElementsAre("_a", "b")) << which;
  }
}

TEST(PartTokenizer, KeepsSpacesThatANormalizerStrips) {
  const json strip = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  const Pieces pieces = pieces_of(strip, bytes, " ab");
  EXPECT_THAT(pieces.whole, ElementsAre("a", "b"));
  EXPECT_THAT(pieces.part, ElementsAre("_a", "b"));
}

TEST(PartTokenizer, ReadsSentencePieceModels) {
  const std::string file = test::source_dir() + "/../shared/data/stories260K-hf/tokenizer.model";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "needs " << file;
  const auto whole = make_tokenizer(file), part = make_part_tokenizer(file);
  const auto text_of = [](const auto& tokenizer, const std::string& text) {
    std::string pieces;
    for (const int64_t id : tokenizer->encode(text)) pieces += tokenizer->piece(id);
    return pieces;
  };
  EXPECT_EQ(text_of(whole, "ittle"), " ittle");
  EXPECT_EQ(text_of(part, "ittle"), "ittle");
  EXPECT_EQ(text_of(part, " little  "), " little  ");
}

TEST(PartTokenizer, EqualsTheTokenizerWithoutAPrefix) {
  const auto whole = make_tokenizer("bytes"), part = make_part_tokenizer("bytes");
  EXPECT_EQ(whole->encode(" a\xFF"), part->encode(" a\xFF"));
}

}  // namespace
}  // namespace colossal::text::part_tokenizer_test
