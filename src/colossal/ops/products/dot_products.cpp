#include "colossal/ops/products/dot_products.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/tensor/flops.h"

namespace colossal::ops {
namespace {

constexpr int64_t kGrainProducts = int64_t{1} << 17;  // multiplications that are worth a thread

}  // namespace

at::Tensor dot_products(const at::Tensor& x, const at::Tensor& w) {
  require(x.dim() == 2 && w.dim() == 2 && x.size(1) == w.size(1) && x.scalar_type() == w.scalar_type(), "matmul",
          "rows and matrix must be [T, K] and [N, K] of one dtype: got ", x.sizes(), " of ", x.scalar_type(), " and ",
          w.sizes(), " of ", w.scalar_type());
  const at::ScalarType wide = wide_type(x);
  if (!has_kernel(x)) return matmul_nt(x.to(wide), w.to(wide));
  const at::Tensor rows = x.contiguous(), matrix = w.contiguous();
  at::Tensor y = at::empty({x.size(0), w.size(0)}, x.options().requires_grad(false).dtype(wide));
  tensor::announce_product(x.size(0), w.size(0), x.size(1), wide);
  with_element_type(x, [&](auto element) {
    using T = decltype(element);
    const DotProducts<T> task{x.size(1), w.size(0), pointer<T>(rows), pointer<T>(matrix), pointer<WideOf<T>>(y)};
    const auto& kernel = kernels<T>();
    const int64_t grain = std::max<int64_t>(1, kGrainProducts / std::max<int64_t>(1, task.depth * task.columns));
    parallel_for(0, x.size(0), grain, [&](int64_t from, int64_t to) { kernel.dot_products(task, from, to); });
  });
  return y;
}

}  // namespace colossal::ops
