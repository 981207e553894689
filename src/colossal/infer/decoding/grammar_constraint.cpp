#include "colossal/infer/decoding/grammar_constraint.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "colossal/text/grammar/json_schema.h"

namespace colossal::infer {

at::Tensor constrained(const at::Tensor& logits, TokenConstraint* constraint) {
  if (!constraint) return logits;
  const at::Tensor allowed = constraint->allowed(logits.size(0)).to(logits.device());
  return logits.masked_fill(allowed.logical_not(), -std::numeric_limits<double>::infinity());
}

// A model may have more logits than its tokenizer has tokens; the ids without a token are never allowed.
at::Tensor GrammarConstraint::allowed(int64_t vocabulary) {
  at::Tensor mask = at::zeros({vocabulary}, at::kBool);
  bool* to = mask.data_ptr<bool>();
  const std::vector<uint64_t>& bits = walk_.allowed();
  const int64_t known = std::min(vocabulary, walk_.vocabulary_size());
  for (int64_t id = 0; id < known; ++id) to[id] = bits[static_cast<size_t>(id) / 64] >> (id % 64) & 1;
  return mask;
}

std::function<std::shared_ptr<TokenConstraint>()> json_constraints(const std::string& schema, const std::string& name,
                                                                   const text::Tokenizer& tokenizer,
                                                                   const std::vector<int64_t>& end_ids) {
  if (schema.empty()) return [] { return nullptr; };
  text::JsonGrammar made = text::json_grammar(schema, name);
  const auto masks =
      std::make_shared<text::TokenMasks>(std::move(made.grammar), made.rule, text::TokenTrie(tokenizer), end_ids);
  return [masks] { return std::make_shared<GrammarConstraint>(masks); };
}

}  // namespace colossal::infer
