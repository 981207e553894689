// Normalizations over the features of each token or head.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/nn/parameter.h"

namespace colossal::nn {

/// A normalization over the features of each token or head.
class Norm {
 public:
  virtual ~Norm() = default;
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};

/// Options of a LayerNorm or RMSNorm.
struct NormOptions {
  double epsilon = 1e-5;
  /// True: a feature is multiplied by 1 + w, where w starts at 0 (Gemma). False: by w, which starts at 1
  bool unit_offset = false;
  bool bias = true;  ///< whether a LayerNorm has a bias, which starts at 0
  /// False: a LayerNorm or RMSNorm of hidden states only normalizes, without weight and bias
  bool affine = true;

  double offset() const { return unit_offset ? 1 : 0; }
  Init init() const { return unit_offset ? Init::zeros() : Init::ones(); }
};

/// A GroupNorm of hidden states or of tensors inside a pair, whose tokens are the pixels of pictures.
class GroupNorm {
 public:
  virtual ~GroupNorm() = default;
  virtual at::Tensor forward(const at::Tensor& x /*[B, pixels, features]*/) = 0;
};

}  // namespace colossal::nn
