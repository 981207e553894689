#include "colossal/run/objectives/folding/fape.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <vector>

#include "colossal/ops/dispatch.h"
#include "colossal/tensor/flops.h"

// Steps are also recorded on meta, where clamp() has no gradient, and where() and logical operators do not run.

namespace colossal::run {
namespace {

constexpr double kFapeTiny = 1e-4;
constexpr int64_t kFirstRenamed = 6, kRenamedSlots = 4;
constexpr int64_t kFeatures = 7;  // of a product: predicted point, true point, 1

/// Returns rows [B, 3, F, 7] whose products with (x, x*, 1) are R^T (x - t) - R*^T (x* - t*), coordinate by coordinate.
at::Tensor rows_of_frames(const ComparedFrames& frames) {
  const ops::Rigid &a = frames.predicted, &b = frames.truth;
  const at::Tensor shift =
      ops::rotated_back(b.rotation, b.translation) - ops::rotated_back(a.rotation, a.translation);  // [B, F, 3]
  const at::Tensor rows = at::cat({a.rotation, -b.rotation, shift.unsqueeze(-2)}, -2);              // [B, F, 7, 3]
  return rows.permute({0, 3, 1, 2});
}

/// Returns the squares of differences [B, F, P].
at::Tensor squared_differences(const ComparedFrames& frames, const ComparedPoints& points) {
  const at::Tensor rows = rows_of_frames(frames);
  const at::Tensor ones = at::ones_like(points.predicted.narrow(-1, 0, 1));
  const at::Tensor columns = at::cat({points.predicted, points.truth, ones}, -1).transpose(-1, -2);  // [B, 7, P]
  const int64_t count = rows.size(0) * rows.size(1) * rows.size(2);
  tensor::announce_product(count, columns.size(2), kFeatures, columns.scalar_type());
  const at::Tensor difference = at::matmul(rows.flatten(1, 2), columns);
  const double operations = 2. * static_cast<double>(difference.numel()) * kFeatures;
  tensor::announce_flops_in_backward(difference, 2 * operations);
  return difference.unflatten(1, at::IntArrayRef{3, -1}).square().sum(1);
}

/// Returns flagged elements of `other`, the others of x. Exact for finite numbers.
at::Tensor flagged(const at::Tensor& x, const at::Tensor& other, const at::Tensor& flags) {
  return x * (1 - flags) + other * flags;
}

/// Returns for residues [first, first + count) the sum of |d - d'| over pairs of an atom that has two names and one
/// that has not, where d' are distances of the prediction.
at::Tensor misfit(const at::Tensor& true14, const SideChains& truth, const at::Tensor& predicted14,
                  const at::Tensor& has_two, int64_t first, int64_t count) {
  const auto rows = [&](const at::Tensor& x) {
    return x.narrow(1, first, count).narrow(2, kFirstRenamed, kRenamedSlots);
  };
  const auto distances = [&](const at::Tensor& from, const at::Tensor& to) {
    return ops::squared_distances(rows(from).flatten(1, 2), to.flatten(1, 2)).sqrt();
  };
  // The other atoms have one name, so their places are those of the truth as it is named.
  const at::Tensor difference = (distances(predicted14, predicted14) - distances(true14, truth.atoms14)).abs();
  const at::Tensor from = rows(truth.mask14 * has_two).flatten(1), to = (truth.mask14 * (1 - has_two)).flatten(1);
  const at::Tensor sums = at::matmul(difference, to.unsqueeze(-1)).squeeze(-1) * from;
  return sums.unflatten(1, at::IntArrayRef{count, kRenamedSlots}).sum(-1);
}

}  // namespace

at::Tensor fape_losses(const ComparedFrames& frames, const ComparedPoints& points, const FapeOptions& options) {
  at::Tensor error = (squared_differences(frames, points) + kFapeTiny).sqrt();
  if (options.clamp > 0) error = error.masked_fill(error > options.clamp, options.clamp);
  const at::Tensor of_frames = at::matmul(error, points.mask.unsqueeze(-1)).squeeze(-1) * frames.mask;
  const at::Tensor counts = (frames.mask.sum(-1) + kFapeTiny) * (points.mask.sum(-1) + kFapeTiny);
  return of_frames.sum(-1) / counts / options.scale;
}

SideChains side_chains_of(const at::Tensor& atoms37, const at::Tensor& mask37, const at::Tensor& types,
                          const ops::ResidueTables& tables) {
  const at::Tensor mask =
      ops::picked(mask37, ops::residue_rows(tables.names14, types), 0) * ops::residue_rows(tables.mask14, types);
  return {ops::frames_of_atoms(atoms37, mask37, types, tables), ops::atoms14_of_names(atoms37, types, tables), mask};
}

at::Tensor other_naming_is_better(const at::Tensor& predicted14, const SideChains& truth, const at::Tensor& types,
                                  const ops::ResidueTables& tables) {
  const at::NoGradGuard no_grad;
  const int64_t residues = types.size(1);
  if (predicted14.is_meta()) return at::empty(types.sizes(), predicted14.options());
  const at::Tensor slots = ops::residue_rows(tables.renamed14, types);
  const at::Tensor own = at::arange(ops::kAtomSlots, slots.options());
  const at::Tensor has_two = slots.ne(own).to(predicted14.scalar_type()),
                   other14 = ops::picked(truth.atoms14, slots, 1);
  const int64_t of_row = types.size(0) * kRenamedSlots * residues * ops::kAtomSlots;
  const int64_t at_once = std::clamp<int64_t>(ops::kSliceElements / std::max<int64_t>(of_row, 1), 1, residues);
  std::vector<at::Tensor> better;
  for (int64_t first = 0; first < residues; first += at_once) {
    const int64_t count = std::min(at_once, residues - first);
    const at::Tensor as_named = misfit(truth.atoms14, truth, predicted14, has_two, first, count);
    better.push_back(misfit(other14, truth, predicted14, has_two, first, count) < as_named);
  }
  return at::cat(better, 1).to(predicted14.scalar_type());
}

SideChains better_named(const SideChains& truth, const at::Tensor& predicted14, const at::Tensor& types,
                        const ops::ResidueTables& tables) {
  const at::Tensor flags = other_naming_is_better(predicted14, truth, types, tables),
                   slots = ops::residue_rows(tables.renamed14, types);
  const at::Tensor of_atoms = flags.unsqueeze(-1), of_points = of_atoms.unsqueeze(-1),
                   of_axes = of_points.unsqueeze(-1);
  const at::Tensor &now = truth.groups.frames.rotation, &then = truth.groups.other.rotation;
  const at::Tensor& origins = truth.groups.frames.translation;
  return {.groups = {{flagged(now, then, of_axes), origins}, {flagged(then, now, of_axes), origins}, truth.groups.mask},
          .atoms14 = flagged(truth.atoms14, ops::picked(truth.atoms14, slots, 1), of_points),
          .mask14 = flagged(truth.mask14, ops::picked(truth.mask14, slots, 0), of_atoms)};
}

at::Tensor side_chain_fape_losses(const ops::Rigid& groups, const at::Tensor& predicted14, const SideChains& truth,
                                  const FapeOptions& options) {
  return fape_losses({groups.flatten(1), truth.groups.frames.flatten(1), truth.groups.mask.flatten(1)},
                     {predicted14.flatten(1, 2), truth.atoms14.flatten(1, 2), truth.mask14.flatten(1)}, options);
}

}  // namespace colossal::run
