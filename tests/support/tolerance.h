// Comparison of tensors with a tolerance that follows from the dtype and the length of the sums, never typed by hand.
#pragma once
#include <ATen/core/Tensor.h>

#include <stdexcept>
#include <string>

namespace colossal::test {

/// A sharded result that differs from the reference. Tests that switch collectives off require this type, not just any
/// exception.
struct ParityError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// 4 * eps(dtype) * sqrt(terms) * max|want|: rounding of a sum of `terms` products.
double tolerance(const at::Tensor& want, int64_t terms);

/// Throws ParityError naming `what` when shapes differ or an element is off by more than `limit`.
void expect_within(const at::Tensor& got, const at::Tensor& want, double limit, const std::string& what);

/// The same with limit tolerance(want, terms).
void expect_close(const at::Tensor& got, const at::Tensor& want, int64_t terms, const std::string& what);

/// Throws ParityError unless every element is bitwise equal.
void expect_equal(const at::Tensor& got, const at::Tensor& want, const std::string& what);

}  // namespace colossal::test
