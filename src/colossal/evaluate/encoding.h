// Texts of tasks as token ids: pairs of a context and a continuation, and windows of a long text.
//
//   evaluate::Encoder encoder(tokenizer, {});
//   const evaluate::Pair pair = evaluate::fitted(encoder.pair("Question: Why?\nAnswer:", " So"), scorer.max_length());
//
// The ids are those of lm-evaluation-harness 0.4.13, so that scores can be compared.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "colossal/evaluate/scorer.h"
#include "colossal/text/tokenizer.h"

namespace colossal::evaluate {

class Encoder {
 public:
  /// `tokenizer` must outlive the encoder. `adds_begin` says whether texts get the begin token; nothing = as the
  /// tokenizer does for prompts.
  /// Errors ("evaluate"): `adds_begin` is true and the tokenizer has no begin token.
  Encoder(const text::Tokenizer& tokenizer, std::optional<bool> adds_begin);

  /// Returns the ids of a text with the special tokens before it. A text that begins with the spelling of the begin
  /// token gets none.
  std::vector<int64_t> encode(const std::string& text) const;
  /// Returns the ids of a context and of the continuation to score. White space that ends the context moves to the
  /// continuation. The ids of both texts together are then cut after as many ids as the context alone has. If nothing
  /// is left, because a token spans the border, each part is encoded alone, and apart() counts it. An empty context is
  /// the prefix token.
  /// Errors ("evaluate"): a continuation without tokens; those of prefix().
  Pair pair(const std::string& context, const std::string& continuation);
  /// Returns the token that stands before a text without context: the begin token, else the end token.
  /// Errors ("evaluate"): the tokenizer has neither.
  int64_t prefix() const;
  /// Returns how many pairs were encoded in two parts.
  int64_t apart() const { return apart_; }

 private:
  const text::Tokenizer& tokenizer_;
  std::optional<bool> adds_begin_;
  int64_t prefix_;
  std::string prefix_text_;
  int64_t apart_ = 0;
};

/// Returns the pair cut to its last max_length + 1 ids, of which a model reads max_length. At least one id of context
/// stays.
Pair fitted(Pair pair, int64_t max_length);

/// Returns pairs in which each of `ids` is predicted once. The first window follows `prefix`. The context of the
/// last one has the ids that fill max_length, the others have one id of context.
std::vector<Pair> rolling_windows(const std::vector<int64_t>& ids, int64_t prefix, int64_t max_length);

}  // namespace colossal::evaluate
