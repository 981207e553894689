#include "colossal/infer/decoding/grammar_constraint.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

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

}  // namespace colossal::infer
