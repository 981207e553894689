// Update rules over flat buffers, each in one pass over memory: SGD, Adam, AdamW, Lion; and passes of those that take
// several.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "colossal/ops/adam_step.h"

namespace colossal::ops {

/// What a step works on.
///
/// Shapes:  1-D contiguous, of one length, states too (slice the buffers for ranges with another decay).
/// Dtypes:  values fp64, fp32 or bf16, states the same; gradients the same, or bf16 or fp16 beside fp32.
/// Numbers: computed in fp64 for fp64, else in fp32, rounded once.
struct FlatUpdate {
  at::Tensor values;
  at::Tensor gradients;  ///< only read
  /// If defined, bf16 or fp16: receives the new values rounded (weights of mixed precision)
  at::Tensor copy;
  double gradient_scale = 1;  ///< factor of every gradient: clipping, loss scale, mean over tokens

  /// bf16 values and their last state are rounded up or down by chance such that the mean is exact: small steps are not
  /// lost. Element i draws word `first` + i of `seed` (ops/random.h).
  struct Chance {
    uint64_t seed, first;
  };
  std::optional<Chance> chance{};
};

/// g = gradient * gradient_scale everywhere below. Errors of all rules: sizes, dtypes or strides that do not fit; step
/// < 1.
/// Cost: one pass, all threads: fp32 on CPU moves 12 bytes an element and 8 for each state. Accelerators with
///       kernels of ours (device_tables.h) the same. Others: the reference in slices of 2^22 elements, some six fp32
///       tensors of a slice at one time, and for adam_() LibTorch's fused step: not with both decays at once, by
///       chance, or a factor beside bf16 values.

struct SgdStep {
  double learning_rate = 1e-3;
  double momentum = 0;      ///< 0 with an undefined `momentum` tensor
  double weight_decay = 0;  ///< of the gradient: g += decay * p
  bool nesterov = false;
  double intake = 1;  ///< factor of what flows into the momentum: a rate inside it (LARS)
};

/// g = intake (g + decay p);  b = momentum b + g;  p -= lr (nesterov ? g + momentum b : b)
///
/// `momentum` undefined: b = g. Equals torch.optim.SGD without dampening.
void sgd_(const FlatUpdate& update, const at::Tensor& momentum, const SgdStep& step);
void sgd_reference_(const FlatUpdate& update, const at::Tensor& momentum, const SgdStep& step);

/// g += penalty p;  p *= 1 - lr decay;  m += (g - m)(1 - b1);  v = v b2 + g^2 (1 - b2)
/// p -= lr / (1 - b1^step) * m / (sqrt(v) / sqrt(1 - b2^step) + epsilon)
///
/// Equals torch.optim.Adam and AdamW. See: Kingma and Ba, arXiv:1412.6980; Loshchilov and Hutter, arXiv:1711.05101.
void adam_(const FlatUpdate& update, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq, const AdamStep& step);
void adam_reference_(const FlatUpdate& update, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                     const AdamStep& step);

/// direction = m / (1 - b1^step) / (sqrt(v) / sqrt(1 - b2^step) + epsilon) + weight_decay p, with the moments m and v
/// that adam_() makes: LAMB's. Values stay as they are, there is no copy and nothing by chance; learning_rate does not
/// matter.
///
/// Shapes, dtypes: `direction` is like the values, and may be the gradients.
/// Cost: one pass, 28 bytes an element of fp32 in the gradients' place.
/// See: You et al., arXiv:1904.00962, algorithm 2.
void adam_direction_(const FlatUpdate& update, const at::Tensor& direction, const at::Tensor& exp_avg,
                     const at::Tensor& exp_avg_sq, const AdamStep& step);
void adam_direction_reference_(const FlatUpdate& update, const at::Tensor& direction, const at::Tensor& exp_avg,
                               const at::Tensor& exp_avg_sq, const AdamStep& step);

struct LionStep {
  double learning_rate = 1e-4;
  double beta1 = 0.9, beta2 = 0.99;
  double weight_decay = 0;  ///< decoupled
};

/// p *= 1 - lr decay;  p -= lr sign(m + (g - m)(1 - b1));  m += (g - m)(1 - b2)
///
/// See: Chen et al., arXiv:2302.06675, algorithm 2.
void lion_(const FlatUpdate& update, const at::Tensor& exp_avg, const LionStep& step);
void lion_reference_(const FlatUpdate& update, const at::Tensor& exp_avg, const LionStep& step);

/// x *= scale;  average += (x - average) mix;  x -= average
///
/// Shapes: both 1-D contiguous, of one length and dtype. Cost: one pass, 16 bytes an element of fp32.
void average_(const at::Tensor& x, double scale, const at::Tensor& average, double mix);
void average_reference_(const at::Tensor& x, double scale, const at::Tensor& average, double mix);

}  // namespace colossal::ops
