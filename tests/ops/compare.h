// Comparison of an operator with its reference: values and all gradients. The reference is computed in fp64. The
// tolerance is derived from the dtype, the length of the longest sum and the size of the values.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <vector>

#include "colossal/ops/cpu.h"

namespace colossal::ops {

using Tensors = std::vector<at::Tensor>;
using Operator = std::function<Tensors(const Tensors&)>;

/// Returns the distance from 1 to the next number of the dtype in which sums of `type` are computed, at least fp32.
inline double epsilon_of(at::ScalarType type) { return type == at::kDouble ? 0x1p-52 : 0x1p-23; }

/// Returns the largest relative error of rounding to a narrow dtype; 0 for dtypes in which sums are computed.
inline double roundoff_of(at::ScalarType type) {
  return type == at::kBFloat16 ? 0x1p-8 : type == at::kHalf ? 0x1p-11 : 0;
}

/// Returns the tolerance of each element: 4 eps sqrt(K) max|expected|, with K the length of the longest sum and eps of
/// the dtype in which it is computed. For narrow dtypes one rounding of the result is added. Inputs are exact in the
/// dtype, so they add nothing. `intermediates` is the number of roundings of intermediate results to the narrow dtype,
/// each counted as often as it may be amplified.
inline at::Tensor tolerance(const at::Tensor& expected, at::ScalarType type, int64_t longest_sum,
                            double intermediates = 0) {
  const at::Tensor size = expected.abs().to(at::kDouble);
  const double largest = expected.numel() == 0 ? 0 : std::max(size.max().item<double>(), 1e-30);
  const double of_sums = 4 * epsilon_of(type) * std::sqrt(static_cast<double>(longest_sum));
  const double smallest = type == at::kHalf ? 0x1p-25 : 0;  // half the smallest step of fp16
  return size * roundoff_of(type) + (of_sums + intermediates * roundoff_of(type)) * largest + smallest;
}

inline void expect_close(const at::Tensor& actual, const at::Tensor& expected, at::ScalarType type, int64_t longest_sum,
                         const std::string& what, double intermediates = 0) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what;
  if (!actual.defined()) return;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (actual.numel() == 0) return;
  const at::Tensor error = (actual.detach().to(at::kDouble) - expected.detach().to(at::kDouble)).abs();
  const at::Tensor limit = tolerance(expected.detach(), type, longest_sum, intermediates);
  // le() is false for NaN, so NaN fails too.
  EXPECT_TRUE(error.le(limit).all().item<bool>())
      << what << ": off by " << (error / limit).max().item<double>() << " times what is allowed";
}

/// Returns fp64 normal values that `type` represents exactly.
inline at::Tensor normal(at::IntArrayRef shape, uint64_t seed, at::ScalarType type = at::kDouble) {
  const auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kDouble).to(type).to(at::kDouble);
}

/// Returns the outputs of the operator, followed by the gradients of all inputs for fixed output gradients. `held`
/// represents these output gradients exactly. Inputs are copied to `type`.
inline Tensors values_and_gradients(const Operator& run, const Tensors& inputs, at::ScalarType type,
                                    at::ScalarType held = at::kDouble) {
  Tensors leaves;
  for (const auto& input : inputs)
    leaves.push_back(input.defined() ? input.detach().to(type, false, true).requires_grad_(true) : input);
  auto outputs = run(leaves);
  Tensors seeds;
  for (size_t i = 0; i < outputs.size(); ++i)
    seeds.push_back(normal(outputs[i].sizes(), 1000 + i, held).to(outputs[i].scalar_type()));
  torch::autograd::backward(outputs, seeds);
  for (const auto& leaf : leaves) outputs.push_back(leaf.defined() ? leaf.grad() : leaf);
  return outputs;
}

/// Expects the operator in `type` to agree with the reference in fp64, with every instruction set that this machine can
/// run.
inline void expect_equal_operators(const Operator& actual, const Operator& reference, const Tensors& inputs,
                                   at::ScalarType type, int64_t longest_sum, double intermediates = 0) {
  Tensors exact;
  for (const auto& input : inputs) exact.push_back(input.defined() ? input.to(type).to(at::kDouble) : input);
  const auto expected = values_and_gradients(reference, exact, at::kDouble, type);
  for (const auto set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    const auto got = values_and_gradients(actual, exact, type, type);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i)
      expect_close(got[i], expected[i], type, longest_sum,
                   std::string(name(set)) + ", " + at::toString(type) + ", value or gradient " + std::to_string(i),
                   intermediates);
  }
}

inline const std::vector<at::ScalarType>& float_types() {
  static const std::vector<at::ScalarType> types{at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};
  return types;
}

}  // namespace colossal::ops
