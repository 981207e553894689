// Comparing an operator with its reference: values and all gradients, computed in fp64 and held against a tolerance derived from
// the dtype, the length of the longest sum and the size of the numbers.
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

inline double epsilon_of(at::ScalarType type) {
  return type == at::kDouble ? 0x1p-52 : type == at::kFloat ? 0x1p-23 : 0x1p-8;
}

/// 4 eps sqrt(K) max|expected|, K the length of the longest sum.
inline double tolerance(const at::Tensor& expected, at::ScalarType type, int64_t longest_sum) {
  const double largest = expected.numel() == 0 ? 0 : expected.abs().max().to(at::kDouble).item<double>();
  return 4 * epsilon_of(type) * std::sqrt(static_cast<double>(longest_sum)) * std::max(largest, 1e-30);
}

inline void expect_close(const at::Tensor& actual, const at::Tensor& expected, at::ScalarType type, int64_t longest_sum,
                         const std::string& what) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what;
  if (!actual.defined()) return;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (actual.numel() == 0) return;
  const double error = (actual.detach().to(at::kDouble) - expected.detach().to(at::kDouble)).abs().max().item<double>();
  EXPECT_LE(error, tolerance(expected.detach(), type, longest_sum)) << what;  // a NaN fails too
}

/// fp64 normal values that `type` can represent exactly.
inline at::Tensor normal(at::IntArrayRef shape, uint64_t seed, at::ScalarType type = at::kDouble) {
  const auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kDouble).to(type).to(at::kDouble);
}

/// Outputs of the operator, then the gradients of all inputs for fixed output gradients. Inputs are copied to `type`.
inline Tensors values_and_gradients(const Operator& run, const Tensors& inputs, at::ScalarType type) {
  Tensors leaves;
  for (const auto& input : inputs)
    leaves.push_back(input.defined() ? input.detach().to(type, false, true).requires_grad_(true) : input);
  auto outputs = run(leaves);
  Tensors seeds;
  for (size_t i = 0; i < outputs.size(); ++i)
    seeds.push_back(normal(outputs[i].sizes(), 1000 + i, type).to(outputs[i].scalar_type()));
  torch::autograd::backward(outputs, seeds);
  for (const auto& leaf : leaves) outputs.push_back(leaf.defined() ? leaf.grad() : leaf);
  return outputs;
}

/// The operator in `type` agrees with the reference in fp64, with every instruction set that this machine can run.
inline void expect_equal_operators(const Operator& actual, const Operator& reference, const Tensors& inputs,
                                   at::ScalarType type, int64_t longest_sum) {
  Tensors exact;
  for (const auto& input : inputs) exact.push_back(input.defined() ? input.to(type).to(at::kDouble) : input);
  const auto expected = values_and_gradients(reference, exact, at::kDouble);
  for (const auto set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    const auto got = values_and_gradients(actual, exact, type);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i)
      expect_close(got[i], expected[i], type, longest_sum,
                   std::string(name(set)) + ", " + at::toString(type) + ", value or gradient " + std::to_string(i));
  }
}

inline const std::vector<at::ScalarType>& float_types() {
  static const std::vector<at::ScalarType> types{at::kDouble, at::kFloat, at::kBFloat16};
  return types;
}

}  // namespace colossal::ops
