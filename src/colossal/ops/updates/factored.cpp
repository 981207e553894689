#include "colossal/ops/updates/factored.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"

namespace colossal::ops {
namespace {

constexpr int64_t kFactoredGrain = 65536;

/// Returns the minimum number of rows per thread.
int64_t grain_of(const at::Tensor& matrix) {
  return std::max<int64_t>(1, kFactoredGrain / std::max<int64_t>(1, matrix.size(1)));
}

void check_sums(const at::Tensor& matrix, const at::Tensor& rows, const at::Tensor& columns) {
  require(matrix.dim() == 2 && rows.sizes() == matrix.sizes().slice(0, 1) &&
              columns.sizes() == matrix.sizes().slice(1, 1) && rows.scalar_type() == at::kDouble &&
              columns.scalar_type() == at::kDouble && rows.is_contiguous() && columns.is_contiguous(),
          "add_square_sums", "needs a matrix [n, m] and contiguous fp64 [n], [m]: got ", matrix.sizes(), ", ",
          rows.scalar_type(), " ", rows.sizes(), ", ", columns.scalar_type(), " ", columns.sizes());
}

void check_factors(const at::Tensor& from, const at::Tensor& rows, const at::Tensor& columns, const at::Tensor& to) {
  const auto wide = wide_type(to);
  require(from.dim() == 2 && to.sizes() == from.sizes() && rows.sizes() == from.sizes().slice(0, 1) &&
              columns.sizes() == from.sizes().slice(1, 1) && rows.scalar_type() == wide &&
              columns.scalar_type() == wide && rows.is_contiguous() && columns.is_contiguous(),
          "scale_rows_columns", "needs two matrices [n, m] and contiguous [n], [m] of ", wide, ": got ", from.sizes(),
          ", ", to.sizes(), ", ", rows.scalar_type(), " ", rows.sizes(), ", ", columns.scalar_type(), " ",
          columns.sizes());
}

/// Calls body(first row, number of rows) for slices of a matrix on an accelerator.
template <class Body>
void for_slices(const at::Tensor& matrix, const Body& body) {
  const int64_t rows = std::max<int64_t>(1, kSliceElements / std::max<int64_t>(1, matrix.size(1)));
  for (int64_t from = 0; from < matrix.size(0); from += rows) body(from, std::min(rows, matrix.size(0) - from));
}

}  // namespace

void add_square_sums_reference(const at::Tensor& matrix, const at::Tensor& rows, const at::Tensor& columns) {
  check_sums(matrix, rows, columns);
  const at::Tensor squares = matrix.detach().to(at::kDouble).square();
  at::Tensor(rows).add_(squares.sum(1));
  at::Tensor(columns).add_(squares.sum(0));
}

void add_square_sums(const at::Tensor& matrix, const at::Tensor& rows, const at::Tensor& columns) {
  if (is_for_accelerator(matrix)) {
    check_sums(matrix, rows, columns);
    return for_slices(matrix, [&](int64_t from, int64_t count) {
      add_square_sums_reference(matrix.narrow(0, from, count), rows.narrow(0, from, count), columns);
    });
  }
  const bool is_half = tensor::is_for_cpu(matrix) && matrix.scalar_type() == at::kHalf;
  if (!(has_kernel(matrix) || is_half) || matrix.dim() != 2 || matrix.stride(1) != 1)
    return add_square_sums_reference(matrix, rows, columns);
  check_sums(matrix, rows, columns);
  const int64_t height = matrix.size(0), width = matrix.size(1), grain = grain_of(matrix),
                chunks = parallel_chunks(height, grain);
  at::Tensor partial = at::zeros({chunks, width}, columns.options());
  auto* sums = pointer<double>(partial);
  const auto add_up = [&](const auto* data, auto* kernel) {
    parallel_chunks_for(0, height, grain, [&](int64_t chunk, int64_t from, int64_t to) {
      kernel(data, matrix.stride(0), width, from, to, pointer<double>(rows), sums + chunk * width);
    });
  };
  if (is_half && !matrix.is_meta())
    add_up(pointer<Half>(matrix), kernels<float>().square_sums_half);
  else
    with_element_type(matrix, [&](auto element) {
      add_up(pointer<decltype(element)>(matrix), kernels<decltype(element)>().square_sums);
    });
  for (int64_t chunk = 0; chunk < chunks; ++chunk) at::Tensor(columns).add_(partial[chunk]);
}

at::Tensor scale_rows_columns_reference(const at::Tensor& from, const at::Tensor& rows, const at::Tensor& columns,
                                        const at::Tensor& to) {
  check_factors(from, rows, columns, to);
  const at::Tensor scaled = from.to(wide_type(to)) * rows.unsqueeze(1) * columns;
  at::Tensor(to).copy_(scaled);
  return scaled.to(at::kDouble).square().sum();
}

at::Tensor scale_rows_columns(const at::Tensor& from, const at::Tensor& rows, const at::Tensor& columns,
                              const at::Tensor& to) {
  if (is_for_accelerator(to)) {
    check_factors(from, rows, columns, to);
    const at::Tensor sum = at::zeros({}, to.options().dtype(at::kDouble));
    for_slices(to, [&](int64_t first, int64_t count) {
      const auto of = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
      at::Tensor(sum).add_(scale_rows_columns_reference(of(from), of(rows), columns, of(to)));
    });
    return sum;
  }
  const bool same = from.scalar_type() == to.scalar_type(),
             widens = narrow_type(from) != Narrow::None && to.scalar_type() == at::kFloat;
  if (!has_kernel(to) || !tensor::is_for_cpu(from) || !(same || widens) || from.dim() != 2 || to.dim() != 2 ||
      from.stride(1) != 1 || to.stride(1) != 1)
    return scale_rows_columns_reference(from, rows, columns, to);
  check_factors(from, rows, columns, to);
  const int64_t height = from.size(0), grain = grain_of(from);
  std::vector<double> partial(static_cast<size_t>(parallel_chunks(height, grain)), 0.0);
  with_element_type(to, [&](auto element) {
    using T = decltype(element);
    const ScaledMatrix<T> task{from.size(1),
                               from.stride(0),
                               to.stride(0),
                               from.mutable_data_ptr(),
                               same ? Narrow::None : narrow_type(from),
                               pointer<WideOf<T>>(rows),
                               pointer<WideOf<T>>(columns),
                               pointer<T>(to)};
    parallel_chunks_for(0, height, grain,
                        [&, kernel = kernels<T>().scale_matrix](int64_t chunk, int64_t begin, int64_t end) {
                          partial[static_cast<size_t>(chunk)] = kernel(task, begin, end);
                        });
  });
  to.unsafeGetTensorImpl()->bump_version();
  if (to.is_meta()) return at::empty({}, to.options().dtype(at::kDouble));
  double total = 0;
  for (const double part : partial) total += part;  // in order, so that equal numbers of chunks give equal sums
  return at::scalar_tensor(total, at::kDouble);
}

}  // namespace colossal::ops
