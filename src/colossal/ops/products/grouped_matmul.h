// Products of groups of rows with a stack of matrices, one matrix for each group: the linear layers of the experts of a
// mixture.
//
//   const ops::GroupEnds ends{3, 3, 7};                            // 3 rows, none, 4 rows
//   const at::Tensor y = ops::grouped_nt(x, w, ends);              // [7, K], [3, N, K] -> [7, N]
//   const at::Tensor dx = ops::grouped_nn(dy, w, ends), dw = ops::grouped_tn(dy, x, ends);
//
// A CPU multiplies many small groups in blocks with a kernel of its own, and distributes the blocks over its threads. A
// product of a few rows is too small to be distributed itself. Few large groups are products of ops/products/matmul.h,
// one after another, each on all threads. Accelerators use at::_grouped_mm for bf16 if they run it.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace colossal::ops {

/// Rows [ends[e - 1], ends[e]) of x belong to matrix e of a stack, with ends[-1] = 0. Values are on the host. They do
/// not decrease, and the last one is the number of rows. A group may be empty.
using GroupEnds = std::vector<int64_t>;

/// Products without autograd. Operands have one dtype and any strides. The result is new and contiguous, in that dtype.
///
/// Sums:          in fp32 (fp64 for fp64), rounded once.
/// Bits:          in blocks, an element depends neither on other rows nor on the number of threads. Libraries do not
///                promise this.
/// Operations:    announced for each group: 2 R N K in total (tensor/flops.h). Meta tensors give sizes only.
/// Errors:        ("grouped_matmul") `ends` that do not match the rows or the stack; operands of different sizes.
/// Returns x(e) W(e)t + bias(e): [R, N].
at::Tensor grouped_nt(const at::Tensor& x /*[R,K]*/, const at::Tensor& w /*[E,N,K]*/, const GroupEnds& ends,
                      const at::Tensor& bias = {} /*[E,N]*/);
/// Returns dy(e) W(e): [R, K].
at::Tensor grouped_nn(const at::Tensor& dy /*[R,N]*/, const at::Tensor& w /*[E,N,K]*/, const GroupEnds& ends);
/// Returns dy(e)t x(e): [E, N, K], zeros for empty groups. Adds it to `sum` in place and returns `sum`, if given. `sum`
/// may be fp32 if the operands are bf16 or fp16. Two paths round the product of a group to bf16 before they add it:
/// at::_grouped_mm, and large groups on a CPU that multiplies bf16.
at::Tensor grouped_tn(const at::Tensor& dy /*[R,N]*/, const at::Tensor& x /*[R,K]*/, const GroupEnds& ends,
                      at::Tensor sum = {} /*[E,N,K]*/);
/// Returns the sum of the rows of each group: [E, N], zeros for empty groups. It is the gradient of the bias.
at::Tensor grouped_sums(const at::Tensor& dy /*[R,N]*/, const GroupEnds& ends);

/// The same products as a plain loop over the groups with ops/products/matmul.h: the reference, and the path of large
/// groups.
at::Tensor looped_nt(const at::Tensor& x, const at::Tensor& w, const GroupEnds& ends, const at::Tensor& bias = {});
at::Tensor looped_nn(const at::Tensor& dy, const at::Tensor& w, const GroupEnds& ends);
at::Tensor looped_tn(const at::Tensor& dy, const at::Tensor& x, const GroupEnds& ends, at::Tensor sum = {});

}  // namespace colossal::ops
