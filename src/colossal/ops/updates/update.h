// Optimizer update rules over flat buffers, each in one pass over memory: SGD, Adam, AdamW, Lion. Some optimizers take
// several of these passes.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace colossal::ops {

/// Hyperparameters of one step of Adam or AdamW.
struct AdamStep {
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;  ///< decoupled: p *= 1 - learning_rate * weight_decay before the step (AdamW)
  double penalty = 0;       ///< L2 penalty of Adam: g += penalty * p
  int64_t step = 1;         ///< number of this step, counted from 1, for the bias correction
};

/// Buffers and options of one update step.
///
/// Shapes:  1-D contiguous, all of one length, states too. For ranges with different decay, slice the buffers.
/// Dtypes:  values are fp64, fp32 or bf16; states have the same dtype. Gradients have it too, or are bf16 or fp16 with
///          fp32 values.
/// Numbers: computed in fp64 for fp64, else in fp32, and rounded once.
struct FlatUpdate {
  at::Tensor values;
  at::Tensor gradients;  ///< read-only
  /// If defined, bf16 or fp16: receives the new values rounded (weights for mixed precision).
  at::Tensor copy;
  double gradient_scale = 1;  ///< factor of every gradient: clipping, loss scale, mean over tokens

  /// Stochastic rounding of bf16 values and their last state: up or down with probabilities that make the mean exact,
  /// so small steps are not lost. Element i draws word `first` + i of `seed` (ops/random.h). Absent = round to nearest.
  struct Chance {
    uint64_t seed, first;
  };
  std::optional<Chance> chance{};
};

/// The formulas below use g = gradient * gradient_scale. Errors of all rules: sizes, dtypes or strides that do not fit;
/// step < 1.
/// Cost: one pass, all threads. fp32 on a CPU moves 12 bytes per element and 8 for each state; accelerators with
///       kernels of ours (ops/device/tables.h) do the same. Other accelerators run the reference in slices of 2^22
///       elements, with about six fp32 tensors of a slice at a time. For adam_() they run LibTorch's fused step, unless
///       both decays are set, rounding is stochastic, or gradients of bf16 values must be scaled or converted.

/// Calls rule(part, its states): once with all elements on the CPU and on meta. On accelerators it calls it for slices
/// of 2^22 elements, because tensor operators allocate several tensors as large as their input. Undefined tensors stay
/// undefined in the parts.
void in_slices(const FlatUpdate& update, const std::vector<at::Tensor>& states,
               const std::function<void(const FlatUpdate&, const std::vector<at::Tensor>&)>& rule);

struct SgdStep {
  double learning_rate = 1e-3;
  double momentum = 0;      ///< must be 0, without nesterov, if the `momentum` tensor is undefined
  double weight_decay = 0;  ///< L2 penalty: g += decay * p
  bool nesterov = false;
  double intake = 1;  ///< factor of what is added to the momentum; LARS puts its learning rate here
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

/// Computes LAMB's direction = m / (1 - b1^step) / (sqrt(v) / sqrt(1 - b2^step) + epsilon) + weight_decay p. The
/// moments m and v are updated as by adam_(). The values do not change, so `copy` and `chance` must not be set;
/// learning_rate is ignored.
///
/// Shapes, dtypes: `direction` is like the values; it may be the gradients.
/// Cost: one pass; 28 bytes per element of fp32 if `direction` is the gradients.
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
/// Shapes: both 1-D contiguous, of one length and dtype. Cost: one pass, 16 bytes per element of fp32.
void average_(const at::Tensor& x, double scale, const at::Tensor& average, double mix);
void average_reference_(const at::Tensor& x, double scale, const at::Tensor& average, double mix);

}  // namespace colossal::ops
