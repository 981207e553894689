#include "colossal/run/objectives/folding/losses.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "colossal/models/folding/structure_module.h"
#include "colossal/ops/geometry/residues.h"
#include "colossal/run/objectives/alignment/preference_losses.h"

// Steps are also recorded on meta, where clamp() has no gradient, and where() and logical operators do not run. Counts
// have the small terms of AlphaFold, so that a loss of nothing is 0.

namespace colossal::run {
namespace {

constexpr double kLddtRadius = 15, kLddtLimits[] = {.5, 1, 2, 4};

/// Returns |x|; abs() does not run on meta.
at::Tensor magnitude(const at::Tensor& x) { return x * x.sign(); }

/// Returns x [B, ...] summed over all but the chains.
at::Tensor sum_of_chains(const at::Tensor& x) { return x.flatten(1).sum(-1); }

/// Returns the mask of pairs [B, N, N].
at::Tensor pairs_of_mask(const at::Tensor& mask) { return mask.unsqueeze(-1) * mask.unsqueeze(-2); }

/// Returns -log softmax(logits) [..., bins] at the labels [...].
at::Tensor label_losses(const at::Tensor& logits, const at::Tensor& labels) {
  return -logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1);
}

/// Returns rows [first, first + R) of x [B, N, ...], those of the logits.
at::Tensor rows_of(const at::Tensor& x, const at::Tensor& logits, int64_t first) {
  return x.narrow(1, first, logits.size(1));
}

/// Returns half of the values of rows from `first` on, over half of the count of all rows, to which `tiny` is added.
at::Tensor mean_of_halves(const at::Tensor& values, const at::Tensor& counted, double tiny, int64_t first) {
  return .5 * sum_of_chains(values * rows_of(counted, values, first)) / (.5 * sum_of_chains(counted) + tiny);
}

}  // namespace

Lddt lddt_of(const at::Tensor& points, const at::Tensor& true_points, const at::Tensor& mask) {
  const at::NoGradGuard no_grad;
  const at::Tensor truth = ops::squared_distances(true_points, true_points).sqrt();
  const at::Tensor difference = magnitude(ops::squared_distances(points, points).sqrt() - truth);
  const at::Tensor others = 1 - at::eye(mask.size(-1), mask.options());
  const at::Tensor counted = (truth < kLddtRadius).to(mask.scalar_type()) * pairs_of_mask(mask) * others;
  at::Tensor share = at::zeros_like(difference);
  for (const double limit : kLddtLimits) share += .25 * (difference < limit).to(share.scalar_type());
  const at::Tensor kept = (share * counted).sum(-1), of = counted.sum(-1);
  const at::Tensor kept_of_chain = kept.sum(-1), of_chain = of.sum(-1);
  const auto ratio = [](const at::Tensor& part, const at::Tensor& whole) {
    const at::Tensor alone = (whole == 0).to(whole.scalar_type());
    return (part + alone) / (whole + alone);
  };
  return {ratio(kept, of), ratio(kept_of_chain, of_chain)};
}

at::Tensor well_resolved(const at::Tensor& resolution) {
  return (resolution >= .1).to(resolution.scalar_type()) * (resolution <= 3.).to(resolution.scalar_type());
}

at::Tensor distogram_losses(const at::Tensor& logits, const at::Tensor& true_points, const at::Tensor& mask,
                            int64_t first) {
  const at::Tensor pairs = pairs_of_mask(mask);
  const at::Tensor bins = ops::distance_bins(true_points, ops::kDistogramLimits);
  const at::Tensor losses = label_losses(logits, rows_of(bins, logits, first));
  return sum_of_chains(losses * rows_of(pairs, logits, first)) / (sum_of_chains(pairs) + 1e-6);
}

at::Tensor masked_msa_losses(const at::Tensor& logits, const at::Tensor& letters, const at::Tensor& chosen,
                             int64_t first) {
  return mean_of_halves(label_losses(logits, rows_of(letters, logits, first)), chosen, 1e-8, first);
}

at::Tensor plddt_losses(const at::Tensor& logits, const at::Tensor& lddt, const at::Tensor& mask) {
  const int64_t bins = logits.size(-1);
  const at::Tensor bin = (lddt.detach() * bins).floor().clamp_max(bins - 1).to(at::kLong);
  return sum_of_chains(label_losses(logits, bin) * mask) / (sum_of_chains(mask) + 1e-10);
}

at::Tensor pae_losses(const at::Tensor& logits, const ops::Rigid& frames, const ops::Rigid& true_frames,
                      const at::Tensor& mask, int64_t first) {
  at::Tensor bins;
  {
    const at::NoGradGuard no_grad;
    const auto seen = [](const ops::Rigid& f) { return f.unsqueeze(-1).apply_inverse(f.translation.unsqueeze(-3)); };
    bins = ops::bins_of_squares(ops::squared_norm(seen(frames) - seen(true_frames)), ops::kErrorLimits);
  }
  return mean_of_halves(label_losses(logits, rows_of(bins, logits, first)), pairs_of_mask(mask), 1e-8, first);
}

at::Tensor resolved_losses(const at::Tensor& logits, const at::Tensor& resolved, const at::Tensor& exists) {
  const at::Tensor losses = stable_softplus(logits) - logits * resolved;
  return sum_of_chains(losses * exists) / (sum_of_chains(exists) + 1e-8);
}

at::Tensor chi_losses(const at::Tensor& raw, const TrueChis& truth, const at::Tensor& mask, const at::Tensor& types,
                      const ops::ResidueTables& tables) {
  const at::Tensor chis = models::unit_angles(raw).narrow(-2, ops::kTorsions - ops::kChis, ops::kChis);
  const at::Tensor turned = truth.sin_cos * (1 - 2 * ops::residue_rows(tables.chi_period, types)).unsqueeze(-1);
  const at::Tensor error = ops::squared_norm(chis - truth.sin_cos), other = ops::squared_norm(chis - turned);
  const at::Tensor other_is_less = (other < error).to(error.scalar_type());
  const at::Tensor least = error * (1 - other_is_less) + other * other_is_less;
  const at::Tensor of_chis = sum_of_chains(least * truth.mask) / (sum_of_chains(truth.mask) + 1e-4);
  const at::Tensor lengths = (ops::squared_norm(raw) + 1e-6).sqrt();
  const at::Tensor residues = mask.unsqueeze(-1).expand_as(lengths);
  const at::Tensor of_lengths = sum_of_chains(magnitude(lengths - 1) * residues) / (sum_of_chains(residues) + 1e-4);
  return .5 * of_chis + .01 * of_lengths;
}

}  // namespace colossal::run
