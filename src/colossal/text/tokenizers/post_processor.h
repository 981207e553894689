// Post-processors, which add special tokens to one text or a pair: the post_processor section of a tokenizer.json.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "colossal/text/tokenizer.h"

namespace colossal::text {

/// A post-processor of the `tokenizers` package. Supported types: null, TemplateProcessing, BertProcessing,
/// RobertaProcessing, ByteLevel (ignored, because it only changes offsets), and Sequence. At most one processor of a
/// Sequence may add tokens.
class PostProcessor {
 public:
  /// `section` is the value of post_processor; null = no special tokens.
  /// Errors: throws Error("tokenizer", ...) naming a type that is not supported, or what is wrong with a template, such
  /// as a missing text. Also for an id outside [0, 2^24) and for a second processor that adds tokens. A missing member
  /// of `section` throws nlohmann::json::exception.
  explicit PostProcessor(const nlohmann::json& section);
  /// Return the token ids of one text or of a pair with the special tokens added, and their types.
  Encoding operator()(const std::vector<int64_t>& text) const;
  Encoding operator()(const std::vector<int64_t>& first, const std::vector<int64_t>& second) const;
  /// Returns the ids of the special tokens before a single text.
  std::vector<int64_t> before() const;

 private:
  struct Part {
    int sequence;              ///< 0 = the first text; 1 = the second text; -1 = special tokens
    int64_t type;              ///< type of these tokens, see Encoding::types
    std::vector<int64_t> ids;  ///< ids of the special tokens; empty for a text
  };
  using Template = std::vector<Part>;
  void add(const nlohmann::json& section);
  void add_template(const nlohmann::json& section);
  void add_pair(const nlohmann::json& section, bool roberta);
  static Template parse(const nlohmann::json& list, const nlohmann::json& special, int sequences);
  static Encoding filled(const Template& pattern, const std::vector<int64_t>* const texts[2]);
  Template single_{{0, 0, {}}}, pair_{{0, 0, {}}, {1, 1, {}}};
  bool adds_ = false;
};

}  // namespace colossal::text
