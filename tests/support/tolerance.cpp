#include "support/tolerance.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
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

int64_t terms_of_layers(int64_t layers, int64_t longest) {
  constexpr int64_t kSums = 16, kPasses = 4;
  return kSums * kPasses * layers * longest;
}

double sensitivity(const std::function<at::Tensor()>& result, const std::vector<at::Tensor>& factors, int draws) {
  constexpr double kUnit = 0x1p-28;  // far above the rounding of doubles, and so small that the change is linear
  const at::NoGradGuard no_grad;
  const at::Tensor before = result().clone();
  std::vector<at::Tensor> kept;
  for (const at::Tensor& factor : factors) kept.push_back(factor.clone());
  at::Generator generator = at::detail::createCPUGenerator(7);
  double largest = 0;
  for (int draw = 0; draw < draws; ++draw) {
    for (size_t i = 0; i < factors.size(); ++i)
      factors[i].copy_(kept[i] * (1 + kUnit * (2 * at::randint(2, kept[i].sizes(), generator, kept[i].options()) - 1)));
    largest = std::max(largest, (result() - before).abs().max().item<double>() / kUnit);
  }
  for (size_t i = 0; i < factors.size(); ++i) factors[i].copy_(kept[i]);
  return largest;
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
