// Constrains completions to a grammar, such as the JSON of a schema:
//
//   auto [grammar, rule] = text::json_grammar(schema);
//   auto masks = std::make_shared<text::TokenMasks>(grammar, rule, text::TokenTrie(tokenizer), end_ids);
//   engine.add({.prompt = ids, .end_ids = end_ids, .constraint = std::make_shared<infer::GrammarConstraint>(masks)});
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "colossal/infer/decoding/token_constraint.h"
#include "colossal/text/grammar/token_mask.h"

namespace colossal::infer {

/// Constrains one request to a grammar. Many requests of one thread may share the masks. The end ids of the masks must
/// be the end ids of the request. A completion matches the grammar unless it ends before an end token: after
/// max_tokens, or at the model's last position.
class GrammarConstraint final : public TokenConstraint {
 public:
  explicit GrammarConstraint(std::shared_ptr<text::TokenMasks> masks) : walk_(std::move(masks)) {}
  at::Tensor allowed(int64_t vocabulary) override;
  /// Errors ("grammar"): a token that is not allowed.
  void accept(int64_t token) override { walk_.accept(token); }
  std::shared_ptr<TokenConstraint> copy() const override { return std::make_shared<GrammarConstraint>(*this); }

 private:
  text::TokenWalk walk_;
};

/// Returns a function that makes a constraint for one completion, which must be JSON of `schema`. If the schema is
/// empty, the function returns null. `name` stands for the schema in messages. Errors of text::json_grammar() and
/// text::TokenMasks.
std::function<std::shared_ptr<TokenConstraint>()> json_constraints(const std::string& schema, const std::string& name,
                                                                   const text::Tokenizer& tokenizer,
                                                                   const std::vector<int64_t>& end_ids);

}  // namespace colossal::infer
