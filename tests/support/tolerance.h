// Comparison of tensors with a tolerance that is computed from the dtype and the length of the sums.
#pragma once
#include <ATen/core/Tensor.h>

#include <stdexcept>
#include <string>

namespace colossal::test {

/// The error of a result that differs from the reference. Tests that switch collectives off require this type, because
/// any other exception would not prove a wrong result.
struct ParityError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Returns 4 * eps(dtype) * sqrt(terms) * max|want|, a bound of the rounding of a sum of `terms` products.
double tolerance(const at::Tensor& want, int64_t terms);

/// Throws a ParityError that names `what` if the shapes differ or an element is off by more than `limit`.
void expect_within(const at::Tensor& got, const at::Tensor& want, double limit, const std::string& what);

/// Calls expect_within() with the limit tolerance(want, terms).
void expect_close(const at::Tensor& got, const at::Tensor& want, int64_t terms, const std::string& what);

/// Throws a ParityError unless every element is bitwise equal.
void expect_equal(const at::Tensor& got, const at::Tensor& want, const std::string& what);

}  // namespace colossal::test
