// The product of nn::Outputs.
//
//   const at::Tensor y = few_outputs(hidden.to(at::kFloat), weight, {}, cache_of(step) != nullptr);
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::nn {

class Product;
struct Pictures;  // nn/convolution.h

/// Returns x [..., H] W^T + b in the dtype of x, for a few outputs: weight [out, H], bias [out] or undefined, both of
/// any dtype. With `by_row` the bits of a row do not depend on the number of rows; a temporary tensor then has the size
/// of x. Differentiable.
at::Tensor few_outputs(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, bool by_row);

/// Returns the convolution of x [B, h * w, H] in the dtype of x: weight [out, H, kh, kw], [B, h' * w', out]. `product`:
/// that of one process, perhaps with an adapter.
at::Tensor few_outputs(const Product& product, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       const Pictures& pictures);

}  // namespace colossal::nn
