// Rigid transforms and residues against the golden values of AlphaFold's and OpenFold's formulas in fp64.
#include "colossal/ops/geometry/rigid.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>

#include "colossal/ops/geometry/residues.h"
#include "support/few_residues.h"

namespace colossal::ops::rigid_test {
namespace {

constexpr double kDigits = 2e-12;  // of the digits that are given

void expect_values(const at::Tensor& got, const std::vector<double>& want, double limit = kDigits) {
  ASSERT_EQ(got.numel(), static_cast<int64_t>(want.size()));
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got.flatten()[static_cast<int64_t>(i)].item<double>(), want[i], limit) << i;
}

at::Tensor doubles(const std::vector<double>& values) { return at::tensor(values, at::kDouble); }

double error_of(const at::Tensor& got, const at::Tensor& want) { return (got - want).abs().max().item<double>(); }

/// Returns frames that are no identities.
Rigid some_frames(at::IntArrayRef sizes, double a) {
  std::vector<int64_t> of_quaternion = sizes.vec(), of_shift = sizes.vec();
  of_quaternion.push_back(4), of_shift.push_back(3);
  const at::Tensor q = test::cosines(a, of_quaternion);
  return {rotation_of_quaternion(q / squared_norm(q).sqrt().unsqueeze(-1)), 3 * test::cosines(a + .1, of_shift)};
}

/// Expects the gradient of `loss` to equal central differences at some elements.
void expect_gradient(const std::function<at::Tensor(const at::Tensor&)>& loss, const at::Tensor& at_point) {
  const at::Tensor x = at_point.detach().clone().requires_grad_(true);
  const at::Tensor gradient = torch::autograd::grad({loss(x)}, {x})[0].flatten();
  for (int64_t i = 0; i < x.numel(); i += 1 + x.numel() / 7) {
    const at::Tensor up = at_point.detach().clone(), down = up.clone();
    up.view(-1)[i] += 1e-5, down.view(-1)[i] -= 1e-5;
    const double want = (loss(up) - loss(down)).item<double>() / 2e-5;
    EXPECT_NEAR(gradient[i].item<double>(), want, 1e-8 * std::max(1., std::abs(want))) << i;
  }
}

/// Returns angles of four residues: angle k of residue i is .4 k + .3 i.
at::Tensor golden_angles() {
  const at::Tensor steps = at::arange(7, at::kDouble) * .4 + at::arange(4, at::kDouble).unsqueeze(1) * .3;
  return at::stack({steps.sin(), steps.cos()}, -1);
}

Rigid moved(const at::Tensor& shifts) {
  return {Rigid::identity(shifts.sizes().slice(0, 1), shifts.options()).rotation, shifts};
}

TEST(Rigid, MakesTheFrameOfThreePoints) {
  const Rigid frame = rigid_from_points(doubles({0, 1, .5}), doubles({-1, .5, 2}), doubles({1, 2, 0}));
  expect_values(frame.rotation, {-.5345224838249, .3984095364448, -.7453559924999, -.2672612419124, .7569781192451,
                                 .5962847939999, .8017837257373, .5179323973782, -.298142397});
  expect_values(frame.translation, {0, 1, .5});
  expect_values(expected_cb(doubles({1, 2, 0}), doubles({0, 1, .5}), doubles({-1, .5, 2})),
                {.7010642775, .11957475, .26436930}, 1e-12);
}

TEST(Rigid, ComposesAndInverts) {
  const Rigid a = some_frames({2, 5}, .3), b = some_frames({2, 5}, .7);
  const at::Tensor x = test::cosines(1.1, {2, 5, 3});
  EXPECT_LT(error_of(a.compose(b).apply(x), a.apply(b.apply(x))), 1e-14);
  EXPECT_LT(error_of(a.inverse().apply(a.apply(x)), x), 1e-14);
  EXPECT_LT(error_of(a.apply_inverse(x), a.inverse().apply(x)), 1e-14);
  const Rigid parts = joined({a.narrow(-1, 0, 2), a.narrow(-1, 2, 3)}, -1).flatten(0);
  EXPECT_LT(error_of(parts.apply(x.flatten(0, 1)), a.apply(x).flatten(0, 1)), 1e-15);
}

TEST(Rigid, GivesNoNanForEqualPoints) {
  const at::Tensor zero = at::zeros({2, 3}, at::TensorOptions(at::kFloat)).requires_grad_(true);
  const Rigid frame = rigid_from_points(zero, zero, zero);
  EXPECT_EQ(frame.rotation.abs().sum().item<double>(), 0);
  EXPECT_TRUE(torch::autograd::grad({frame.rotation.sum()}, {zero})[0].isfinite().all().item<bool>());
}

TEST(QuaternionFrames, TurnByUpdates) {
  const at::Tensor q = doubles({1, .1, -.2, .3});
  const QuaternionFrames before{q / squared_norm(q).sqrt(), doubles({.5, .25, -1})};
  const QuaternionFrames after = before.updated(doubles({.2, .05, -.1, 1, -2, 3}));
  expect_values(after.quaternion, {.9311865487369, .2784430366321, -.07303423911662, .2236673572947});
  expect_values(after.translation, {1.5, -1.75, 2});
  expect_gradient([&](const at::Tensor& u) { return test::signature(before.updated(u).rigid(10).rotation); },
                  doubles({.2, .05, -.1, 1, -2, 3}));
}

TEST(QuaternionFrames, StopGradientsOfRotationsAlone) {
  const at::Tensor u = doubles({.2, .05, -.1, 1, -2, 3}).requires_grad_(true);
  const QuaternionFrames frames = QuaternionFrames::identity({}, u.options()).updated(u).with_fixed_rotations();
  const at::Tensor gradient = torch::autograd::grad({frames.rigid().apply(doubles({1, 2, 3})).sum()}, {u})[0];
  expect_values(gradient, {0, 0, 0, 1, 1, 1});
}

TEST(Residues, PlaceAtomsByAngles) {
  const ResidueTables tables = test::few_residues();
  const at::Tensor types = test::types_of("ARGP");
  const Rigid backbones = Rigid::identity({4}, at::kDouble);
  const at::Tensor places = atoms14(group_frames(backbones, golden_angles(), types, tables), types, tables);
  expect_values(places[0][3], {2.153, -.7399025253267, -.7618321685353});
  expect_values(places[1][test::slot_of('R', "NH2")], {1.582363285545, -3.178498026278, -6.203923288256});
  expect_values(test::signature(places), {-.495988391092});
  expect_gradient(
      [&](const at::Tensor& angles) {
        return test::signature(atoms14(group_frames(backbones, angles, types, tables), types, tables));
      },
      golden_angles());
  const at::Tensor straight = at::stack({at::zeros({1, 7}, at::kDouble), at::ones({1, 7}, at::kDouble)}, -1);
  const at::Tensor alanine = test::types_of("A");
  const at::Tensor ala =
      atoms14(group_frames(Rigid::identity({1}, at::kDouble), straight, alanine, tables), alanine, tables);
  expect_values(ala[0].narrow(0, 0, 5),
                {-.525, 1.363, 0, 0, 0, 0, 1.526, 0, 0, 2.153, -1.062, 0, -.529, -.774, -1.205});
  EXPECT_EQ(ala[0].narrow(0, 5, 9).abs().sum().item<double>(), 0);
}

TEST(Residues, NameAtomsBothWays) {
  const ResidueTables tables = test::few_residues();
  const at::Tensor types = test::types_of("ARGPY");
  const at::Tensor places = test::cosines(.31, {5, 14, 3}) * tables.mask14.index_select(0, types).unsqueeze(-1);
  const at::Tensor named = atoms37(places, types, tables);
  EXPECT_TRUE(named[1][29].equal(places[1][9])) << "NH1 of R";
  EXPECT_TRUE(named[2][3].equal(at::zeros({3}, at::kDouble))) << "CB of G";
  EXPECT_TRUE(atoms14_of_names(named, types, tables).equal(places));
}

/// Returns the atoms of A R G P by name, at the golden angles and moved.
at::Tensor golden_atoms(const ResidueTables& tables) {
  const at::Tensor types = test::types_of("ARGP");
  const Rigid backbones = moved(doubles({0, 0, 0, 3, 1, .5, 6.2, -.4, .9, 8, 2, 2}).view({4, 3}));
  return atoms37(atoms14(group_frames(backbones, golden_angles(), types, tables), types, tables), types, tables);
}

TEST(Residues, MeasureTorsions) {
  const ResidueTables tables = test::few_residues();
  const at::Tensor types = test::types_of("ARGP"), mask = tables.mask37.index_select(0, types);
  const Torsions torsions = torsions_of(golden_atoms(tables), mask, types, tables);
  const at::Tensor angles = at::atan2(torsions.sin_cos.select(-1, 0), torsions.sin_cos.select(-1, 1));
  expect_values(angles[1], {2.860121539388, 2.860975524987, 1.1, 1.5, 1.9, 2.3, 2.7});
  expect_values(torsions.mask, {0, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0});
  EXPECT_TRUE(torsions.sin_cos[0][3].equal(at::zeros({2}, at::kDouble))) << "alanine has no chi1";
}

TEST(Residues, TurnChisOfPeriodPiInTheOtherNaming) {
  const ResidueTables tables = test::few_residues();
  const at::Tensor types = test::types_of("DN"), mask = tables.mask37.index_select(0, types);
  const Torsions torsions = torsions_of(test::cosines(.7, {2, 37, 3}), mask, types, tables);
  EXPECT_TRUE(torsions.other[0][4].equal(-torsions.sin_cos[0][4]));
  EXPECT_TRUE(torsions.other[0][3].equal(torsions.sin_cos[0][3]));
  EXPECT_TRUE(torsions.other[1].equal(torsions.sin_cos[1]));
}

TEST(Residues, FindTheFramesOfAtoms) {
  const ResidueTables tables = test::few_residues();
  const at::Tensor types = test::types_of("RDGPY"), mask = tables.mask37.index_select(0, types);
  const at::Tensor angles = at::arange(35, at::kDouble).view({5, 7}) * .37;
  const Rigid groups = group_frames(some_frames({5}, .4), at::stack({angles.sin(), angles.cos()}, -1), types, tables);
  const at::Tensor atoms = atoms37(atoms14(groups, types, tables), types, tables);
  const GroupFrames found = frames_of_atoms(atoms, mask, types, tables);
  const at::Tensor there = found.mask.unsqueeze(-1);
  expect_values(found.mask.sum(0), {5, 0, 0, 5, 4, 4, 1, 1});
  EXPECT_LT(error_of(found.frames.translation * there, groups.translation * there), 1e-12);
  EXPECT_LT(error_of(found.frames.rotation * there.unsqueeze(-1), groups.rotation * there.unsqueeze(-1)), 1e-12);
  // In the other naming OD2 of D has the place that OD1 has in this one, up to the length of its bond.
  const at::Tensor od2 = atoms14(found.other, types, tables)[1][7], od1 = atoms14(found.frames, types, tables)[1][6];
  EXPECT_LT(error_of(od2, od1), .05);
}

TEST(Residues, MoveWithTheirFrames) {
  const ResidueTables tables = test::few_residues();
  const at::Tensor types = test::types_of("ARGP");
  const Rigid backbones = some_frames({4}, .3), motion = some_frames({}, 1.3);
  const auto places = [&](const Rigid& frames) {
    return atoms14(group_frames(frames, golden_angles(), types, tables), types, tables);
  };
  const at::Tensor exists = tables.mask14.index_select(0, types).unsqueeze(-1);
  EXPECT_LT(error_of(places(motion.compose(backbones)), motion.apply(places(backbones)) * exists), 1e-12);
}

TEST(Residues, CountLimitsBelowDistances) {
  const at::Tensor row = at::arange(6, at::kDouble);
  const at::Tensor points = at::stack({3.8 * row, 3 * (1.7 * row).sin(), 3 * (1.7 * row).cos()}, -1);
  const auto bins = [&](const DistanceLimits& limits) {
    const at::Tensor first = distance_bins(points, limits)[0].contiguous();
    return std::vector<int64_t>(first.data_ptr<int64_t>(), first.data_ptr<int64_t>() + 6);
  };
  EXPECT_EQ(bins(kRecycledDistances), (std::vector<int64_t>{0, 3, 6, 7, 10, 14}));
  EXPECT_EQ(bins(kRecycledDistancesOfEsmFold), (std::vector<int64_t>{0, 2, 5, 7, 9, 12}));
  EXPECT_EQ(bins(kDistogramLimits), (std::vector<int64_t>{0, 12, 24, 31, 42, 56}));
}

TEST(Residues, ReplaceTheSideChainOfGlycine) {
  const ResidueTables tables = test::few_residues();
  const at::Tensor types = test::types_of("AG"), atoms = test::cosines(.2, {2, 37, 3});
  const MaskedPoints points = side_chain_points(atoms, tables.mask37.index_select(0, types), types, tables);
  EXPECT_TRUE(points.positions[0].equal(atoms[0][3]));
  EXPECT_TRUE(points.positions[1].equal(atoms[1][1]));
  EXPECT_EQ(points.mask.sum().item<double>(), 2);
}

// Steps are recorded on shapes alone, forward and backward.
TEST(Residues, HaveShapesOnMeta) {
  const ResidueTables tables = test::few_residues().to(at::TensorOptions(at::kFloat).device(at::kMeta));
  const auto values = at::TensorOptions(at::kFloat).device(at::kMeta);
  const at::Tensor types = at::empty({2, 5}, values.dtype(at::kLong)), mask = at::empty({2, 5, 37}, values);
  const at::Tensor atoms = at::empty({2, 5, 37, 3}, values).requires_grad_(true);
  const Torsions torsions = torsions_of(atoms, mask, types, tables);
  const GroupFrames found = frames_of_atoms(atoms, mask, types, tables);
  const at::Tensor places =
      atoms14(group_frames(found.frames.narrow(-1, 0, 1).flatten(1), torsions.sin_cos, types, tables), types, tables);
  EXPECT_EQ(places.sizes(), at::IntArrayRef({2, 5, 14, 3}));
  EXPECT_EQ(torch::autograd::grad({places.sum()}, {atoms})[0].sizes(), atoms.sizes());
  EXPECT_EQ(distance_bins(side_chain_points(atoms, mask, types, tables).positions, kDistogramLimits).sizes(),
            at::IntArrayRef({2, 5, 5}));
}

}  // namespace
}  // namespace colossal::ops::rigid_test
