// Damaged tokenizer files of every kind. COLOSSAL_MUTATED_FILES is the number of mutations of each file; default: 120.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/text/tokenizer.h"
#include "support/temporary_folder.h"
#include "text/made_files.h"

namespace colossal::text::mutated_files_test {
namespace {

using made::kControls, made::kMark, made::message, made::number, made::piece, made::trainer;
using nlohmann::json;

/// Returns a file in which a few bytes were changed, doubled, removed or cut off.
std::string mutated(std::string bytes, std::mt19937& random) {
  for (int changes = 1 + static_cast<int>(random() % 2); changes > 0 && !bytes.empty(); --changes) {
    const size_t at = random() % bytes.size(), count = std::min<size_t>(bytes.size() - at, 1 + random() % 8);
    switch (random() % 5) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes.insert(at, bytes.substr(random() % bytes.size(), count));
        break;
      case 2:
        bytes.erase(at, count);
        break;
      case 3:
        bytes[at] ^= static_cast<char>(1 << random() % 8);
        break;
      default:
        if (random() % 8 == 0) bytes.resize(at);
    }
  }
  return bytes;
}

json typed(const char* type, json options = json::object()) {
  options["type"] = type;
  return options;
}

json sequence(const char* key, json list) { return typed("Sequence", {{key, std::move(list)}}); }

std::string tokenizer_json(json sections) {
  sections["added_tokens"] = {
      {{"id", 6}, {"content", "<x>"}, {"special", true}, {"lstrip", true}, {"normalized", false}},
      {{"id", 7}, {"content", "\n"}, {"rstrip", true}, {"single_word", true}}};
  return sections.dump();
}

json replace(const char* regex, const char* content) {
  return typed("Replace", {{"pattern", {{"Regex", regex}}}, {"content", content}});
}

const json kVocabulary = {{"u", 0}, {"a", 1}, {"b", 2}, {"ab", 3}, {"##b", 4}, {kMark, 5}};

/// Returns a byte-level BPE file with steps of BERT's and LLaMA's kinds.
std::string bpe_file() {
  return tokenizer_json(
      {{"normalizer", sequence("normalizers", {typed("NFKC"), replace("a+", "a"), typed("BertNormalizer")})},
       {"pre_tokenizer",
        sequence("pretokenizers",
                 {typed("Split", {{"pattern", {{"Regex", "[a-z[.,]]+|(?:\\p{L}\\p{M}*)+"}}}, {"behavior", "Isolated"}}),
                  typed("Digits"), typed("ByteLevel", {{"use_regex", false}})})},
       {"post_processor", typed("BertProcessing", {{"sep", {"b", 2}}, {"cls", {"a", 1}}})},
       {"decoder", typed("ByteLevel")},
       {"model", typed("BPE", {{"unk_token", "u"}, {"vocab", kVocabulary}, {"merges", {"a b"}}})}});
}

std::string unigram_file() {
  json rows = json::array();
  for (const char* text : {"u", "a", "b", "ab", "kw"}) rows.push_back(json::array({text, -1.5}));
  const std::string map = made::base64(made::charsmap('q', "kw"));
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
             token = {{"SpecialToken", {{"id", "<x>"}, {"type_id", 0}}}};
  return tokenizer_json(
      {{"normalizer", sequence("normalizers", {typed("Precompiled", {{"precompiled_charsmap", map}}), typed("Strip"),
                                               replace(" {2,}", " ")})},
       {"pre_tokenizer", typed("Metaspace", {{"replacement", kMark}, {"prepend_scheme", "first"}})},
       {"post_processor",
        typed("TemplateProcessing", {{"single", {text, token}}, {"special_tokens", {{"<x>", {{"ids", {6}}}}}}})},
       {"decoder", sequence("decoders", {typed("Metaspace"), typed("ByteFallback"), typed("Fuse"),
                                         typed("Strip", {{"content", " "}, {"start", 1}, {"stop", 0}})})},
       {"model", typed("Unigram", {{"unk_id", 0}, {"vocab", rows}})}});
}

std::string word_piece_file() {
  return tokenizer_json(
      {{"normalizer", sequence("normalizers", {typed("NFD"), typed("StripAccents"), typed("Lowercase")})},
       {"pre_tokenizer", typed("BertPreTokenizer")},
       {"decoder", sequence("decoders", {typed("WordPiece"), typed("CTC"), replace("a", "b")})},
       {"model", typed("WordPiece", {{"unk_token", "u"}, {"vocab", kVocabulary}, {"max_input_chars_per_word", 9}})}});
}

std::string model_file(int kind) {
  std::string pieces = kControls + piece(kMark, -2) + piece(kMark + "a", -1) + piece("a", -1.5) + piece("b", -1.5) +
                       piece("ab", -2) + piece("<x>", 0, 4) + piece("bb", 5, 5);
  return pieces + trainer(kind) + message(3, message(2, made::charsmap('q', "kw")) + number(3, 1) + number(4, 1));
}

/// Returns a text with characters of every kind, long enough to make a search of quadratic cost fail.
std::string long_text() {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "ab <x> q \xC3\xA9\xFF b\xCC\x81\n\n12 \xE6\xBC\xA2\xF0\x9F\xA6\x99 aaaaabb.,";
  return text + std::string(500, ' ') + std::string(500, 'b');
}

/// Checks that every file is refused with an Error or makes a tokenizer that works within bounds.
TEST(MutatedFiles, RefusesOrReadsEachFile) {
  test::TemporaryFolder folder;
  folder.write("encoding.json", R"({"pattern": "\\p{L}+|."})");
  const std::vector<std::pair<const char*, std::string>> files{
      {"a.json", bpe_file()},     {"b.json", unigram_file()}, {"c.json", word_piece_file()}, {"a.model", model_file(1)},
      {"b.model", model_file(2)}, {"c.model", model_file(3)}, {"d.model", model_file(4)},    {"a.bpe", made::ranks()}};
  const std::string text = long_text();
  const char* wanted = std::getenv("COLOSSAL_MUTATED_FILES");
  const int count = wanted ? std::atoi(wanted) : 120;
  int refused = 0, works = 0;
  for (const auto& [name, bytes] : files) {
    std::mt19937 random(17);
    for (int i = 0; i < count; ++i) {
      const std::string file = folder.write(name, mutated(bytes, random));
      try {
        const auto tokenizer = make_tokenizer(file);
        ++works;
        const std::vector<int64_t> ids = tokenizer->encode(text);
        ASSERT_LE(ids.size(), 1024 * text.size());
        for (const int64_t id : ids) ASSERT_TRUE(id >= 0 && id < tokenizer->vocabulary_size()) << id;
        tokenizer->decode(ids);
        tokenizer->encode_pair(text, text);
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, count);
  EXPECT_GT(works, count);
}

}  // namespace
}  // namespace colossal::text::mutated_files_test
