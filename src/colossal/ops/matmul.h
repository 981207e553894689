// The one seam through which matrix products go. LibTorch carries two libraries for fp32 on CPU, MKL (behind at::mm)
// and oneDNN (behind a registered operator that eager never uses for plain fp32); which is faster depends on the
// machine and on which operand is transposed, so each kind of product is measured once and sent to the winner. fp64 and
// accelerators go to ATen. bf16 and fp16 on a CPU that does not multiply them are made in fp32 and rounded, unless the
// result is wanted in fp32. Each product announces its 2 M N K operations and its sizes (tensor/flops.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace colossal::ops {

enum class MatmulLibrary : uint8_t { Mkl, OneDnn };

/// Which library computes each kind of fp32 CPU product. Small enough to broadcast as one integer.
struct MatmulChoice {
  MatmulLibrary nt = MatmulLibrary::Mkl;  ///< A Bt: forward of a linear layer
  MatmulLibrary nn = MatmulLibrary::Mkl;  ///< A B: its input gradient
  MatmulLibrary tn = MatmulLibrary::Mkl;  ///< At B: its weight gradient
  int64_t encode() const;
  static MatmulChoice decode(int64_t code);
  bool operator==(const MatmulChoice&) const = default;
};

/// True if this LibTorch registers the oneDNN operator and was built with oneDNN.
bool has_onednn();

/// Times both libraries on each kind of product with this thread's thread count. Cost: about 20 ms.
MatmulChoice measure_matmul();

/// "auto": measure_matmul(); "mkl" or "onednn": that library for all three kinds.
/// Errors: throws for another name, and for "onednn" where LibTorch has none.
MatmulChoice choose_matmul(std::string_view name);

/// The choice in force: a property of the machine, so one per process. Measured on first use unless set before.
/// The libraries round differently: ranks of one run that must agree bitwise set rank 0's choice on all.
/// Thread safety: all three may be called from any thread; set_matmul holds for products that start after it.
MatmulChoice matmul_choice();
void set_matmul(const MatmulChoice& choice);

/// The dtype in which products of x's dtype are computed on x's device: fp32 where a CPU does not multiply bf16 or
/// fp16, else x's own. Operands that are wider than x are best given in it, and x too.
at::ScalarType product_type(const at::Tensor& x);

/// Products without autograd (nn/linear has it), result new and contiguous unless a tensor to write is given. Operands
/// may have any strides; `sum` and `out` have dense rows. They may be fp32 where the operands are bf16 or fp16: then
/// nothing is rounded to those, except the product itself by a CPU that multiplies bf16.
/// -> [M,N] = A Bt + bias
at::Tensor matmul_nt(const at::Tensor& a /*[M,K]*/, const at::Tensor& b /*[N,K]*/, const at::Tensor& bias = {} /*[N]*/);
/// -> [M,N] = A B
at::Tensor matmul_nn(const at::Tensor& a /*[M,K]*/, const at::Tensor& b /*[K,N]*/);
/// -> [M,N] = At B + sum, there
at::Tensor matmul_tn(const at::Tensor& a /*[K,M]*/, const at::Tensor& b /*[K,N]*/, at::Tensor sum = {});
/// Out = A Bt + beta * out, beta 0 (reads nothing) or 1
void matmul_nt_(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double beta);
void matmul_nn_(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);  ///< out = A B

/// Uninitialised [rows, columns] whose rows begin at cache lines: products with odd row lengths are slower by a tenth.
at::Tensor empty_rows(int64_t rows, int64_t columns, const at::TensorOptions& options);

/// Sum over all dimensions but the last: [..., N] -> [N], no autograd. A bias gradient.
at::Tensor column_sums(const at::Tensor& x);

}  // namespace colossal::ops
