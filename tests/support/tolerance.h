// Comparison of tensors with a tolerance that is computed from the dtype and the length of the sums.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace colossal::test {

/// The error of a result that differs from the reference. Tests that switch collectives off require this type, because
/// any other exception would not prove a wrong result.
struct ParityError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Returns 4 * eps(dtype) * sqrt(terms) * max|want|, a bound of the rounding of a sum of `terms` products.
double tolerance(const at::Tensor& want, int64_t terms);

/// Returns the terms of tolerance() for a value of a deep network: `layers` layers one after another, whose longest sum
/// has `longest` terms. Rounding that passes on through a layer adds up as in one longer sum. A layer has at most 16
/// sums one after another (five products, attention, a router, two norms, and the sums over ranks), and each is there
/// forward, for both gradients, and in the update.
int64_t terms_of_layers(int64_t layers, int64_t longest);

/// Returns the largest change of an element of `result()` if each element of `factors` changes by a relative unit of
/// random sign: the largest of `draws` draws, divided by the unit. The factors are restored, bit for bit.
///
/// A product of rounded sums of K terms is the exact product of factors that are off by at most K * eps (backward
/// error: Higham, "Accuracy and Stability of Numerical Algorithms", chapter 3), and by about sqrt(K) * eps if rounding
/// is random. So 4 * eps * sqrt(K) * sensitivity() bounds the difference of two orders of the sums in a deep network,
/// where layers amplify what the layers before them rounded.
double sensitivity(const std::function<at::Tensor()>& result, const std::vector<at::Tensor>& factors, int draws = 3);

/// Throws a ParityError that names `what` if the shapes differ or an element is off by more than `limit`.
void expect_within(const at::Tensor& got, const at::Tensor& want, double limit, const std::string& what);

/// Calls expect_within() with the limit tolerance(want, terms).
void expect_close(const at::Tensor& got, const at::Tensor& want, int64_t terms, const std::string& what);

/// Throws a ParityError unless every element is bitwise equal.
void expect_equal(const at::Tensor& got, const at::Tensor& want, const std::string& what);

}  // namespace colossal::test
