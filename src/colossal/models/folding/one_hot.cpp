#include "colossal/models/folding/one_hot.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "colossal/ops/dispatch.h"

namespace colossal::models {

at::Tensor one_hot(const at::Tensor& indices, int64_t size, at::ScalarType dtype) {
  return indices.unsqueeze(-1).eq(at::arange(size, indices.options())).to(dtype);
}

void for_rows(int64_t rows, int64_t of_row, const std::function<void(int64_t first, int64_t count)>& body) {
  const int64_t at_once = at::GradMode::is_enabled()
                              ? std::max<int64_t>(rows, 1)
                              : std::max<int64_t>(ops::kSliceElements / std::max<int64_t>(of_row, 1), 1);
  for (int64_t first = 0; first < rows; first += at_once) body(first, std::min(at_once, rows - first));
}

}  // namespace colossal::models
