#include "colossal/ops/products/grouped_matmul.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>

#include "colossal/base/error.h"
#include "colossal/ops/device/operators.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/tensor/flops.h"

namespace colossal::ops {
namespace {

/// Mean rows of a group from which a product of its own, on all threads, is as fast as blocks.
constexpr int64_t kLargeGroup = 512;
/// Columns of a block: a multiple of the panel of every instruction set.
constexpr int64_t kBlockColumns = 64;

int64_t begin_of(const GroupEnds& ends, size_t group) { return group == 0 ? 0 : ends[group - 1]; }
int64_t rows_of(const GroupEnds& ends, size_t group) { return ends[group] - begin_of(ends, group); }
at::Tensor rows_in(const at::Tensor& x, const GroupEnds& ends, size_t group) {
  return x.narrow(0, begin_of(ends, group), rows_of(ends, group));
}

void check_ends(const at::Tensor& x, const GroupEnds& ends) {
  require(x.dim() == 2, "grouped_matmul", "rows must be a matrix: got ", x.dim(), " dimensions");
  int64_t before = 0;
  for (size_t group = 0; group < ends.size(); ++group) {
    require(ends[group] >= before, "grouped_matmul", "ends must not decrease: got ", ends[group], " after ", before,
            " for group ", group);
    before = ends[group];
  }
  require(before == x.size(0), "grouped_matmul", "the last end must be the number of rows: got ", before, " for ",
          x.size(0), " rows");
}

/// Checks a product of `x` and a stack with `inner` as the size that both share.
void check_stack(const at::Tensor& x, const at::Tensor& w, int64_t inner_dim, const GroupEnds& ends) {
  check_ends(x, ends);
  require(w.dim() == 3, "grouped_matmul", "the matrices must be a stack [E, N, K]: got ", w.dim(), " dimensions");
  require(w.size(0) == static_cast<int64_t>(ends.size()), "grouped_matmul",
          "ends must have one entry for each matrix: got ", ends.size(), " for ", w.size(0), " matrices");
  require(w.scalar_type() == x.scalar_type(), "grouped_matmul", "operands must have one dtype: got ", x.scalar_type(),
          " and ", w.scalar_type());
  require(w.size(inner_dim) == x.size(1), "grouped_matmul", "rows must have as many columns as the matrices: got ",
          x.size(1), " for ", w.size(inner_dim));
}

void check_bias(const at::Tensor& w, const at::Tensor& bias) {
  require(!bias.defined() || bias.sizes() == w.sizes().slice(0, 2), "grouped_matmul", "bias must be ",
          w.sizes().slice(0, 2), ": got ", bias.defined() ? bias.sizes() : at::IntArrayRef());
}

void check_sum(const at::Tensor& dy, const at::Tensor& x, const GroupEnds& ends, const at::Tensor& sum) {
  check_ends(dy, ends);
  check_ends(x, ends);
  require(dy.scalar_type() == x.scalar_type(), "grouped_matmul", "operands must have one dtype: got ", dy.scalar_type(),
          " and ", x.scalar_type());
  if (!sum.defined()) return;
  const std::vector<int64_t> sizes{static_cast<int64_t>(ends.size()), dy.size(1), x.size(1)};
  require(sum.sizes() == at::IntArrayRef(sizes), "grouped_matmul", "sum must be ", at::IntArrayRef(sizes), ": got ",
          sum.sizes());
}

/// True for fp16, which no kernel multiplies: it is multiplied in fp32.
bool is_widened_here(const at::Tensor& x) { return tensor::is_for_cpu(x) && x.scalar_type() == at::kHalf; }

void announce_groups(const GroupEnds& ends, int64_t n, int64_t k, at::ScalarType dtype) {
  if (!tensor::are_flops_counted()) return;
  for (size_t group = 0; group < ends.size(); ++group)
    if (const int64_t rows = rows_of(ends, group); rows > 0) tensor::announce_product(rows, n, k, dtype);
}

bool are_large(const GroupEnds& ends) {
  int64_t used = 0;
  for (size_t group = 0; group < ends.size(); ++group) used += rows_of(ends, group) > 0;
  return used > 0 && ends.back() / used >= kLargeGroup;
}

/// Returns true if the product is computed in blocks. `sum` is null for results in the dtype of x.
bool uses_blocks(const at::Tensor& x, const GroupEnds& ends, const at::Tensor& sum = {}) {
  if (!tensor::is_for_cpu(x) || are_large(ends)) return false;
  if (sum.defined() && sum.stride(2) != 1) return false;
  if (sum.defined() && sum.scalar_type() != x.scalar_type() && sum.scalar_type() != at::kFloat) return false;
  return has_kernel(x) || x.scalar_type() == at::kHalf;
}

/// True if at::_grouped_mm multiplies x. It takes bf16 whose rows begin at 16 bytes.
bool uses_grouped_operator(const at::Tensor& x, int64_t n, int64_t k) {
  return is_for_accelerator(x) && x.scalar_type() == at::kBFloat16 && n % 8 == 0 && k % 8 == 0 && x.size(0) > 0 &&
         runs(DeviceOperator::GroupedProduct, x.device());
}

at::Tensor ends_on_device(const GroupEnds& ends, const at::Tensor& x) {
  if (x.is_meta()) return at::empty({static_cast<int64_t>(ends.size())}, x.options().dtype(at::kInt));
  return at::tensor(ends, at::kInt).pin_memory().to(x.device(), /*non_blocking=*/true);
}

/// The product of the rows with stacked matrices [E, in, out], and the bias.
at::Tensor multiply_on_device(const at::Tensor& x, const at::Tensor& stack, const GroupEnds& ends,
                              const at::Tensor& bias) {
  const at::Tensor rows = x.contiguous(), ends_there = ends_on_device(ends, x);
  // LibTorch has no kernel of the operator on meta.
  at::Tensor y =
      x.is_meta() ? at::empty({x.size(0), stack.size(2)}, x.options()) : at::_grouped_mm(rows, stack, ends_there);
  if (!bias.defined()) return y;
  for (size_t group = 0; group < ends.size(); ++group)
    if (rows_of(ends, group) > 0) rows_in(y, ends, group).add_(bias.select(0, static_cast<int64_t>(group)));
  return y;
}

/// Blocks of one call. All have the same operands and strides.
template <class T>
class Blocks {
 public:
  using W = WideOf<T>;

