#include "colossal/text/tokenizers/clip_sections.h"

#include <algorithm>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/text/tokenizers/json_section.h"
#include "colossal/text/tokenizers/written_sections.h"

namespace colossal::text {
namespace {

using nlohmann::json;

constexpr char kWordEnd[] = "</w>";
constexpr char kClipWords[] =
    R"(<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+)";

/// The special tokens in the order in which transformers adds them, with the defaults of CLIP's class.
constexpr std::pair<const char*, const char*> kSpecial[] = {
    {"bos_token", kClipBegin}, {"eos_token", kClipEnd}, {"unk_token", kClipEnd}, {"sep_token", nullptr},
    {"pad_token", kClipEnd},   {"cls_token", nullptr},  {"mask_token", nullptr}};

/// Returns a token that tokenizer_config.json names as an object; null if there is none.
json special_token(const json& config, const char* key, const char* otherwise) {
  const auto found = config.find(key);
  if (found == config.end()) return otherwise ? json(added_token(nullptr, otherwise)) : json();
  if (found->is_string()) return added_token(nullptr, found->get<std::string>());
  if (found->is_null()) return nullptr;
  json token = added_token(nullptr, content_of(*found));
  token["normalized"] = true;  // the default of an object
  for (const char* flag : {"normalized", "lstrip", "rstrip", "single_word"})
    if (found->contains(flag)) token[flag] = (*found)[flag];
  return token;
}

json* added_in(json& tokenizer, const std::string& content) {
  for (json& token : tokenizer["added_tokens"])
    if (content_of(token) == content) return &token;
  return nullptr;
}

/// Adds the special tokens that are no added tokens yet. Of several with one name the last counts.
void add_special_tokens(json& tokenizer, const json& config, const std::string& file) {
  std::set<std::string> given;
  for (const json& token : tokenizer["added_tokens"]) given.insert(content_of(token));
  const json& vocabulary = tokenizer["model"]["vocab"];
  for (const auto& [key, otherwise] : kSpecial) {
    json token = special_token(config, key, otherwise);
    if (token.is_null()) continue;
    const std::string content = content_of(token);
    if (given.contains(content)) continue;
    require(vocabulary.contains(content), "tokenizer", "the ", key, " of CLIP's tokenizer must be in ", file, ": got ",
            printable(content));
    token["id"] = vocabulary[content];
    if (json* before = added_in(tokenizer, content))
      *before = token;
    else
      tokenizer["added_tokens"].push_back(token);
  }
}

/// Returns the name and id of a special token, for the post-processor.
json named_id(json& tokenizer, const json& config, size_t row) {
  const std::string name = content_of(special_token(config, kSpecial[row].first, kSpecial[row].second));
  return {name, (*added_in(tokenizer, name))["id"]};
}

}  // namespace

bool is_clip(const json& config) {
  const auto name = value_or<std::string>(config, "tokenizer_class", "");
  return name == "CLIPTokenizer" || name == "CLIPTokenizerFast";
}

void set_clip_sections(json& tokenizer, const json& config, const std::string& file) {
  json& model = tokenizer["model"];
  for (const auto& [key, otherwise] : {kSpecial[0], kSpecial[1], kSpecial[2]})
    require(!special_token(config, key, otherwise).is_null(), "tokenizer", key, " next to ", file,
            " must name a token: got null; remove the key");
  json vocabulary = std::move(model.at("vocab")), merges = std::move(model.at("merges"));
  model = bpe_section(content_of(special_token(config, "unk_token", kClipEnd)), "", kWordEnd, nullptr, nullptr);
  model["vocab"] = std::move(vocabulary);
  model["merges"] = std::move(merges);
  if (tokenizer.value("added_tokens", json()).is_null()) tokenizer["added_tokens"] = json::array();
  add_special_tokens(tokenizer, config, file);
  tokenizer["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers", {{{"type", "NFC"}}, replace_section("Regex", R"(\s+)", " "), {{"type", "Lowercase"}}}}};
  const json split = {
      {"type", "Split"}, {"pattern", {{"Regex", kClipWords}}}, {"behavior", "Removed"}, {"invert", true}};
  tokenizer["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, byte_level_section(true)}}};
  tokenizer["post_processor"] = {
      {"type", "RobertaProcessing"}, {"sep", named_id(tokenizer, config, 1)}, {"cls", named_id(tokenizer, config, 0)}};
  const json strip = {{"type", "Strip"}, {"content", " "}, {"start", 0}, {"stop", 1}};
  tokenizer["decoder"] = {
      {"type", "Sequence"},
      {"decoders", {byte_level_section(true), {{"type", "Fuse"}}, replace_section("String", kWordEnd, " "), strip}}};
}

}  // namespace colossal::text
