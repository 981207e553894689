#include "colossal/ops/reduce.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"

namespace colossal::ops {
namespace {

constexpr int64_t kGrain = 65536;

/// Of rows [from, to) of a matrix whose rows lie `stride` apart.
template <class T>
void add_squares(const T* matrix, int64_t stride, int64_t from, int64_t to, int64_t width, double* rows, double* columns) {
  for (int64_t i = from; i < to; ++i) {
    const T* x = matrix + i * stride;
    double sums[4] = {};  // chains of additions that do not wait for one another
    for (int64_t j = 0; j < width; ++j) {
      const double square = static_cast<double>(x[j]) * static_cast<double>(x[j]);
      columns[j] += square;
      sums[j % 4] += square;
    }
    rows[i] += (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
}

}  // namespace

at::Tensor sum_of_squares_reference(const at::Tensor& flat) { return flat.detach().to(at::kDouble).square().sum(); }

at::Tensor sum_of_squares(const at::Tensor& flat) {
  const bool is_half = flat.is_cpu() && flat.scalar_type() == at::kHalf;
  if (!(has_kernel(flat) || is_half) || !flat.is_contiguous()) return sum_of_squares_reference(flat);
  std::vector<double> partial(static_cast<size_t>(parallel_chunks(flat.numel(), kGrain)), 0.0);
  const auto add_up = [&](const auto* data, auto* sum) {
    parallel_chunks_for(0, flat.numel(), kGrain,
                        [&](int64_t chunk, int64_t from, int64_t to) { partial[static_cast<size_t>(chunk)] = sum(data + from, to - from); });
  };
  if (is_half) {
    add_up(pointer<Half>(flat), kernels<float>().sum_of_squares_half);
  } else {
    with_element_type(flat, [&](auto element) { add_up(pointer<decltype(element)>(flat), kernels<decltype(element)>().sum_of_squares); });
  }
  double total = 0;
  for (const double part : partial) total += part;  // in order: the same sum for the same number of chunks
  return at::scalar_tensor(total, at::kDouble);
}

void add_square_sums_reference(const at::Tensor& matrix, const at::Tensor& rows, const at::Tensor& columns) {
  const at::Tensor squares = matrix.detach().to(at::kDouble).square();
  at::Tensor(rows).add_(squares.sum(1));
  at::Tensor(columns).add_(squares.sum(0));
}

void add_square_sums(const at::Tensor& matrix, const at::Tensor& rows, const at::Tensor& columns) {
  require(matrix.dim() == 2 && rows.sizes() == matrix.sizes().slice(0, 1) && columns.sizes() == matrix.sizes().slice(1, 1) &&
              rows.scalar_type() == at::kDouble && columns.scalar_type() == at::kDouble && rows.is_contiguous() && columns.is_contiguous(),
          "add_square_sums", "takes a matrix [n, m] and contiguous fp64 [n], [m]: got ", matrix.sizes(), ", ", rows.scalar_type(), " ", rows.sizes(), ", ",
          columns.scalar_type(), " ", columns.sizes());
  const bool is_double = matrix.scalar_type() == at::kDouble;
  if (!matrix.is_cpu() || !(is_double || matrix.scalar_type() == at::kFloat) || matrix.stride(1) != 1) return add_square_sums_reference(matrix, rows, columns);
  const int64_t height = matrix.size(0), width = matrix.size(1), grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, width));
  const int64_t chunks = parallel_chunks(height, grain);
  at::Tensor partial = at::zeros({chunks, width}, at::kDouble);
  auto* sums = partial.mutable_data_ptr<double>();
  parallel_chunks_for(0, height, grain, [&](int64_t chunk, int64_t from, int64_t to) {
    const auto add = [&](const auto* data) { add_squares(data, matrix.stride(0), from, to, width, pointer<double>(rows), sums + chunk * width); };
    is_double ? add(pointer<double>(matrix)) : add(pointer<float>(matrix));
  });
  for (int64_t chunk = 0; chunk < chunks; ++chunk) at::Tensor(columns).add_(partial[chunk]);
}

void zero_(at::Tensor& flat) {
  at::NoGradGuard no_grad;
  if (!flat.is_cpu() || !flat.is_contiguous()) {
    flat.zero_();
    return;
  }
  auto* bytes = static_cast<char*>(flat.mutable_data_ptr());
  parallel_for(0, static_cast<int64_t>(flat.nbytes()), kGrain * 4,
               [&](int64_t from, int64_t to) { std::memset(bytes + from, 0, static_cast<size_t>(to - from)); });
  flat.unsafeGetTensorImpl()->bump_version();
}

}  // namespace colossal::ops