  /// Adds C (+)= A B in blocks. `whole` describes the product; its rows may exceed kBlockRows.
  void add(const BlockProduct<T>& whole) {
    if (whole.rows == 0 || whole.columns == 0) return;
    const int64_t parts = (whole.rows + kBlockRows - 1) / kBlockRows;
    const int64_t rows = std::min(((whole.rows + parts - 1) / parts + 5) / 6 * 6, kBlockRows);  // whole register tiles
    for (int64_t column = 0; column < whole.columns; column += kBlockColumns)
      for (int64_t row = 0; row < whole.rows; row += rows) {
        BlockProduct<T> block = whole;
        block.rows = std::min(rows, whole.rows - row);
        block.columns = std::min(kBlockColumns, whole.columns - column);
        block.a += row * whole.a_row;
        block.b += column * whole.b_column;
        if (whole.bias) block.bias += column;
        if (whole.wide) block.wide += row * whole.c_row + column;
        if (whole.narrow) block.narrow += row * whole.c_row + column;
        blocks_.push_back(block);
      }
  }

  /// Computes all blocks. Threads take the next one when they are done, so that uneven groups balance. `scratch` is
  /// that of scratch_of().
  void run(const at::Tensor& scratch) const {
    const int64_t threads = scratch.size(0);
    const auto& kernel = kernels<T>();  // of this thread's instruction set
    std::atomic<size_t> next{0};
    parallel_for(0, threads, 1, [&](int64_t thread, int64_t) {
      W* const own = pointer<W>(scratch) + thread * kBlockScratch;
      size_t after = 0;
      for (size_t i = next++; i < blocks_.size(); i = after) {
        after = next++;
        BlockProduct<T> block = blocks_[i];
        if (after < blocks_.size()) block.next_b = blocks_[after].b;
        kernel.multiply_block(block, own);
      }
    });
  }

