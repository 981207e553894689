// Matrix products. All products of the library go through this header. LibTorch has two libraries for fp32 products on
// a CPU: MKL, which at::mm uses, and oneDNN, which a registered operator uses that eager mode never calls for plain
// fp32. The faster one depends on the machine and on which operand is transposed. Therefore each kind of product is
// measured once and sent to the faster library. fp64 and accelerators use ATen. If a CPU does not multiply bf16 and
// fp16, these products are computed in fp32 and rounded, unless the result is requested in fp32. Each product reports
// its 2 M N K operations and its sizes (tensor/flops.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace colossal::ops {

enum class MatmulLibrary : uint8_t { Mkl, OneDnn };

/// The library that computes each kind of fp32 CPU product. encode() packs it into one integer to broadcast.
struct MatmulChoice {
  MatmulLibrary nt = MatmulLibrary::Mkl;  ///< A Bt: forward of a linear layer
  MatmulLibrary nn = MatmulLibrary::Mkl;  ///< A B: input gradient of a linear layer
  MatmulLibrary tn = MatmulLibrary::Mkl;  ///< At B: weight gradient of a linear layer
  int64_t encode() const;
  static MatmulChoice decode(int64_t code);
  bool operator==(const MatmulChoice&) const = default;
};

/// True if this LibTorch registers the oneDNN operator and was built with oneDNN.
bool has_onednn();

/// Times both libraries on each kind of product, with this thread's thread count. Cost: about 20 ms.
MatmulChoice measure_matmul();

/// Returns measure_matmul() for "auto", or one library for all three kinds for "mkl" and "onednn". Errors: throws for
/// another name, and for "onednn" if LibTorch has none.
MatmulChoice choose_matmul(std::string_view name);

/// Returns the current choice. There is one per process, because it is a property of the machine. It is measured on
/// first use unless it was set before. The libraries round differently: if ranks of one run must agree bitwise, set
/// rank 0's choice on all. Thread safety: all three functions may be called from any thread; set_matmul affects
/// products that start after it.
MatmulChoice matmul_choice();
void set_matmul(const MatmulChoice& choice);

/// Returns the dtype in which products of x's dtype are computed on x's device: fp32 if a CPU does not multiply bf16 or
/// fp16, else x's own. Callers should pass x, and operands wider than x, in this dtype.
at::ScalarType product_type(const at::Tensor& x);

/// Matrix products without autograd (nn/linear has it). The result is new and contiguous unless a tensor to write is
/// given. Operands may have any strides; `sum` and `out` have dense rows. `sum` and `out` may be fp32 if the operands
/// are bf16 or fp16. No value is then rounded to bf16 or fp16, except the product itself by a CPU that multiplies bf16.
/// Returns A Bt + bias: [M,N].
at::Tensor matmul_nt(const at::Tensor& a /*[M,K]*/, const at::Tensor& b /*[N,K]*/, const at::Tensor& bias = {} /*[N]*/);
/// Returns A B: [M,N].
at::Tensor matmul_nn(const at::Tensor& a /*[M,K]*/, const at::Tensor& b /*[K,N]*/);
/// Adds At B to `sum` in place, if given. Returns the result [M,N].
at::Tensor matmul_tn(const at::Tensor& a /*[K,M]*/, const at::Tensor& b /*[K,N]*/, at::Tensor sum = {});
/// Computes out = A Bt + beta * out; beta is 0 (out is not read) or 1.
void matmul_nt_(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double beta);
void matmul_nn_(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);  ///< out = A B

/// Returns an uninitialised matrix [rows, columns] whose rows begin at cache lines, because products with odd row
/// lengths are slower by a tenth.
at::Tensor empty_rows(int64_t rows, int64_t columns, const at::TensorOptions& options);

/// Returns the sum over all dimensions but the last: [..., N] -> [N], without autograd. It is the gradient of a bias.
at::Tensor column_sums(const at::Tensor& x);

/// Product with a matrix of few rows, such as a router's, whose operands need no preparation.
/// Returns x wt, without autograd: x [T, K], w [N, K] -> [T, N] in fp32, or fp64 for fp64. The result is not rounded to
/// the dtype of x. Each element depends on its row of x and its row of w alone, so a row has the same bits beside any
/// other rows.
/// Dtypes: fp64, fp32, bf16 with our kernels; others are converted.
/// Errors ("matmul"): operands of different dtypes or sizes.
/// Cost:   T N K multiplications without reuse of registers. For large N, use matmul_nt().
at::Tensor dot_products(const at::Tensor& x, const at::Tensor& w);

/// Peak speed of matrix products on this machine: the reference for utilisation.
/// Returns the floating point operations per second of matmul_nt on 1024 x 1024 matrices, with this thread's thread
/// count. It is the best of the repetitions that fit in `seconds`, at least one. On accelerators, time is measured
/// between events of the current stream. There the sides of the matrices are doubled, up to 8192, until a product takes
/// 2 ms, because the launch time would distort shorter measurements.
double matmul_peak(at::ScalarType dtype, at::Device device, double seconds);

}  // namespace colossal::ops
