#include "colossal/models/folding/one_hot.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "colossal/ops/dispatch.h"

namespace colossal::models {

at::Tensor one_hot(const at::Tensor& indices, int64_t size, at::ScalarType dtype) {
  return indices.unsqueeze(-1).eq(at::arange(size, indices.options())).to(dtype);
}

void for_rows(const nn::AxialRanks& ranks, int64_t residues, int64_t of_row,
              const std::function<void(int64_t first, int64_t count)>& body) {
  const int64_t at_once = at::GradMode::is_enabled()
                              ? std::max<int64_t>(residues, 1)
                              : std::max<int64_t>(ops::kSliceElements / std::max<int64_t>(of_row, 1), 1);
  ranks.for_runs(residues, at_once, body);
}

}  // namespace colossal::models