 private:
  std::vector<BlockProduct<T>> blocks_;
};

at::Tensor with_dense_rows(const at::Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

/// Returns the working memory of all threads for products of x: on meta, too, where accounts count it.
at::Tensor scratch_of(const at::Tensor& x) {
  return at::empty({at::get_num_threads(), kBlockScratch}, x.options().dtype(wide_type(x)));
}

template <class T>
void set_result(BlockProduct<T>& product, const at::Tensor& result) {
  if constexpr (std::is_same_v<T, WideOf<T>>) {
    product.wide = pointer<T>(result);
  } else if (result.scalar_type() == at::kFloat) {
    product.wide = pointer<float>(result);
  } else {
    product.narrow = pointer<T>(result);
  }
}

/// y = x(e) B(e) + bias(e), with B the matrices of the stack (nn) or their transposes (nt).
void multiply_rows(const at::Tensor& x, const at::Tensor& w, bool transposed, const GroupEnds& ends,
                   const at::Tensor& bias, const at::Tensor& y) {
  const at::Tensor a = with_dense_rows(x.to(wide_type(x))), b = with_dense_rows(w);
  const at::Tensor added = bias.defined() ? bias.to(wide_type(x)).contiguous() : bias, scratch = scratch_of(x);
  with_element_type(x, [&](auto element) {
    using T = decltype(element);
    using W = WideOf<T>;
    Blocks<T> blocks;
    for (size_t group = 0; group < ends.size(); ++group) {
      const auto stack = static_cast<int64_t>(group);
      BlockProduct<T> product{rows_of(ends, group), y.size(1), x.size(1)};
      const at::Tensor out = y.narrow(0, begin_of(ends, group), product.rows);
      product.a = pointer<W>(a) + begin_of(ends, group) * a.stride(0);
      product.a_row = a.stride(0), product.a_column = 1;
      product.b = pointer<T>(b) + stack * b.stride(0);
      product.b_row = b.stride(transposed ? 2 : 1), product.b_column = b.stride(transposed ? 1 : 2);
      if (added.defined()) product.bias = pointer<W>(added) + stack * y.size(1);
      set_result(product, out);
      product.c_row = y.stride(0);
      blocks.add(product);
    }
    blocks.run(scratch);
  });
}

/// result(e) (+)= dy(e)t x(e).
void multiply_groups(const at::Tensor& dy, const at::Tensor& x, const GroupEnds& ends, const at::Tensor& result,
                     bool add) {
  const at::Tensor a = with_dense_rows(dy.to(wide_type(dy))), b = with_dense_rows(x), scratch = scratch_of(x);
  with_element_type(x, [&](auto element) {
    using T = decltype(element);
    Blocks<T> blocks;
    for (size_t group = 0; group < ends.size(); ++group) {
      BlockProduct<T> product{dy.size(1), x.size(1), rows_of(ends, group)};
      if (add && product.depth == 0) continue;
      product.a = pointer<WideOf<T>>(a) + begin_of(ends, group) * a.stride(0);
      product.a_row = 1, product.a_column = a.stride(0);
      product.b = pointer<T>(b) + begin_of(ends, group) * b.stride(0);
      product.b_row = b.stride(0), product.b_column = 1;
      set_result(product, result.select(0, static_cast<int64_t>(group)));
      product.c_row = result.stride(1);
      product.add = add;
      blocks.add(product);
    }
    blocks.run(scratch);
  });
}

at::Tensor empty_stack(const at::Tensor& dy, const at::Tensor& x, const GroupEnds& ends) {
  return at::empty({static_cast<int64_t>(ends.size()), dy.size(1), x.size(1)}, dy.options());
}

}  // namespace

at::Tensor looped_nt(const at::Tensor& x, const at::Tensor& w, const GroupEnds& ends, const at::Tensor& bias) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_stack(x, w, 2, ends);
  check_bias(w, bias);
  const at::Tensor y = at::empty({x.size(0), w.size(1)}, x.options());
  for (size_t group = 0; group < ends.size(); ++group) {
    if (rows_of(ends, group) == 0) continue;
    const at::Tensor rows = rows_in(x, ends, group), matrix = w.select(0, static_cast<int64_t>(group));
    at::Tensor out = rows_in(y, ends, group);
    if (bias.defined())
      out.copy_(matmul_nt(rows, matrix, bias.select(0, static_cast<int64_t>(group))));
    else
      matmul_nt_(out, rows, matrix, 0);
  }
  return y;
}

at::Tensor looped_nn(const at::Tensor& dy, const at::Tensor& w, const GroupEnds& ends) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_stack(dy, w, 1, ends);
  const at::Tensor dx = at::empty({dy.size(0), w.size(2)}, dy.options());
  for (size_t group = 0; group < ends.size(); ++group) {
    if (rows_of(ends, group) == 0) continue;
    at::Tensor out = rows_in(dx, ends, group);
    matmul_nn_(out, rows_in(dy, ends, group), w.select(0, static_cast<int64_t>(group)));
  }
  return dx;
}

at::Tensor looped_tn(const at::Tensor& dy, const at::Tensor& x, const GroupEnds& ends, at::Tensor sum) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_sum(dy, x, ends, sum);
  const at::Tensor result = sum.defined() ? sum : empty_stack(dy, x, ends);
  for (size_t group = 0; group < ends.size(); ++group) {
    const at::Tensor out = result.select(0, static_cast<int64_t>(group));
    if (rows_of(ends, group) == 0) {
      if (!sum.defined()) out.zero_();
      continue;
    }
    const at::Tensor left = rows_in(dy, ends, group), right = rows_in(x, ends, group);
    if (sum.defined())
      matmul_tn(left, right, out);
    else
      out.copy_(matmul_tn(left, right));
  }
  return result;
}

