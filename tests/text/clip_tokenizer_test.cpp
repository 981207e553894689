// CLIP's tokenizer against ids computed with CLIPTokenizer of transformers 5.23, on a small vocabulary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/text/tokenizer.h"
#include "colossal/text/tokenizers/tokenizer_class.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"
#include "text/clip_files.h"

namespace colossal::text::clip_tokenizer_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int64_t>;

constexpr int64_t kBegin = 535, kEnd = 536;  // the last two of the vocabulary

struct Row {
  std::string text;
  Ids ids;
  std::string decoded;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> all{
      {"a photograph of an astronaut riding a horse",
       {320, 516, 70, 81,  64,  79,  327, 517, 518, 64, 82, 83, 81, 78,
        77,  64,  84, 339, 519, 520, 521, 320, 71,  78, 81, 82, 324},
       "a photograph of an astronaut riding a horse"},
      {"A Photo of  a CAT\n\tand a dog's",
       {320, 515, 517, 320, 527, 64, 77, 323, 320, 528, 530},
       "a photo of a cat and a dog 's"},
      {"", {}, ""},
      {"  ", {}, ""},
      {"we've don't DON'T", {532, 533, 525, 333, 529, 525, 333, 529}, "we 've don 't don 't"},
      {"123 x2", {272, 273, 274, 343, 273}, "1 2 3 x 2"},
      {"caf\u00e9 cafe\u0301", {524, 69, 534, 524, 69, 534}, "caf\u00e9 caf\u00e9"},
      {"\u4f60 \U0001f642 wow!!!",
       {160, 121, 510, 172, 253, 247, 480, 86, 78, 342, 0, 0, 256},
       "\u4f60 \U0001f642 wow !!!"},
      {"a!b ! cat!", {320, 256, 321, 256, 527, 256}, "a ! b ! cat !"},
      {"<|startoftext|>x<|endoftext|> <|STARTOFTEXT|> <|EndOfText|>",
       {535, 343, 536, 535, 27, 347, 68, 77, 525, 69, 83, 68, 87, 339, 91, 285},
       "x <| endoftext |>"},
      {"\u00a0a\u2003b\u200bc_d", {320, 321, 158, 222, 489, 322, 318, 323}, "a b \u200b c _ d"},
      {"\u0130 \u00df \u212a \u00bd \u0664",
       {328, 136, 485, 127, 509, 330, 126, 377, 149, 353},
       "i \u0307 \u00df k \u00bd \u0664"},
      {"don\u2019t ' 's</w>", {525, 333, 158, 222, 503, 339, 262, 530, 27, 270, 342, 285}, "don \u2019 t ' 's </ w >"}};
  return all;
}

void expect_rows(const Tokenizer& tokenizer) {
  for (const Row& row : rows()) {
    Ids whole = row.ids;
    whole.insert(whole.begin(), kBegin);
    whole.push_back(kEnd);
    EXPECT_EQ(tokenizer.encode(row.text), row.ids) << row.text;
    EXPECT_EQ(tokenizer.encode_whole(row.text).ids, whole) << row.text;
    EXPECT_EQ(tokenizer.decode(whole), row.decoded) << row.text;
    const PlacedTokens placed = tokenizer.encode_placed(row.text);
    EXPECT_EQ(placed.ids, row.ids) << row.text;
    EXPECT_EQ(placed.begins.size(), row.ids.size()) << row.text;
    EXPECT_TRUE(std::is_sorted(placed.begins.begin(), placed.begins.end())) << row.text;
  }
  EXPECT_EQ(tokenizer.begin_id(), kBegin);
  EXPECT_EQ(tokenizer.end_id(), kEnd);
  EXPECT_EQ(tokenizer.vocabulary_size(), 537);
  EXPECT_EQ(tokenizer.piece(515), "photo ");
}

TEST(ClipTokenizer, HasTheIdsOfTransformersForVocabularyAndMerges) {
  const test::TemporaryFolder folder;
  clip::write_folder(folder);
  expect_rows(*make_tokenizer(folder.path()));
}

// The two special tokens of CLIP tell its files from those of GPT-2.
TEST(ClipTokenizer, NeedsNoConfig) {
  const test::TemporaryFolder folder;
  clip::write_folder(folder, nullptr, json::object());
  const auto tokenizer = make_tokenizer(folder.path());
  EXPECT_EQ(tokenizer->encode(rows()[1].text), rows()[1].ids);
  EXPECT_EQ(tokenizer->begin_id(), kBegin);
}

