#include "colossal/text/tokenizers/written_sections.h"

#include "colossal/text/tokenizers/normalizer.h"

namespace colossal::text {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

ordered_json text_or_null(const std::string& text) { return text.empty() ? ordered_json() : ordered_json(text); }

}  // namespace

ordered_json added_token(const ordered_json& id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

ordered_json bpe_section(const std::string& unknown, const std::string& prefix, const std::string& suffix,
                         ordered_json vocabulary, ordered_json merges) {
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", text_or_null(unknown)},
          {"continuing_subword_prefix", text_or_null(prefix)},
          {"end_of_word_suffix", text_or_null(suffix)},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocabulary)},
          {"merges", std::move(merges)}};
}

json byte_level_section(bool trims_offsets) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", trims_offsets}, {"use_regex", true}};
}

json metaspace_section(const char* scheme, bool splits) {
  return {{"type", "Metaspace"}, {"replacement", kMetaspace}, {"prepend_scheme", scheme}, {"split", splits}};
}

json bert_normalizer(bool lowers, const json& strips_accents, bool spaces_chinese) {
  return {{"type", "BertNormalizer"},
          {"clean_text", true},
          {"handle_chinese_chars", spaces_chinese},
          {"strip_accents", strips_accents},
          {"lowercase", lowers}};
}

json replace_section(const char* kind, const char* pattern, const char* content) {
  return {{"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", content}};
}

json pieces_decoder(bool has_prefix) {
  json steps = {replace_section("String", kMetaspace, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (has_prefix) steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"type", "Sequence"}, {"decoders", std::move(steps)}};
}

json template_token(const std::string& token, int type) {
  return {{"SpecialToken", {{"id", token}, {"type_id", type}}}};
}

json template_text(const char* name, int type) { return {{"Sequence", {{"id", name}, {"type_id", type}}}}; }

}  // namespace colossal::text