at::Tensor grouped_nt(const at::Tensor& x, const at::Tensor& w, const GroupEnds& ends, const at::Tensor& bias) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_stack(x, w, 2, ends);
  check_bias(w, bias);
  const bool on_device = uses_grouped_operator(x, w.size(1), w.size(2));
  if (!on_device && !uses_blocks(x, ends)) return looped_nt(x, w, ends, bias);
  announce_groups(ends, w.size(1), w.size(2), x.scalar_type());
  if (on_device) return multiply_on_device(x, w.contiguous().transpose(1, 2), ends, bias);
  const at::Tensor y = at::empty({x.size(0), w.size(1)}, x.options());
  if (is_widened_here(x)) {
    const at::Tensor wide_y = at::empty(y.sizes(), y.options().dtype(at::kFloat));
    multiply_rows(x.to(at::kFloat), w.to(at::kFloat), true, ends, bias, wide_y);
    return y.copy_(wide_y);
  }
  multiply_rows(x, w, true, ends, bias, y);
  return y;
}

at::Tensor grouped_nn(const at::Tensor& dy, const at::Tensor& w, const GroupEnds& ends) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_stack(dy, w, 1, ends);
  const bool on_device = uses_grouped_operator(dy, w.size(1), w.size(2));
  if (!on_device && !uses_blocks(dy, ends)) return looped_nn(dy, w, ends);
  announce_groups(ends, w.size(1), w.size(2), dy.scalar_type());
  if (on_device) return multiply_on_device(dy, w.contiguous(), ends, {});
  const at::Tensor dx = at::empty({dy.size(0), w.size(2)}, dy.options());
  if (is_widened_here(dy)) {
    const at::Tensor wide_dx = at::empty(dx.sizes(), dx.options().dtype(at::kFloat));
    multiply_rows(dy.to(at::kFloat), w.to(at::kFloat), false, ends, {}, wide_dx);
    return dx.copy_(wide_dx);
  }
  multiply_rows(dy, w, false, ends, {}, dx);
  return dx;
}

at::Tensor grouped_tn(const at::Tensor& dy, const at::Tensor& x, const GroupEnds& ends, at::Tensor sum) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_sum(dy, x, ends, sum);
  const bool on_device = uses_grouped_operator(dy, dy.size(1), x.size(1));
  if (!on_device && !uses_blocks(dy, ends, sum)) return looped_tn(dy, x, ends, sum);
  announce_groups(ends, dy.size(1), x.size(1), dy.scalar_type());
  if (on_device) {
    const at::Tensor left = dy.contiguous(), right = x.contiguous(), ends_there = ends_on_device(ends, x);
    const at::Tensor product = x.is_meta() ? empty_stack(dy, x, ends) : at::_grouped_mm(left.t(), right, ends_there);
    for (size_t group = 0; group < ends.size(); ++group)  // an empty sum is not promised to be written
      if (rows_of(ends, group) == 0) product.select(0, static_cast<int64_t>(group)).zero_();
    return sum.defined() ? sum.add_(product) : product;
  }
  const at::Tensor result = sum.defined() ? sum : empty_stack(dy, x, ends);
  if (!is_widened_here(dy)) {
    multiply_groups(dy, x, ends, result, sum.defined());
    return result;
  }
  const at::Tensor left = dy.to(at::kFloat), right = x.to(at::kFloat);
  const bool to_wide = result.scalar_type() == at::kFloat;
  const at::Tensor wide_result = to_wide ? result : empty_stack(left, right, ends);
  multiply_groups(left, right, ends, wide_result, to_wide);
  if (to_wide) return result;
  return sum.defined() ? result.add_(wide_result) : result.copy_(wide_result);
}

at::Tensor grouped_sums(const at::Tensor& dy, const GroupEnds& ends) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_ends(dy, ends);
  const auto count = static_cast<int64_t>(ends.size());
  const at::Tensor rows = dy.contiguous();
  if (has_kernel(dy) && !are_large(ends)) {
    const at::Tensor sums = at::zeros({count, dy.size(1)}, dy.options().dtype(wide_type(dy)));
    with_element_type(dy, [&](auto element) {
      using T = decltype(element);
      const auto& kernel = kernels<T>();
      parallel_for(0, count, 1, [&](int64_t from, int64_t to) {
        for (int64_t group = from; group < to; ++group)
          kernel.column_sums(pointer<T>(rows), dy.size(1), begin_of(ends, static_cast<size_t>(group)),
                             ends[static_cast<size_t>(group)], pointer<WideOf<T>>(sums) + group * dy.size(1));
      });
    });
    return sums.to(dy.scalar_type());
  }
  const at::Tensor sums = at::zeros({count, dy.size(1)}, dy.options());
  for (size_t group = 0; group < ends.size(); ++group)
    if (rows_of(ends, group) > 0)
      sums.select(0, static_cast<int64_t>(group)).copy_(column_sums(rows_in(rows, ends, group)));
  return sums;
}

}  // namespace colossal::ops
