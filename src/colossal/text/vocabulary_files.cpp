#include "colossal/text/vocabulary_files.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json_file.h"

namespace colossal::text {
namespace {

using nlohmann::json;

constexpr int64_t kMaxBytes = int64_t{256} << 20;

json special(const char* content, const json& id) { return {{"content", content}, {"id", id}, {"special", true}}; }

}  // namespace

json from_vocabulary_and_merges(const std::string& folder) {
  json merges = json::array();
  std::istringstream lines(read_file(folder + "/merges.txt", kMaxBytes));
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty() && line.rfind("#version", 0) != 0) merges.push_back(line);
  }
  const json vocabulary = read_json_object(folder + "/vocab.json", "tokenizer", {.bytes = kMaxBytes});
  json added = json::array();
  for (const char* token : {"<|endoftext|>", "<s>", "<pad>", "</s>", "<unk>", "<mask>"})
    if (vocabulary.contains(token)) added.push_back(special(token, vocabulary[token]));
  return {{"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"added_tokens", added}};
}

json from_vocabulary_text(const std::string& file, const json& config) {
  json vocabulary = json::object(), added = json::array();
  std::istringstream lines(read_file(file, kMaxBytes));
  int64_t id = 0;
  for (std::string line; std::getline(lines, line); ++id) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    vocabulary[line] = id;
  }
  for (const char* token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"})
    if (vocabulary.contains(token)) added.push_back(special(token, vocabulary[token]));
  const bool lower = config.value("do_lower_case", true);
  json tokenizer = {{"model", {{"type", "WordPiece"}, {"vocab", vocabulary}, {"unk_token", "[UNK]"}}},
                    {"normalizer",
                     {{"type", "BertNormalizer"},
                      {"lowercase", lower},
                      {"strip_accents", config.value("strip_accents", json())},
                      {"handle_chinese_chars", config.value("tokenize_chinese_chars", true)}}},
                    {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
                    {"decoder", {{"type", "WordPiece"}}},
                    {"added_tokens", added}};
  if (vocabulary.contains("[CLS]") && vocabulary.contains("[SEP]"))
    tokenizer["post_processor"] = {
        {"type", "BertProcessing"}, {"cls", {"[CLS]", vocabulary["[CLS]"]}}, {"sep", {"[SEP]", vocabulary["[SEP]"]}}};
  return tokenizer;
}

}  // namespace colossal::text
