#include "support/tolerance.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "colossal/base/error.h"

namespace colossal::test {

double tolerance(const at::Tensor& want, int64_t terms) {
  double eps = std::numeric_limits<float>::epsilon();
  if (want.scalar_type() == at::kDouble) eps = std::numeric_limits<double>::epsilon();
  if (want.scalar_type() == at::kBFloat16) eps = 0x1p-7;
  const double scale = want.numel() ? want.abs().max().to(at::kDouble).item<double>() : 0;
  return 4 * eps * std::sqrt(static_cast<double>(terms)) * scale;
}

void expect_within(const at::Tensor& got, const at::Tensor& want, double limit, const std::string& what) {
  if (got.sizes() != want.sizes()) throw ParityError(concat(what, ": shape ", got.sizes(), ", want ", want.sizes()));
  if (want.numel() == 0) return;
  const double error = (got.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>();
  if (!(error <= limit)) throw ParityError(concat(what, ": off by ", error, ", tolerance ", limit));
}

void expect_close(const at::Tensor& got, const at::Tensor& want, int64_t terms, const std::string& what) {
  expect_within(got, want, tolerance(want, terms), what);
}

void expect_equal(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  if (got.sizes() != want.sizes() || !at::equal(got, want)) throw ParityError(what + ": not bitwise equal");
}

}  // namespace colossal::test
