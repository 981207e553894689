#include <cctype>
#include <filesystem>
#include <sstream>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/text/tokenizers/clip_sections.h"
#include "colossal/text/tokenizers/json_section.h"
#include "colossal/text/tokenizers/tokenizer_class.h"
#include "colossal/text/tokenizers/tokenizer_files.h"
#include "colossal/text/tokenizers/written_sections.h"

namespace colossal::text {
namespace {

using nlohmann::json;

/// Returns the content of a token that tokenizer_config.json names, as a string or an object.
std::string named(const json& config, const char* key, const char* otherwise) {
  const json token = config.value(key, json());
  return token.is_object() ? content_of(token) : value_or<std::string>(config, key, otherwise);
}

/// Returns true if the tokenizer puts RoBERTa's special tokens around texts.
bool is_roberta(const std::string& folder, const json& config) {
  auto name = value_or<std::string>(config, "tokenizer_class", "");
  const std::string beside = folder + "/config.json";
  if (name.empty() && std::filesystem::exists(beside))
    name = value_or<std::string>(read_json_object(beside, "tokenizer", {.bytes = 1 << 20}), "model_type", "");
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* family : {"roberta", "bart", "longformer", "led", "mvp"})
    if (name.rfind(family, 0) == 0) return true;
  return false;
}

json post_processor(const std::string& folder, const json& config, const json& vocabulary) {
  const auto token = [&](const char* key, const char* otherwise) -> json {
    const std::string name = named(config, key, otherwise);
    require(vocabulary.contains(name), "tokenizer", folder, ": the ", key, " ", printable(name),
            " is not in vocab.json");
    return {name, vocabulary[name]};
  };
  if (is_roberta(folder, config))
    return {{"type", "RobertaProcessing"}, {"sep", token("sep_token", "</s>")}, {"cls", token("cls_token", "<s>")}};
  if (!value_or(config, "add_bos_token", false)) return nullptr;
  const json begin = token("bos_token", "<|endoftext|>");
  const auto special = [&](int type) { return template_token(begin[0].get<std::string>(), type); };
  return {{"type", "TemplateProcessing"},
          {"single", {special(0), template_text("A", 0)}},
          {"pair", {special(0), template_text("A", 0), special(1), template_text("B", 1)}},
          {"special_tokens", {{begin[0].get<std::string>(), {{"ids", {begin[1]}}}}}}};
}

}  // namespace

json from_vocabulary_and_merges(const std::string& folder, const json& config) {
  json merges = json::array();
  std::istringstream lines(read_file(folder + "/merges.txt", kMaxTokenizerBytes));
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty() && line.rfind("#version", 0) != 0) merges.push_back(line);
  }
  const json vocabulary = read_json_object(folder + "/vocab.json", "tokenizer", {.bytes = kMaxTokenizerBytes});
  const bool is_unnamed = !config.contains("tokenizer_class");
  if (is_clip(config) || (is_unnamed && vocabulary.contains(kClipBegin) && vocabulary.contains(kClipEnd))) {
    json clip = config;
    clip["tokenizer_class"] = "CLIPTokenizer";
    return as_its_class_reads({{"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}}}, clip,
                              json::object(), folder + "/vocab.json");
  }
  json added = json::array();
  for (const char* token : {"<|endoftext|>", "<s>", "<pad>", "</s>", "<unk>", "<mask>"})
    if (vocabulary.contains(token)) added.emplace_back(added_token(vocabulary[token], token));
  TokenizerSections<json> sections{
      .model = {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}},
      .pre_tokenizer = {{"type", "ByteLevel"}, {"add_prefix_space", value_or(config, "add_prefix_space", false)}},
      .post_processor = post_processor(folder, config, vocabulary),
      .decoder = {{"type", "ByteLevel"}},
      .added_tokens = added};
  return std::move(sections).to_json();
}

json from_vocabulary_text(const std::string& file, const json& config) {
  json vocabulary = json::object(), added = json::array();
  std::istringstream lines(read_file(file, kMaxTokenizerBytes));
  int64_t id = 0;
  for (std::string line; std::getline(lines, line); ++id) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    vocabulary[line] = id;
  }
  for (const char* token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"})
    if (vocabulary.contains(token)) added.emplace_back(added_token(vocabulary[token], token));
  TokenizerSections<json> sections{
      .model = {{"type", "WordPiece"}, {"vocab", vocabulary}, {"unk_token", "[UNK]"}},
      .normalizer = bert_normalizer(config.value("do_lower_case", true), config.value("strip_accents", json()),
                                    config.value("tokenize_chinese_chars", true)),
      .pre_tokenizer = {{"type", "BertPreTokenizer"}},
      .decoder = {{"type", "WordPiece"}},
      .added_tokens = added};
  const auto token = [&](const char* name) { return json{name, vocabulary[name]}; };
  if (vocabulary.contains("[CLS]") && vocabulary.contains("[SEP]"))
    sections.post_processor = {{"type", "BertProcessing"}, {"cls", token("[CLS]")}, {"sep", token("[SEP]")}};
  return std::move(sections).to_json();
}

}  // namespace colossal::text
