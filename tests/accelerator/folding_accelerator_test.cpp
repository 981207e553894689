// The structure module and the losses of folding on an accelerator: as on the host, and without waits for the device.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "colossal/models/folding/confidence.h"
#include "colossal/models/folding/structure_module.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/ops/geometry/residues.h"
#include "colossal/run/objectives/folding/fape.h"
#include "colossal/run/objectives/folding/losses.h"
#include "colossal/run/objectives/folding/violations.h"
#include "support/accelerator.h"
#include "support/few_residues.h"

namespace colossal::run::folding_accelerator_test {
namespace {

using test::cosines;

class FoldingOnAccelerator : public test::AcceleratorTest {};

/// A small structure module, atoms that it places, and all losses of a chain.
struct Case {
  explicit Case(at::Device device)
      : options(at::TensorOptions(at::kFloat).device(device)),
        parameters({}, {.device = device}),
        make(parameters),
        module("m", {.points = {.single = 6, .pair = 5, .heads = 2, .head_dim = 4}, .layers = 2, .angle_hidden = 7},
               make),
        tables(test::few_residues().to(options)),
        types(test::types_of("ADGPY").unsqueeze(0).to(device)),
        mask37(ops::residue_rows(tables.mask37, types)),
        atoms37(given(.7, {1, 5, 37, 3})),
        s(given(.23, {1, 5, 6}).requires_grad_(true)),
        z(given(.37, {1, 5, 5, 5})),
        pairs(given(.05, {1, 5, 5, 64})),
        mask(at::ones({1, 5}, options)) {
    const at::NoGradGuard no_grad;
    for (nn::Parameter& p : parameters)  // the initial values have zeros in the last layers
      p.value.copy_(given(.7, p.value.sizes().vec()) * .2);
  }
  at::Tensor given(double a, const std::vector<int64_t>& sizes) const { return cosines(a, sizes).to(options); }

  /// Returns the sum of all losses.
  at::Tensor loss() const {
    const models::StructureLayer last = module.forward(s, z, mask, {}).back();
    const ops::Rigid frames = last.frames.rigid(), groups = ops::group_frames(frames, last.angles, types, tables);
    const at::Tensor places = ops::atoms14(groups, types, tables);
    const SideChains truth = better_named(side_chains_of(atoms37, mask37, types, tables), places, types, tables);
    const ops::Rigid true_frames = truth.groups.frames.narrow(-1, 0, 1).flatten(1);
    const at::Tensor ca = places.select(2, 1), true_ca = truth.atoms14.select(2, 1);
    const ops::Torsions torsions = ops::torsions_of(atoms37, mask37, types, tables);
    at::Tensor sum = fape_losses({frames, true_frames, mask}, {ca, true_ca, mask}, {});
    sum = sum + side_chain_fape_losses(groups, places, truth, {});
    sum = sum + chi_losses(last.raw_angles, {torsions.sin_cos.narrow(2, 3, 4), torsions.mask.narrow(2, 3, 4)}, mask,
                           types, tables);
    sum = sum + violation_losses({places, truth.mask14, types, at::arange(5, types.options()).unsqueeze(0)}, tables);
    sum = sum + plddt_losses(given(.11, {1, 5, 50}), lddt_of(ca, true_ca, mask).residues, mask);
    sum = sum + distogram_losses(pairs, true_ca, mask) + pae_losses(pairs, frames, true_frames, mask);
    sum = sum + models::predicted_tm(models::tm_terms(pairs, mask), mask.unsqueeze(2) * mask.unsqueeze(1));
    return sum + models::plddt(given(.11, {1, 5, 50})).mean() + resolved_losses(mask37, mask37, mask37);
  }

  at::TensorOptions options;
  nn::Parameters parameters;
  nn::SerialLayers make;
  models::StructureModule module;
  ops::ResidueTables tables;
  at::Tensor types, mask37, atoms37, s, z, pairs, mask;
};

TEST_F(FoldingOnAccelerator, GivesTheLossesAndGradientsOfTheHost) {
  const Case host(at::kCPU), there(test::accelerator());
  const at::Tensor want = host.loss(), want_gradient = torch::autograd::grad({want.sum()}, {host.s})[0];
  const at::Tensor got = there.loss(), gradient = torch::autograd::grad({got.sum()}, {there.s})[0];
  EXPECT_TRUE(at::allclose(got.cpu(), want, 1e-4, 1e-4)) << got.cpu() << want;
  EXPECT_TRUE(at::allclose(gradient.cpu(), want_gradient, 1e-3, 1e-3 * want_gradient.abs().max().item<double>()));
}

TEST_F(FoldingOnAccelerator, WaitsForNoResult) {
  const Case there(test::accelerator());
  const models::StructureLayer last = there.module.forward(there.s, there.z, there.mask, {}).back();
  test::AcceleratorWaits waits;
  const ops::Rigid groups = ops::group_frames(last.frames.rigid(), last.angles, there.types, there.tables);
  const at::Tensor places = ops::atoms14(groups, there.types, there.tables);
  const SideChains truth = better_named(side_chains_of(there.atoms37, there.mask37, there.types, there.tables), places,
                                        there.types, there.tables);
  side_chain_fape_losses(groups, places, truth, {});
  clashes_between({places, truth.mask14, there.types, there.types}, there.tables);
  ops::distance_bins(places.select(2, 1), ops::kDistogramLimits);
  EXPECT_EQ(waits.counts().waits(), 0);
}

}  // namespace
}  // namespace colossal::run::folding_accelerator_test
