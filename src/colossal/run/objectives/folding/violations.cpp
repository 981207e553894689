#include "colossal/run/objectives/folding/violations.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "colossal/ops/dispatch.h"
#include "colossal/ops/geometry/residues.h"
#include "colossal/ops/geometry/rigid.h"
#include "colossal/tensor/apply_function.h"

// Steps are also recorded on meta, where clamp() has no gradient, and where() and logical operators do not run.

namespace colossal::run {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Means and standard deviations of structures (Engh and Huber 1991), as AlphaFold has them.
constexpr double kBond = 1.329, kBondDeviation = .014, kBondToProline = 1.341, kBondDeviationToProline = .016;
constexpr double kCosCaCN = -.4473, kCosCNCa = -.5203, kCosCNCaDeviation = .0353;
constexpr double kBondTiny = 1e-6, kClashTiny = 1e-10;
enum Slot : int64_t { kSlotN = 0, kSlotCa = 1, kSlotC = 2, kSlotSg = 5 };

at::Tensor positive_part(const at::Tensor& x) { return x.masked_fill(x < 0, 0); }

/// Returns x of all residues but the last or, from 1, of all but the first.
at::Tensor all_but_one(const at::Tensor& x, int64_t from) { return x.narrow(1, from, x.size(1) - 1); }

struct Vectors {
  at::Tensor unit, length;
};

Vectors direction(const at::Tensor& from, const at::Tensor& to) {
  const at::Tensor length = (ops::squared_norm(to - from) + kBondTiny).sqrt();
  return {(to - from) / length.unsqueeze(-1), length};
}

/// A measured value between two residues: its mean over pairs, and which pairs are beyond the tolerance.
struct Checked {
  at::Tensor mean, beyond;
};

Checked checked(const at::Tensor& value, const at::Tensor& want, const at::Tensor& allowed, const at::Tensor& mask) {
  const at::Tensor error = ((value - want).square() + kBondTiny).sqrt();
  const at::Tensor mean = (positive_part(error - allowed) * mask).sum(-1) / (mask.sum(-1) + kBondTiny);
  return {mean, (error > allowed).to(mask.scalar_type()) * mask};
}

/// What pairs of atoms need besides places, flat over residues and slots: [B, A].
struct FlatAtoms {
  at::Tensor places, exists, radii, index, slot;
};

/// Overlaps of `count` atoms from `first` on with all atoms.
struct Overlaps {
  at::Tensor of_atoms, gradient, clashes, pairs;  // [B, count], [B, count, 3], [B, count], [B]
};

Overlaps overlaps_of(const FlatAtoms& all, int64_t first, int64_t count, double tolerance) {
  const auto rows = [&](const at::Tensor& x) { return x.narrow(1, first, count).unsqueeze(2); };
  const auto columns = [](const at::Tensor& x) { return x.unsqueeze(1); };
  const auto are = [&](Slot a, Slot b, int64_t ahead) {
    const at::Tensor next =
        ahead == 0 ? at::ones_like(rows(all.index)) : (rows(all.index) + ahead).eq(columns(all.index));
    return rows(all.slot).eq(a).bitwise_and(columns(all.slot).eq(b)).bitwise_and(next.to(at::kBool));
  };
  const at::Tensor never = rows(all.index)
                               .eq(columns(all.index))
                               .bitwise_or(are(kSlotC, kSlotN, 1))
                               .bitwise_or(are(kSlotN, kSlotC, -1))
                               .bitwise_or(are(kSlotSg, kSlotSg, 0));
  const at::Tensor mask = (rows(all.exists) * columns(all.exists)).masked_fill(never, 0);
  const at::Tensor places = all.places.narrow(1, first, count);
  const at::Tensor distance = (ops::squared_distances(places, all.places) + kClashTiny).sqrt();
  const at::Tensor overlap = (rows(all.radii) + columns(all.radii) - tolerance - distance) * mask;
  const at::Tensor clash = (overlap > 0).to(overlap.scalar_type());
  // The sum over atoms counts a pair twice: d/dx_a = -2 sum_b (x_a - x_b) / distance.
  const at::Tensor weight = clash / distance;
  const at::Tensor gradient = 2 * (at::matmul(weight, all.places) - places * weight.sum(-1, /*keepdim=*/true));
  return {(overlap * clash).sum(-1), gradient, clash.amax(-1), mask.sum({1, 2})};
}

/// Sums of overlaps and, with them, their gradient.
struct OverlapSums : torch::autograd::Function<OverlapSums> {
  static variable_list forward(AutogradContext* context, const at::Tensor& places, const at::Tensor& exists,
                               const at::Tensor& radii, const at::Tensor& index, double tolerance) {
    const int64_t batch = places.size(0), atoms = exists.size(1) * exists.size(2);
    const auto of_atoms = [&](const at::Tensor& x) { return x.unsqueeze(2).expand_as(exists).flatten(1); };
    const at::Tensor slot = at::arange(ops::kAtomSlots, index.options()).repeat({batch, exists.size(1)});
    const FlatAtoms all{places.flatten(1, 2), exists.flatten(1), radii.flatten(1), of_atoms(index), slot};
    const int64_t of_row = std::max<int64_t>(batch * atoms, 1);
    const int64_t at_once =
        places.is_meta() ? atoms : std::clamp<int64_t>(ops::kSliceElements / of_row, 1, std::max<int64_t>(atoms, 1));
    std::vector<at::Tensor> sums, gradients, clashes;
    at::Tensor pairs = at::zeros({batch}, exists.options());
    for (int64_t first = 0; first < atoms; first += at_once) {
      const Overlaps part = overlaps_of(all, first, std::min(at_once, atoms - first), tolerance);
      sums.push_back(part.of_atoms), gradients.push_back(part.gradient), clashes.push_back(part.clashes);
      pairs = pairs + part.pairs;
    }
    const at::Tensor sum = at::cat(sums, 1).sum(-1), of_atom = at::cat(clashes, 1).view(exists.sizes());
    const at::Tensor mean = .5 * sum / (.5 * pairs + kBondTiny);
    if (context) {
      context->save_for_backward({at::cat(gradients, 1).view(places.sizes())});
      context->mark_non_differentiable({mean, of_atom});
    }
    return {sum, mean, of_atom};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::Tensor of_places = context->get_saved_variables()[0] * gradients[0].view({-1, 1, 1, 1});
    return {of_places, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

BondViolations bond_violations(const PredictedChain& chain, const ops::ResidueTables& tables,
                               const ViolationTolerance& tolerance) {
  const at::Tensor here = all_but_one(chain.places, 0), next = all_but_one(chain.places, 1);
  const at::Tensor has = all_but_one(chain.exists, 0), next_has = all_but_one(chain.exists, 1);
  const auto type = chain.exists.scalar_type();
  const at::Tensor joined = (all_but_one(chain.index, 1) - all_but_one(chain.index, 0)).eq(1).to(type);
  const at::Tensor proline = all_but_one(chain.types, 1).eq(tables.proline).to(type);

  const at::Tensor c = here.select(2, kSlotC), n = next.select(2, kSlotN);
  const Vectors to_n = direction(c, n), to_ca = direction(c, here.select(2, kSlotCa));
  const Vectors onward = direction(n, next.select(2, kSlotCa));
  const at::Tensor has_bond = has.select(2, kSlotC) * next_has.select(2, kSlotN) * joined;
  const at::Tensor bond = kBond + (kBondToProline - kBond) * proline;
  const at::Tensor deviation = kBondDeviation + (kBondDeviationToProline - kBondDeviation) * proline;

  const auto same = [&](double value) { return at::full_like(proline, value); };
  const Checked length = checked(to_n.length, bond, tolerance.deviations * deviation, has_bond);
  const Checked ca_c_n = checked((to_ca.unit * to_n.unit).sum(-1), same(kCosCaCN),
                                 same(tolerance.deviations * kBondDeviation), has_bond * has.select(2, kSlotCa));
  const Checked c_n_ca =
      checked(-(to_n.unit * onward.unit).sum(-1), same(kCosCNCa), same(tolerance.deviations * kCosCNCaDeviation),
              has_bond * next_has.select(2, kSlotCa));
  const at::Tensor beyond = at::maximum(at::maximum(length.beyond, ca_c_n.beyond), c_n_ca.beyond);
  const at::Tensor none = at::zeros_like(chain.exists.select(2, 0).narrow(1, 0, 1));
  return {length.mean, ca_c_n.mean, c_n_ca.mean, at::maximum(at::cat({beyond, none}, 1), at::cat({none, beyond}, 1))};
}

Clashes clashes_between(const PredictedChain& chain, const ops::ResidueTables& tables,
                        const ViolationTolerance& tolerance) {
  const at::Tensor radii = ops::residue_rows(tables.radii14, chain.types);
  const variable_list found =
      tensor::apply_function<OverlapSums>(chain.places, chain.exists, radii, chain.index, tolerance.overlap);
  return {found[1], found[0], found[2]};
}

Clashes violations_within(const PredictedChain& chain, const ops::ResidueTables& tables) {
  const at::Tensor shortest = ops::residue_rows(tables.shortest14, chain.types);
  const at::Tensor longest = ops::residue_rows(tables.longest14, chain.types);
  const at::Tensor others = 1 - at::eye(ops::kAtomSlots, chain.exists.options());
  const at::Tensor mask = chain.exists.unsqueeze(-1) * chain.exists.unsqueeze(-2) * others;
  const at::Tensor distance = (ops::squared_distances(chain.places, chain.places) + kClashTiny).sqrt();
  const at::Tensor error = (positive_part(shortest - distance) + positive_part(distance - longest)) * mask;
  const at::Tensor sum = error.flatten(1).sum(-1), pairs = mask.flatten(1).sum(-1);
  // Each pair stands twice in the matrix, and counts for both atoms of both.
  return {(sum / (pairs + kBondTiny)).detach(), 2 * sum, (error > 0).to(mask.scalar_type()).amax(-1)};
}

at::Tensor violation_losses(const PredictedChain& chain, const ops::ResidueTables& tables,
                            const ViolationTolerance& tolerance) {
  const BondViolations bonds = bond_violations(chain, tables, tolerance);
  const at::Tensor sums = clashes_between(chain, tables, tolerance).sum + violations_within(chain, tables).sum;
  const at::Tensor atoms = chain.exists.flatten(1).sum(-1);
  return bonds.length + bonds.ca_c_n + bonds.c_n_ca + sums / (atoms + kBondTiny);
}

}  // namespace colossal::run