// The class of transformers makes all sections again, whatever the file says.
TEST(ClipTokenizer, HasTheSameIdsFromATokenizerJson) {
  const json model = {{"type", "BPE"}, {"vocab", clip::vocabulary()}, {"merges", json::array()}};
  json file = {{"model", model}, {"normalizer", {{"type", "NFD"}}}, {"decoder", {{"type", "WordPiece"}}}};
  for (const auto& [left, right] : clip::merges()) file["model"]["merges"].push_back(left + " " + right);
  const test::TemporaryFolder folder;
  folder.write("tokenizer.json", file.dump());
  folder.write("tokenizer_config.json", clip::config().dump());
  expect_rows(*make_tokenizer(folder.path()));
  EXPECT_EQ(class_that_reads(folder / "tokenizer.json", clip::config()), "CLIPTokenizer");
}

// The pad token of Stable Diffusion 2 is a special token, so it is found within words, too.
TEST(ClipTokenizer, FindsItsPadTokenInTexts) {
  const test::TemporaryFolder legacy, listed;
  clip::write_folder(legacy, {{"pad_token", "!"}});
  json config = clip::config();
  config["pad_token"] = "!";
  config["added_tokens_decoder"]["0"] = {{"content", "!"}, {"normalized", false}, {"special", true}};
  clip::write_folder(listed, {{"pad_token", "<|endoftext|>"}}, config);
  for (const test::TemporaryFolder* folder : {&legacy, &listed}) {
    const auto tokenizer = make_tokenizer(folder->path());
    EXPECT_THAT(tokenizer->encode("a!b ! cat!"), ElementsAre(320, 0, 321, 0, 527, 0));
    EXPECT_EQ(tokenizer->encode(rows()[0].text), rows()[0].ids);
    EXPECT_EQ(tokenizer->decode({320, 0, 321}), "a b") << "special tokens are left out";
  }
}

// The tokens of bytes and of these words have their ids in CLIP. Those between stand at ids that are free here.
TEST(ClipTokenizer, HasTheIdsOfClipForAKnownCaption) {
  json ids = clip::bytes();
  const std::pair<const char*, int64_t> words[] = {{"photograph", 8853}, {"of", 539},      {"an", 550},
                                                   {"astronaut", 18376}, {"riding", 6765}, {"horse", 4558}};
  clip::Merges merges;
  int64_t next = 20000;
  for (const auto& [word, id] : words) {
    const std::string letters = word;
    for (size_t end = 2; end <= letters.size(); ++end) {
      const bool is_last = end == letters.size();
      const std::string left = letters.substr(0, end - 1), right = letters.substr(end - 1, 1) + (is_last ? "</w>" : "");
      if (ids.contains(left + right)) continue;
      merges.emplace_back(left, right);
      ids[left + right] = is_last ? id : next++;
    }
  }
  ids["<|startoftext|>"] = 49406;
  ids["<|endoftext|>"] = 49407;
  const test::TemporaryFolder folder;
  folder.write("vocab.json", ids.dump());
  folder.write("merges.txt", clip::lines(merges));
  folder.write("tokenizer_config.json", clip::config().dump());
  const auto tokenizer = make_tokenizer(folder.path());
  EXPECT_THAT(tokenizer->encode_whole("a photograph of an astronaut riding a horse").ids,
              ElementsAre(49406, 320, 8853, 539, 550, 18376, 6765, 320, 4558, 49407));
}

TEST(ClipTokenizer, RefusesSpecialTokensThatAreNoTokens) {
  const auto refusal = [](const char* key, const json& value) {
    const test::TemporaryFolder folder;
    clip::write_folder(folder, {{key, value}});
    return test::thrown_message([&] { make_tokenizer(folder.path()); });
  };
  EXPECT_THAT(refusal("pad_token", "<pad>"), HasSubstr("the pad_token of CLIP's tokenizer must be in "));
  EXPECT_THAT(refusal("eos_token", nullptr), HasSubstr("must name a token: got null"));
}

}  // namespace
}  // namespace colossal::text::clip_tokenizer_test
