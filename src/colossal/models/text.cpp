#include "colossal/models/text.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"

namespace colossal::models {

void check_tokens(const ModelShape& s, const at::Tensor& ids, const at::Tensor& labels) {
  require(ids.size(1) <= s.positions, "model", "the sequence must not be longer than the model's positions: got ",
          ids.size(1), " tokens, ", s.positions, " positions; lower data.sequence or raise model.positions");
  const int64_t least = ids.min().item<int64_t>(), most = ids.max().item<int64_t>(),
                label = labels.max().item<int64_t>();
  require(least >= 0 && most < s.vocabulary && label < s.vocabulary, "data",
          "token ids must lie in the model's vocabulary of ", s.vocabulary, ": got ",
          least < 0 ? least : std::max(most, label));
}

double causal_flops(const ModelShape& s, int64_t matrix_elements, int64_t sequence) {
  const double length = static_cast<double>(sequence);
  return length * (6.0 * static_cast<double>(matrix_elements) +
                   6.0 * static_cast<double>(s.layers * s.heads * s.head_dim) * length);
}

}  // namespace colossal::models
