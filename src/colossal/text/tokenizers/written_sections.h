// Sections of a tokenizer.json as they are written, which name each of their members once. json_section.h reads them.
#pragma once
#include <string>
#include <utility>

#include "colossal/base/json.h"

namespace colossal::text {

/// The sections of a tokenizer.json. `Json` is nlohmann::json or nlohmann::ordered_json.
template <class Json>
struct TokenizerSections {
  Json model{}, normalizer{}, pre_tokenizer{}, post_processor{}, decoder{}, added_tokens{};

  /// Returns the value of a section that to_json() leaves out. Null sections are written.
  static Json left_out() { return Json(Json::value_t::discarded); }

  /// Returns the members before the sections in a complete file: no truncation and no padding.
  static Json head() { return {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}}; }

  /// Calls visit(name, section) for each section, in the order of files.
  template <class Visit>
  void each(const Visit& visit) {
    visit("added_tokens", added_tokens), visit("normalizer", normalizer), visit("pre_tokenizer", pre_tokenizer);
    visit("post_processor", post_processor), visit("decoder", decoder), visit("model", model);
  }

  /// Returns the sections after the members of `head`.
  Json to_json(Json head = Json::object()) && {
    each([&](const char* name, Json& section) {
      if (!section.is_discarded()) head[name] = std::move(section);
    });
    return head;
  }
};

/// Returns the row of a special token in added_tokens.
nlohmann::ordered_json added_token(const nlohmann::ordered_json& id, const std::string& content);

/// Returns a BPE model. An empty `unknown`, `prefix` or `suffix` is none.
nlohmann::ordered_json bpe_section(const std::string& unknown, const std::string& prefix, const std::string& suffix,
                                   nlohmann::ordered_json vocabulary, nlohmann::ordered_json merges);

/// Returns GPT-2's pre_tokenizer, which is also its decoder.
nlohmann::json byte_level_section(bool trims_offsets);

/// Returns a Metaspace with U+2581, see kMetaspace. `scheme` is always, first or never.
nlohmann::json metaspace_section(const char* scheme, bool splits);

/// Returns BERT's normalizer. Null `strips_accents` = as `lowers`.
nlohmann::json bert_normalizer(bool lowers, const nlohmann::json& strips_accents, bool spaces_chinese);

/// Returns a Replace of a pattern of the kind Regex or String.
nlohmann::json replace_section(const char* kind, const char* pattern, const char* content);

/// Returns the decoder of LLaMA's pieces; `has_prefix` says that a space was put before the text.
nlohmann::json pieces_decoder(bool has_prefix);

/// Return parts of a TemplateProcessing: a special token, and the text A or B.
nlohmann::json template_token(const std::string& token, int type);
nlohmann::json template_text(const char* name, int type);

}  // namespace colossal::text
