#include "colossal/nn/rows.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"

namespace colossal::nn {

at::Tensor Rows::of(const at::Tensor& whole) const {
  if (!whole.defined() || parts == 1) return whole;
  require(whole.size(0) % parts == 0, "parallel", "the batch must divide by the ", parts,
          " ranks that share its rows: got ", whole.size(0));
  const int64_t rows = whole.size(0) / parts;
  return whole.narrow(0, index * rows, rows);
}

}  // namespace colossal::nn
