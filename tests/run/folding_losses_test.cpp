// Losses of folding against golden values of OpenFold in fp64, and the confidences of heads.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>

#include "colossal/models/folding/confidence.h"
#include "colossal/ops/geometry/residues.h"
#include "colossal/run/objectives/folding/fape.h"
#include "colossal/run/objectives/folding/losses.h"
#include "colossal/run/objectives/folding/violations.h"
#include "support/few_residues.h"

namespace colossal::run::folding_losses_test {
namespace {

using test::cosines;
using test::signature;

void expect_values(const at::Tensor& got, const std::vector<double>& want, double limit = 2e-12) {
  ASSERT_EQ(got.numel(), static_cast<int64_t>(want.size()));
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got.flatten()[static_cast<int64_t>(i)].item<double>(), want[i], limit) << i;
}

/// Expects the gradient of `loss` to equal central differences at some elements.
void expect_gradient(const std::function<at::Tensor(const at::Tensor&)>& loss, const at::Tensor& where) {
  const at::Tensor x = where.detach().clone().requires_grad_(true);
  const at::Tensor gradient = torch::autograd::grad({loss(x).sum()}, {x})[0].flatten();
  for (int64_t i = 0; i < x.numel(); i += 1 + x.numel() / 9) {
    const at::Tensor up = where.detach().clone(), down = up.clone();
    up.view(-1)[i] += 1e-6, down.view(-1)[i] -= 1e-6;
    const double want = (loss(up) - loss(down)).sum().item<double>() / 2e-6;
    EXPECT_NEAR(gradient[i].item<double>(), want, 2e-8 * std::max(1., std::abs(want))) << i;
  }
}

at::Tensor six() { return at::arange(6, at::kDouble); }

/// Returns frames of six residues [1, 6] whose quaternions turn with `f`.
ops::Rigid turning(double f, const at::Tensor& t) {
  const at::Tensor i = six();
  const at::Tensor q = at::stack({at::ones_like(i), (f * i).sin(), (2 * f * i).cos(), .5 * (3 * f * i).sin()}, -1);
  return {ops::rotation_of_quaternion(q / ops::squared_norm(q).sqrt().unsqueeze(-1)).unsqueeze(0), t};
}
at::Tensor predicted_t() {
  const at::Tensor i = six();
  return at::stack({3.1 * i, 4 * (1.5 * i).sin(), 2.5 * (1.9 * i).cos()}, -1).unsqueeze(0);
}
at::Tensor true_t() {
  const at::Tensor i = six();
  return at::stack({3.8 * i, 3 * (1.7 * i).sin(), 3 * (1.7 * i).cos()}, -1).unsqueeze(0);
}
at::Tensor last_masked() { return six().lt(5).to(at::kDouble).unsqueeze(0); }
at::Tensor types_of_chain(const std::string& letters) { return test::types_of(letters).unsqueeze(0); }

at::Tensor fape_at(const at::Tensor& t, const at::Tensor& true_points, double clamp) {
  const ops::Rigid truth = turning(.4, true_t());
  return fape_losses({turning(.5, t), truth, last_masked()}, {t, true_points, last_masked()}, {.clamp = clamp});
}

TEST(Fape, HasTheValuesOfOpenFold) {
  for (const auto& [clamp, loss, sum] : {std::tuple{10., .3002980049361, -.02496117476163},
                                         {0., .3002980049361, -.02496117476163},
                                         {3., .2034881308383, .005363915568714}}) {
    const at::Tensor t = predicted_t().requires_grad_(true);
    const at::Tensor got = fape_at(t, true_t(), clamp);
    expect_values(got, {loss});
    expect_values(signature(torch::autograd::grad({got.sum()}, {t})[0]), {sum});
  }
  expect_gradient([](const at::Tensor& t) { return fape_at(t, true_t(), 10); }, predicted_t());
  const auto turned = [](const at::Tensor& q) {
    const ops::QuaternionFrames frames{q / ops::squared_norm(q).sqrt().unsqueeze(-1), predicted_t()};
    return fape_losses({frames.rigid(), turning(.4, true_t()), last_masked()}, {predicted_t(), true_t(), last_masked()},
                       {});
  };
  expect_gradient(turned, cosines(.3, {1, 6, 4}));
}

TEST(Fape, TellsMirrorImagesApart) {
  const at::Tensor mirrored = true_t() * at::tensor({-1., 1., 1.}, at::kDouble);
  expect_values(fape_at(predicted_t(), mirrored, 10), {.831143410692});
  const at::Tensor points = true_t(), mask = at::ones({1, 6}, at::kDouble);
  const ops::Rigid frames = turning(.4, true_t());
  EXPECT_LT(fape_losses({frames, frames, mask}, {points, points, mask}, {}).item<double>(), .0011);
  EXPECT_GT(fape_losses({frames, frames, mask}, {mirrored, points, mask}, {}).item<double>(), .2);
}

TEST(Fape, DoesNotChangeWithTheMotionOfAll) {
  const ops::Rigid frames = turning(.5, predicted_t()), motion = turning(.9, 10 * predicted_t()).narrow(-1, 3, 1);
  const auto loss = [](const ops::Rigid& f) {
    return fape_losses({f, turning(.4, true_t()), last_masked()}, {f.translation, true_t(), last_masked()}, {});
  };
  EXPECT_NEAR(loss(frames).item<double>(), loss(motion.compose(frames)).item<double>(), 1e-12);
}

TEST(Fape, EqualsAPlainSumOverFramesAndPoints) {
  const at::Tensor points = 5 * cosines(.7, {1, 3, 3}), truth = 5 * cosines(.9, {1, 3, 3});
  const at::Tensor mask = at::tensor({1., 0., 1.}, at::kDouble).unsqueeze(0);
  const ops::Rigid a = turning(.5, predicted_t()), b = turning(.4, true_t());
  double sum = 0;
  for (int64_t i = 0; i < 5; ++i)
    for (const int64_t j : {0, 2}) {
      const auto seen = [&](const ops::Rigid& f, const at::Tensor& x) {
        return f.rotation[0][i].t().mv(x[0][j] - f.translation[0][i]);
      };
      const double d2 = (seen(a, points) - seen(b, truth)).square().sum().item<double>();
      sum += std::min(std::sqrt(d2 + 1e-4), 7.) / 20;
    }
  expect_values(fape_losses({a, b, last_masked()}, {points, truth, mask}, {.clamp = 7, .scale = 20}),
                {sum / (5 + 1e-4) / (2 + 1e-4)});
}

TEST(FoldingLosses, MeasureLddt) {
  const Lddt lddt = lddt_of(predicted_t(), true_t(), last_masked());
  expect_values(lddt.residues.narrow(1, 0, 5), {2. / 3, 11. / 16, 1. / 2, 5. / 8, 5. / 12});
  expect_values(lddt.chains, {7. / 12});
  const at::Tensor logits = cosines(.11, {1, 6, 50});
  expect_values(plddt_losses(logits, lddt.residues, last_masked()), {4.247376437054});
  expect_values(models::plddt(logits)[0].narrow(0, 0, 2), {39.84832543911, 32.46333715668}, 1e-11);
}

TEST(FoldingLosses, CompareDistances) {
  const at::Tensor half = cosines(.07, {1, 6, 6, 64}), logits = half + half.transpose(1, 2);
  expect_values(distogram_losses(logits, true_t(), last_masked()), {4.490095392669});
}

TEST(FoldingLosses, CompareChis) {
  const at::Tensor types = types_of_chain("RNGDPY"), truth = cosines(.53, {1, 6, 4, 2});
  const ops::ResidueTables tables = test::few_residues();
  const TrueChis chis{truth / ops::squared_norm(truth).sqrt().unsqueeze(-1), ops::residue_rows(tables.chi_mask, types)};
  const auto loss = [&](const at::Tensor& raw) { return chi_losses(raw, chis, last_masked(), types, tables); };
  expect_values(loss(cosines(.31, {1, 6, 7, 2})), {.9348292857854});
  expect_gradient(loss, cosines(.31, {1, 6, 7, 2}));
}

TEST(FoldingLosses, CompareAlignedErrors) {
  const at::Tensor logits = cosines(.05, {1, 6, 6, 64}), all = at::ones({1, 6}, at::kDouble);
  const at::Tensor errors = models::expected_errors(logits);
  expect_values(errors[0][0][1], {21.76231107854}, 1e-11);
  expect_values(signature(errors), {8.443007970397}, 1e-10);
  const at::Tensor loss = pae_losses(logits, turning(.5, predicted_t()), turning(.4, true_t()), last_masked());
  expect_values(loss, {4.173661173241});
  const at::Tensor terms = models::tm_terms(logits, all);
  expect_values(models::predicted_tm(terms, at::ones({1, 6, 6}, at::kDouble)), {.00931283696918});
}

TEST(FoldingLosses, CountPaddingInNoTm) {
  const at::Tensor logits = cosines(.05, {1, 24, 24, 64});
  const at::Tensor mask = at::arange(24, at::kDouble).lt(21).to(at::kDouble).unsqueeze(0);
  const auto tm = [](const at::Tensor& l, const at::Tensor& m) {
    return models::predicted_tm(models::tm_terms(l, m), m.unsqueeze(2) * m.unsqueeze(1));
  };
  const at::Tensor few = tm(logits.narrow(1, 0, 21).narrow(2, 0, 21), mask.narrow(1, 0, 21));
  expect_values(tm(logits, mask), {few.item<double>()}, 1e-12);
}

TEST(FoldingLosses, CompareMaskedLetters) {
  const at::Tensor n = at::arange(18, at::kLong);
  const at::Tensor letters = (5 * n).remainder(23).view({1, 3, 6});
  const at::Tensor chosen = n.remainder(4).eq(0).to(at::kDouble).view({1, 3, 6});
  expect_values(masked_msa_losses(cosines(.13, {1, 3, 6, 23}), letters, chosen), {3.156852652633});
  EXPECT_EQ(masked_msa_losses(cosines(.13, {1, 3, 6, 23}), letters, at::zeros_like(chosen)).item<double>(), 0);
}

TEST(FoldingLosses, CompareResolvedAtoms) {
  const at::Tensor logits = cosines(.3, {2, 3, 37}), resolved = cosines(.9, {2, 3, 37}).gt(0).to(at::kDouble);
  const at::Tensor exists = cosines(1.3, {2, 3, 37}).gt(-.5).to(at::kDouble), p = logits.sigmoid();
  const at::Tensor plain = -(resolved * p.log() + (1 - resolved) * (1 - p).log()) * exists;
  const at::Tensor want = plain.sum({1, 2}) / exists.sum({1, 2});
  EXPECT_LT((resolved_losses(logits, resolved, exists) - want).abs().max().item<double>(), 1e-9);
  expect_values(well_resolved(at::tensor({0., .1, 2., 3., 3.5}, at::kDouble)), {0, 1, 1, 1, 0});
}

/// Two residues D and Y between others, whose atoms the prediction has in the other naming.
TEST(Fape, TakesTheBetterNaming) {
  const ops::ResidueTables tables = test::few_residues();
  const at::Tensor types = types_of_chain("ADGYRD"), mask37 = ops::residue_rows(tables.mask37, types);
  const at::Tensor angles = cosines(.37, {1, 6, 7}) * 3;
  const ops::Rigid backbones = turning(.4, true_t());
  const ops::Rigid groups = ops::group_frames(backbones, at::stack({angles.sin(), angles.cos()}, -1), types, tables);
  const at::Tensor places = ops::atoms14(groups, types, tables);
  const SideChains truth = side_chains_of(ops::atoms37(places, types, tables), mask37, types, tables);
  EXPECT_TRUE(other_naming_is_better(places, truth, types, tables).equal(at::zeros({1, 6}, at::kDouble)));
  EXPECT_LT(side_chain_fape_losses(groups, places, truth, {}).item<double>(), .0011);

  at::Tensor turned_angles = angles.clone();
  for (const int64_t residue : {1, 3}) turned_angles[0][residue][4] += M_PI;
  const ops::Rigid turned =
      ops::group_frames(backbones, at::stack({turned_angles.sin(), turned_angles.cos()}, -1), types, tables);
  const at::Tensor other = ops::atoms14(turned, types, tables);
  expect_values(other_naming_is_better(other, truth, types, tables), {0, 1, 0, 1, 0, 0});
  const SideChains better = better_named(truth, other, types, tables);
  EXPECT_GT(side_chain_fape_losses(turned, other, truth, {}).item<double>(), .01);
  EXPECT_LT(side_chain_fape_losses(turned, other, better, {}).item<double>(), .0035);  // OD1 and OD2 differ a little
  EXPECT_TRUE(better_named(better, places, types, tables).atoms14.equal(truth.atoms14)) << "back to the first naming";
}

TEST(Fape, ChoosesNamesByDistancesToAtomsOfOneName) {
  const ops::ResidueTables tables = test::few_residues();
  const at::Tensor types = types_of_chain("DYADYDYD"), slots = ops::residue_rows(tables.renamed14, types)[0];
  const at::Tensor predicted = 3 * cosines(.71, {1, 8, 14, 3}), given = 3 * cosines(.83, {1, 8, 14, 3});
  const at::Tensor exists = ops::residue_rows(tables.mask14, types) * cosines(.47, {1, 8, 14}).gt(-.7).to(at::kDouble);
  const auto has_two = [&](int64_t i, int64_t a) { return slots[i][a].item<int64_t>() != a; };
  std::vector<double> want;
  for (int64_t i = 0; i < 8; ++i) {
    double as_named = 0, other = 0;
    for (int64_t a = 0; a < 14; ++a)
      for (int64_t j = 0; j < 8; ++j)
        for (int64_t b = 0; b < 14; ++b) {
          if (!has_two(i, a) || has_two(j, b) || (exists[0][i][a] * exists[0][j][b]).item<double>() == 0) continue;
          const auto length = [](const at::Tensor& x) { return x.norm().item<double>(); };
          const double d = length(predicted[0][i][a] - predicted[0][j][b]);
          as_named += std::abs(d - length(given[0][i][a] - given[0][j][b]));
          other += std::abs(d - length(given[0][i][slots[i][a].item<int64_t>()] - given[0][j][b]));
        }
    want.push_back(other < as_named ? 1 : 0);
  }
  const SideChains truth{.groups = {}, .atoms14 = given, .mask14 = exists};
  expect_values(other_naming_is_better(predicted, truth, types, tables), want);
}

TEST(Fape, LeavesMissingAtomsOut) {
  const ops::ResidueTables tables = test::few_residues();
  const at::Tensor types = types_of_chain("ADG");
  at::Tensor mask = ops::residue_rows(tables.mask37, types).clone();
  mask[0][1].narrow(0, 5, 32).zero_();  // the side chain of D but CB
  const at::Tensor atoms = cosines(.7, {1, 3, 37, 3});
  const SideChains truth = side_chains_of(atoms, mask, types, tables);
  EXPECT_EQ(truth.mask14.sum().item<double>(), 5 + 5 + 4);
  expect_values(truth.groups.mask[0][1], {1, 0, 0, 1, 0, 0, 0, 0});
}

/// Returns the chain A R G P with the angles of residue i .4 k + .3 i, moved by i (3.3, .4, -.3).
PredictedChain golden_chain(const ops::ResidueTables& tables) {
  const at::Tensor types = types_of_chain("ARGP"), i = at::arange(4, at::kDouble).unsqueeze(1);
  const at::Tensor angles = (at::arange(7, at::kDouble) * .4 + .3 * i).unsqueeze(0);
  const ops::Rigid backbones{ops::Rigid::identity({1, 4}, at::kDouble).rotation,
                             (i * at::tensor({3.3, .4, -.3}, at::kDouble)).unsqueeze(0)};
  const ops::Rigid groups = ops::group_frames(backbones, at::stack({angles.sin(), angles.cos()}, -1), types, tables);
  return {ops::atoms14(groups, types, tables), ops::residue_rows(tables.mask14, types), types,
          at::arange(4, at::kLong).unsqueeze(0)};
}

PredictedChain with_places(PredictedChain chain, const at::Tensor& places) {
  chain.places = places;
  return chain;
}

TEST(Violations, HaveTheValuesOfOpenFold) {
  const ops::ResidueTables tables = test::few_residues();
  const PredictedChain chain = golden_chain(tables);
  const BondViolations bonds = bond_violations(chain, tables);
  expect_values(bonds.length, {.6471929656704});
  expect_values(bonds.ca_c_n, {0});
  expect_values(bonds.c_n_ca, {.6321607697989});
  expect_values(bonds.residues, {1, 1, 1, 1});
  const Clashes clashes = clashes_between(chain, tables);
  expect_values(clashes.mean, {.008394815305059});
  expect_values(clashes.sum, {4.28135582237});
  expect_values(clashes.atoms.sum(), {11});
}

TEST(Violations, HaveGradients) {
  ops::ResidueTables tables = test::few_residues();
  tables.shortest14.fill_(1.2), tables.longest14.fill_(1.6);
  const PredictedChain chain = golden_chain(tables);
  expect_gradient([&](const at::Tensor& x) { return clashes_between(with_places(chain, x), tables).sum; },
                  chain.places);
  expect_gradient([&](const at::Tensor& x) { return violation_losses(with_places(chain, x), tables); }, chain.places);
}

TEST(Violations, MeasureDistancesWithinResidues) {
  ops::ResidueTables tables = test::few_residues();
  tables.longest14.fill_(100);
  const PredictedChain chain = golden_chain(tables);
  EXPECT_EQ(violations_within(chain, tables).sum.item<double>(), 0);
  tables.longest14[0][0][1] = tables.longest14[0][1][0] = 1;  // N and CA of alanine, 1.46 apart
  const Clashes within = violations_within(chain, tables);
  expect_values(within.sum, {4 * (std::sqrt(.525 * .525 + 1.363 * 1.363) - 1)}, 1e-9);
  EXPECT_EQ(within.atoms.sum().item<double>(), 2);
}

TEST(Violations, LeaveGapsAndPaddingOut) {
  const ops::ResidueTables tables = test::few_residues();
  PredictedChain chain = golden_chain(tables);
  chain.index = at::tensor({0, 5, 10, 15}, at::kLong).unsqueeze(0);
  EXPECT_EQ(bond_violations(chain, tables).length.item<double>(), 0);
  chain.exists = at::zeros_like(chain.exists);
  EXPECT_EQ(violation_losses(chain, tables).item<double>(), 0);
}

// Steps are recorded on shapes alone, forward and backward.
TEST(FoldingLosses, HaveShapesOnMeta) {
  const auto meta = at::TensorOptions(at::kFloat).device(at::kMeta);
  const auto made = [&](at::IntArrayRef sizes) { return at::empty(sizes, meta); };
  const ops::ResidueTables tables = test::few_residues().to(meta);
  const at::Tensor types = at::empty({2, 5}, meta.dtype(at::kLong)), mask = made({2, 5});
  const at::Tensor places = made({2, 5, 14, 3}).requires_grad_(true), pairs = made({2, 5, 5, 64}).requires_grad_(true);
  const ops::Rigid groups{made({2, 5, 8, 3, 3}), made({2, 5, 8, 3})};
  const ops::Rigid frames = groups.narrow(-1, 0, 1).flatten(1);
  const SideChains truth =
      better_named(side_chains_of(made({2, 5, 37, 3}), made({2, 5, 37}), types, tables), places, types, tables);
  at::Tensor loss = side_chain_fape_losses(groups, places, truth, {});
  loss = loss + violation_losses({places, made({2, 5, 14}), types, types}, tables);
  loss = loss + distogram_losses(pairs, made({2, 5, 3}), mask) + pae_losses(pairs, frames, frames, mask);
  const at::Tensor raw = made({2, 5, 7, 2}).requires_grad_(true), logits = made({2, 5, 37}).requires_grad_(true);
  loss = loss + chi_losses(raw, {made({2, 5, 4, 2}), made({2, 5, 4})}, mask, types, tables);
  loss = loss + plddt_losses(logits, lddt_of(places.select(2, 1), made({2, 5, 3}), mask).residues, mask);
  loss = loss + resolved_losses(logits, made({2, 5, 37}), made({2, 5, 37})) * well_resolved(made({2}));
  EXPECT_EQ(loss.sizes(), at::IntArrayRef({2}));
  for (const at::Tensor& gradient : torch::autograd::grad({loss.sum()}, {places, pairs, raw, logits}))
    EXPECT_TRUE(gradient.defined());
}

}  // namespace
}  // namespace colossal::run::folding_losses_test
