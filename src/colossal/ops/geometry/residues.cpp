#include "colossal/ops/geometry/residues.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <vector>

#include "colossal/tensor/whole_operator.h"

// Steps are also recorded on meta, where where() and logical operators do not run: masks are factors.

namespace colossal::ops {
namespace {

enum AtomName : int64_t { kN = 0, kCa = 1, kC = 2, kCb = 3, kO = 4 };

/// Returns x of the residue before, and zeros for the first one; `rest` dimensions follow the residues.
at::Tensor of_residue_before(const at::Tensor& x, int64_t rest) {
  const int64_t dim = -1 - rest;
  return at::cat({at::zeros_like(x.narrow(dim, 0, 1)), x.narrow(dim, 0, x.size(dim) - 1)}, dim);
}

/// Returns 1 where all of the named atoms are there: names [.., N, groups, atoms] -> [.., N, groups].
at::Tensor all_there(const at::Tensor& mask37, const at::Tensor& names) {
  return picked(mask37, names.flatten(-2), 0).unflatten(-1, names.sizes().slice(names.dim() - 2)).prod(-1);
}

/// Returns the places of named atoms: names [.., N, groups, atoms] -> [.., N, groups, atoms, 3].
at::Tensor named_places(const at::Tensor& atoms37, const at::Tensor& names) {
  return picked(atoms37, names.flatten(-2), 1).unflatten(-2, names.sizes().slice(names.dim() - 2));
}

/// Returns -1 where a flag is 1, for an angle or axis that is turned by pi, else 1.
at::Tensor sign_of(const at::Tensor& flags) { return 1 - 2 * flags; }

/// Returns the frames R | t of a table of rows [.., 3, 4].
Rigid rigid_of_rows(const at::Tensor& rows) { return {rows.narrow(-1, 0, 3), rows.select(-1, 3)}; }

/// Returns frames whose second and third axis have turned about the first.
Rigid turned_about_first(const Rigid& frames, const at::Tensor& sin_cos) {
  const at::Tensor sine = sin_cos.select(-1, 0).unsqueeze(-1), cosine = sin_cos.select(-1, 1).unsqueeze(-1);
  const std::vector<at::Tensor> axes = frames.rotation.unbind(-1);
  return {at::stack({axes[0], axes[1] * cosine + axes[2] * sine, axes[2] * cosine - axes[1] * sine}, -1),
          frames.translation};
}

}  // namespace

Torsions torsions_of(const at::Tensor& atoms37, const at::Tensor& mask37, const at::Tensor& types,
                     const ResidueTables& tables, double epsilon) {
  const std::vector<at::Tensor> here = atoms37.narrow(-2, 0, kO + 1).unbind(-2);
  const std::vector<at::Tensor> before = of_residue_before(atoms37.narrow(-2, 0, kO + 1), 2).unbind(-2);
  const at::Tensor backbone = at::stack({at::stack({before[kCa], before[kC], here[kN], here[kCa]}, -2),
                                         at::stack({before[kC], here[kN], here[kCa], here[kC]}, -2),
                                         at::stack({here[kN], here[kCa], here[kC], here[kO]}, -2)},
                                        -3);
  const at::Tensor chi_atoms = residue_rows(tables.chi_atoms, types);
  const std::vector<at::Tensor> four = at::cat({backbone, named_places(atoms37, chi_atoms)}, -3).unbind(-2);
  // The torsion is the angle of the fourth atom about the bond of the second and third, from the first atom.
  const at::Tensor last =
      rigid_from_axes(four[2], four[2] - four[1], four[0] - four[2], epsilon).apply_inverse(four[3]);
  const at::Tensor turn = at::stack({last.select(-1, 2), last.select(-1, 1)}, -1);
  const at::Tensor unit = turn / (squared_norm(turn) + epsilon).sqrt().unsqueeze(-1);

  const at::Tensor period = residue_rows(tables.chi_period, types);
  const at::Tensor unturned = at::zeros_like(period.narrow(-1, 0, kTorsions - kChis));
  const at::Tensor sin_cos = at::cat({unit.narrow(-2, 0, 2), -unit.narrow(-2, 2, 1), unit.narrow(-2, 3, kChis)}, -2);

  const std::vector<at::Tensor> m = mask37.narrow(-1, 0, kO + 1).unbind(-1);
  const std::vector<at::Tensor> mb = of_residue_before(mask37.narrow(-1, 0, kO + 1), 1).unbind(-1);
  const at::Tensor own = m[kN] * m[kCa];
  const at::Tensor of_backbone = at::stack({mb[kCa] * mb[kC] * own, mb[kC] * own * m[kC], own * m[kC] * m[kO]}, -1);
  const at::Tensor of_chis = all_there(mask37, chi_atoms) * residue_rows(tables.chi_mask, types);
  return {sin_cos, sin_cos * sign_of(at::cat({unturned, period}, -1)).unsqueeze(-1),
          at::cat({of_backbone, of_chis}, -1)};
}

Rigid group_frames(const Rigid& backbones, const at::Tensor& sin_cos, const at::Tensor& types,
                   const ResidueTables& tables) {
  const at::Tensor unturned = at::stack(
      {at::zeros_like(sin_cos.select(-1, 0).narrow(-1, 0, 1)), at::ones_like(sin_cos.select(-1, 1).narrow(-1, 0, 1))},
      -1);
  const Rigid local =
      turned_about_first(rigid_of_rows(residue_rows(tables.group_frames, types)), at::cat({unturned, sin_cos}, -2));
  constexpr int64_t kChi2 = kRigidGroups - kChis + 1;
  std::vector<Rigid> groups{local.narrow(-1, 0, kChi2)};
  for (int64_t chi = kChi2; chi < kRigidGroups; ++chi) {
    const Rigid& parent = groups.back();
    groups.push_back(parent.narrow(-1, parent.translation.size(-2) - 1, 1).compose(local.narrow(-1, chi, 1)));
  }
  return backbones.unsqueeze(-1).compose(joined(groups, -1));
}

at::Tensor atoms14(const Rigid& groups, const at::Tensor& types, const ResidueTables& tables) {
  const at::Tensor group = residue_rows(tables.group14, types);
  const Rigid frames{picked(groups.rotation, group, 2), picked(groups.translation, group, 1)};
  return frames.apply(residue_rows(tables.positions14, types)) * residue_rows(tables.mask14, types).unsqueeze(-1);
}

at::Tensor atoms37(const at::Tensor& atoms14, const at::Tensor& types, const ResidueTables& tables) {
  return picked(atoms14, residue_rows(tables.slots37, types), 1) * residue_rows(tables.mask37, types).unsqueeze(-1);
}

at::Tensor atoms14_of_names(const at::Tensor& atoms37, const at::Tensor& types, const ResidueTables& tables) {
  return picked(atoms37, residue_rows(tables.names14, types), 1) * residue_rows(tables.mask14, types).unsqueeze(-1);
}

GroupFrames frames_of_atoms(const at::Tensor& atoms37, const at::Tensor& mask37, const at::Tensor& types,
                            const ResidueTables& tables) {
  const std::vector<at::Tensor> atom = atoms37.narrow(-2, 0, kO + 1).unbind(-2);
  const std::vector<at::Tensor> there = mask37.narrow(-1, 0, kO + 1).unbind(-1);
  const at::Tensor chi_atoms = residue_rows(tables.chi_atoms, types).narrow(-1, 1, 3);
  const std::vector<at::Tensor> three =
      at::cat({at::stack({atom[kCa], atom[kC], atom[kO]}, -2).unsqueeze(-3), named_places(atoms37, chi_atoms)}, -3)
          .unbind(-2);
  const Rigid turning = rigid_from_axes(three[1], three[1] - three[0], three[2] - three[1]);  // psi, chi1 to chi4
  const Rigid backbone = rigid_from_points(atom[kCa], atom[kC], atom[kN]).unsqueeze(-1);
  const Rigid two = turning.narrow(-1, 0, 2), absent{at::zeros_like(two.rotation), at::zeros_like(two.translation)};

  const at::Tensor of_backbone = there[kN] * there[kCa] * there[kC], of_psi = there[kCa] * there[kC] * there[kO];
  const at::Tensor none = at::zeros_like(of_psi);
  const at::Tensor of_chis = all_there(mask37, chi_atoms) * residue_rows(tables.chi_mask, types);
  const at::Tensor mask = at::cat({at::stack({of_backbone, none, none, of_psi}, -1), of_chis}, -1);

  const Rigid frames = joined({backbone, absent, turning}, -1);
  const at::Tensor period = residue_rows(tables.chi_period, types);
  const at::Tensor sign = sign_of(at::cat({at::zeros_like(mask.narrow(-1, 0, kChis)), period}, -1));
  const at::Tensor signs = at::stack({at::ones_like(sign), sign, sign}, -1).unsqueeze(-2);
  return {frames, {frames.rotation * signs, frames.translation}, mask};
}

MaskedPoints side_chain_points(const at::Tensor& atoms37, const at::Tensor& mask37, const at::Tensor& types,
                               const ResidueTables& tables) {
  const at::Tensor name = kCb - (kCb - kCa) * (types == tables.glycine).to(at::kLong).unsqueeze(-1);
  return {picked(atoms37, name, 1).squeeze(-2), picked(mask37, name, 0).squeeze(-1)};
}

at::Tensor expected_cb(const at::Tensor& n, const at::Tensor& ca, const at::Tensor& c) {
  const at::Tensor b = ca - n, d = c - ca;
  const std::vector<at::Tensor> p = b.unbind(-1), q = d.unbind(-1);
  const at::Tensor normal =
      at::stack({p[1] * q[2] - p[2] * q[1], p[2] * q[0] - p[0] * q[2], p[0] * q[1] - p[1] * q[0]}, -1);
  return -0.58273431 * normal + 0.56802827 * b - 0.54067466 * d + ca;
}

at::Tensor DistanceLimits::on(const at::TensorOptions& options) const {
  return at::linspace(first, last, count, options);
}

at::Tensor squared_distances(const at::Tensor& a, const at::Tensor& b) {
  const std::vector<at::Tensor> from = a.unbind(-1), to = b.unbind(-1);
  at::Tensor sum;
  for (size_t c = 0; c < from.size(); ++c) {  // coordinate by coordinate, so that no [N, M, 3] exists
    const at::Tensor square = (from[c].unsqueeze(-1) - to[c].unsqueeze(-2)).square();
    sum = sum.defined() ? sum + square : square;
  }
  return sum;
}

at::Tensor bins_of_squares(const at::Tensor& squares, const DistanceLimits& limits) {
  const at::NoGradGuard no_grad;
  if (tensor::OperatorRecorder* recorder = tensor::operator_recorder())
    return recorder->record(
        {"distance_bins", "...->...", {squares}, [=](const auto& in) { return bins_of_squares(in[0], limits); }});
  if (squares.is_meta()) return at::empty(squares.sizes(), squares.options().dtype(at::kLong));
  return at::bucketize(squares, limits.on(squares.options()).square());
}

at::Tensor distance_bins(const at::Tensor& points, const DistanceLimits& limits) {
  const at::NoGradGuard no_grad;
  return bins_of_squares(squared_distances(points, points), limits);
}

}  // namespace colossal::ops
