// Constrains completions to a grammar, such as the JSON of a schema:
//
//   infer::SchemaCache schemas(tokenizer, end_ids);                                  // infer/decoding/schema_cache.h
//   engine.add({.prompt = ids, .end_ids = end_ids, .constraint = schemas.constraint(schema)});
#pragma once
#include <memory>
#include <utility>

#include "colossal/infer/decoding/token_constraint.h"
#include "colossal/text/grammar/token_mask.h"

namespace colossal::infer {

/// Constrains one request to a grammar. Many requests of one thread may share the masks. The end ids of the masks must
/// be the end ids of the request. A completion matches the grammar unless it ends before an end token: after
/// max_tokens, or at the model's last position.
class GrammarConstraint final : public TokenConstraint {
 public:
  explicit GrammarConstraint(std::shared_ptr<text::TokenMasks> masks) : walk_(std::move(masks)) {}
  /// Errors ("grammar"): a mask beyond text::MaskLimits.
  at::Tensor allowed(int64_t vocabulary) override;
  /// Errors ("grammar"): a token that is not allowed.
  void accept(int64_t token) override { walk_.accept(token); }
  std::shared_ptr<TokenConstraint> copy() const override { return std::make_shared<GrammarConstraint>(*this); }

 private:
  text::TokenWalk walk_;
};

}  // namespace colossal::infer
