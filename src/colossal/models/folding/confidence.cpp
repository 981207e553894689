#include "colossal/models/folding/confidence.h"

#include <ATen/ATen.h>

#include "colossal/ops/dispatch.h"

namespace colossal::models {
namespace {

constexpr double kLargestError = 31.75;

/// Returns the probabilities of bins, and the values of the middles of bins of `width`.
struct Bins {
  Bins(const at::Tensor& logits, double width)
      : probabilities(logits.to(ops::wide_type(logits)).softmax(-1)),
        middles((at::arange(logits.size(-1), probabilities.options()) + .5) * width) {}
  /// Returns the expected value of `values` [bins].
  at::Tensor mean_of(const at::Tensor& values) const {
    return at::matmul(probabilities, values.unsqueeze(-1)).squeeze(-1);
  }
  at::Tensor probabilities, middles;
};

/// Returns the width of the bins of errors: the middle of the last one is kLargestError.
double error_width(const at::Tensor& logits) { return kLargestError / (static_cast<double>(logits.size(-1)) - .5); }

}  // namespace

at::Tensor plddt(const at::Tensor& logits) {
  const Bins bins(logits, 100 / static_cast<double>(logits.size(-1)));
  return bins.mean_of(bins.middles);
}

at::Tensor expected_errors(const at::Tensor& logits) {
  const Bins bins(logits, error_width(logits));
  return bins.mean_of(bins.middles);
}

at::Tensor tm_terms(const at::Tensor& logits, const at::Tensor& mask) {
  const Bins bins(logits, error_width(logits));
  const at::Tensor residues = mask.to(bins.middles.scalar_type()).sum(-1, /*keepdim=*/true).clamp_min(19);
  const at::Tensor d0 = 1.24 * (residues - 15).pow(1. / 3) - 1.8;                       // [B, 1]
  const at::Tensor score = 1 / (1 + (bins.middles / d0).square());                      // [B, bins]
  return at::matmul(bins.probabilities, score.unsqueeze(1).unsqueeze(-1)).squeeze(-1);  // [B, rows, N]
}

at::Tensor predicted_tm(const at::Tensor& terms, const at::Tensor& weights) {
  const at::Tensor w = weights.to(terms.scalar_type());
  return ((terms * w).sum(-1) / (w.sum(-1) + 1e-8)).amax(-1);
}

}  // namespace colossal::models
