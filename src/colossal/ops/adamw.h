// AdamW over flat buffers in one pass.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace colossal::ops {

struct AdamWStep {
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;    ///< decoupled: param *= 1 - learning_rate * weight_decay
  int64_t step = 1;           ///< number of this step, from 1: bias correction
  double gradient_scale = 1;  ///< factor of every gradient: clipping, loss scale, mean over tokens
};

/// One step, in place on `param`, `exp_avg` and `exp_avg_sq`; `grad` is only read:
///
///   g = grad * gradient_scale;  p *= 1 - lr * decay;  m += (g - m)(1 - b1);  v = v b2 + g^2 (1 - b2)
///   p -= lr / (1 - b1^step) * m / (sqrt(v) / sqrt(1 - b2^step) + epsilon)
///
/// Shapes:   1-D contiguous of one length (slice the buffers for ranges with another decay). Dtypes: param, exp_avg and
///           exp_avg_sq alike (fp64, fp32 or bf16), grad the same or bf16 with fp32. `copy`, if defined, is bf16 of the same
///           length and receives the new param rounded (weights of mixed precision).
/// Numbers:  fp64 equals torch.optim.AdamW; fp32 and bf16 are computed in fp32.
/// Errors:   throws on sizes, dtypes, strides that do not fit and on step < 1.
/// Cost:     fp32 on CPU: 28 bytes of memory traffic an element, all threads. Accelerators: the reference.
/// See:      Loshchilov and Hutter, arXiv:1711.05101.
void adamw_(at::Tensor& param, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& exp_avg_sq, const AdamWStep& step,
            const at::Tensor& copy = {});

/// The same by ATen operators on any device.
void adamw_reference_(at::Tensor& param, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                      const AdamWStep& step, const at::Tensor& copy = {});

}  // namespace colossal::ops
