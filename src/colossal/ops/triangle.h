// Products of pair representations along triangles (Jumper et al. 2021, supplement, algorithms 11 and 12), and sums of
// outer products of alignment rows (algorithm 10).
//
//   const at::Tensor x = ops::triangle_product(a, b, ops::Triangle::Outgoing);   // a, b, x [B, N, N, C]
//   z = z + ops::outer_product_mean(left, right, weight, bias, rows);            // left, right [B, S, N, 32]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace colossal::ops {

/// The edges of a triangle i, j, k that a product multiplies.
enum class Triangle : uint8_t {
  Outgoing,  ///< x_ij = sum over k of a_ik b_jk
  Incoming,  ///< x_ij = sum over k of a_ki b_kj
};

/// Computes the product of each channel.
///
/// Shapes:   outgoing a [B,I,K,C], b [B,J,K,C]; incoming a [B,K,I,C], b [B,K,J,C] -> [B,I,J,C], contiguous. Any strides
///           are accepted. Ranks or chunks that have some of the edges pass those.
/// Gradient: of a and b, by the same products.
/// Numbers:  sums are in fp32 for fp32 and narrower, in fp64 for fp64.
/// Errors ("triangle"): shapes that do not fit together, different dtypes.
/// Memory:   backward keeps a and b. On the CPU no operand is transposed; a thread packs some rows. Elsewhere and for
///           fp16 LibTorch's batched product runs on operands with channels in front, which are copies.
at::Tensor triangle_product(const at::Tensor& a, const at::Tensor& b, Triangle triangle);
/// Computes the same by one whole product of LibTorch and its autograd: the reference.
at::Tensor triangle_product_reference(const at::Tensor& a, const at::Tensor& b, Triangle triangle);

/// Computes y_ij = (W vec(sum over rows s of a_si b_sj) + bias) / counts_ij, where vec has the features of a outermost.
///
/// Shapes:   a [B,S,I,A], b [B,S,J,C], weight [O,A * C], bias [O] or undefined, counts [B,I,J] -> [B,I,J,O]. The caller
///           has set masked elements of a and b to zero, and `counts` to the number of rows that count for a pair plus
///           1e-3. The division comes last, after the bias.
/// Gradient: of a, b, weight and bias.
/// Numbers:  the sums over rows are in fp32 for fp32 and narrower, in fp64 for fp64.
/// Errors ("outer product"): shapes that do not fit together.
/// Memory:   the outer products [I,J,A * C] exist for some i at a time, in backward too, which computes them again.
///           Backward keeps a, b, the weight and the counts.
at::Tensor outer_product_mean(const at::Tensor& a, const at::Tensor& b, const at::Tensor& weight,
                              const at::Tensor& bias, const at::Tensor& counts);
/// Computes the same from all outer products by ATen's autograd: the reference.
at::Tensor outer_product_mean_reference(const at::Tensor& a, const at::Tensor& b, const at::Tensor& weight,
                                        const at::Tensor& bias, const at::Tensor& counts);

}  // namespace colossal::ops
