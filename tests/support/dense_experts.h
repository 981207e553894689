// A mixture of experts in plain loops over tokens and experts: the reference of the layer (nn/experts.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "colossal/nn/experts.h"

namespace colossal::test {

/// Weights of a mixture, in the shapes of nn/experts.h. Undefined biases are left out.
struct ExpertWeights {
  at::Tensor router, up, up_bias, down, down_bias, balance_bias;
};

struct DenseExperts {
  at::Tensor y;                         ///< [T, hidden]
  at::Tensor balance, z;                ///< scalars
  std::vector<int64_t> load, computed;  ///< assignments of each expert before and after dropping
};

/// Computes the mixture of `x` [T, hidden] with autograd. `capacity`: whether options.capacity applies, as in training.
/// `experts`: if given, the chosen experts of each token ([T, used], ascending) in place of the router's choice.
DenseExperts dense_experts(const at::Tensor& x, const ExpertWeights& weights, const nn::ExpertOptions& options,
                           bool capacity, const at::Tensor& experts = {});

}  // namespace colossal::test
