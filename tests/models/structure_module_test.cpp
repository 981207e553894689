// Invariant point attention and the structure module against golden values of transformers and OpenFold in fp64.
#include "colossal/models/folding/structure_module.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "colossal/nn/serial_layers.h"
#include "colossal/ops/geometry/residues.h"
#include "colossal/tensor/flops.h"
#include "support/few_residues.h"

namespace colossal::models::structure_module_test {
namespace {

using test::cosines;
using test::signature;

constexpr StructureSizes kSizes{
    .points = {.single = 6, .pair = 5, .heads = 2, .head_dim = 4, .query_points = 2, .value_points = 3},
    .layers = 2,
    .angle_hidden = 7};

void expect_values(const at::Tensor& got, const std::vector<double>& want) {
  ASSERT_EQ(got.numel(), static_cast<int64_t>(want.size()));
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got.flatten()[static_cast<int64_t>(i)].item<double>(), want[i], 2e-12) << i;
}

/// A structure module in fp64 with the weights of the golden values, which count tensors in the order of transformers.
struct Made {
  explicit Made(const StructureSizes& sizes = kSizes, nn::Parameters::Options options = {.dtype = at::kDouble})
      : parameters({}, std::move(options)), make(parameters), module("m", sizes, make) {
    if (parameters.options().device.is_meta()) return;
    const at::NoGradGuard no_grad;
    double t = 0;
    const auto set = [&](const std::string& name, bool is_norm) {
      at::Tensor value = parameters.at(name).value;
      const at::Tensor n = at::arange(value.numel(), at::kDouble).view(value.sizes());
      value.copy_(.2 * (.7 * n + ++t).sin() + (is_norm ? 1. : 0.));
    };
    const auto pair = [&](const std::string& name, bool is_norm = false) {
      set("m." + name + ".weight", is_norm);
      set("m." + name + ".bias", false);
    };
    pair("norm_s", true), pair("norm_z", true), pair("in");
    set("m.points.head_weights", false);
    for (const char* name : {"q", "kv", "q_points", "kv_points", "bias", "out"}) pair(std::string("points.") + name);
    pair("norm_points", true);
    for (const char* name : {"0", "1", "2"}) pair(std::string("transition.0.") + name);
    pair("norm_transition", true), pair("update");
    for (const char* name : {"in", "initial", "blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down", "out"})
      pair(std::string("angles.") + name);
  }
  nn::Parameters parameters;
  nn::SerialLayers make;
  StructureModule module;
};

at::Tensor given_s() { return cosines(.23, {1, 4, 6}); }
at::Tensor given_z() { return cosines(.37, {1, 4, 4, 5}); }
at::Tensor no_padding() { return at::ones({1, 4}, at::kDouble); }

ops::Rigid given_frames(const at::Tensor& t) {
  const at::Tensor i = at::arange(4, at::kDouble), one = at::ones_like(i);
  const at::Tensor q = at::stack({one, .1 * i, -.2 * one, .3 * i}, -1).unsqueeze(0);
  return {ops::rotation_of_quaternion(q / ops::squared_norm(q).sqrt().unsqueeze(-1)), t};
}

TEST(PointAttention, HasTheValuesOfTransformers) {
  const Made made;
  const at::Tensor s = given_s().requires_grad_(true), z = given_z().requires_grad_(true);
  const at::Tensor t = (2 * cosines(.9, {1, 4, 3})).requires_grad_(true);
  const at::Tensor sum = signature(made.module.points().forward(s, {.values = z}, given_frames(t), no_padding()));
  expect_values(sum, {.983748613223});
  const auto gradients = torch::autograd::grad({sum}, {s, z, t});
  expect_values(signature(gradients[0]), {.06120950557664});
  expect_values(signature(gradients[1]), {-.04806461245693});
  expect_values(signature(gradients[2]), {-.024326423837});
}

TEST(PointAttention, DoesNotChangeWithTheMotionOfAllFrames) {
  const Made made;
  const ops::Rigid frames = given_frames(2 * cosines(.9, {1, 4, 3}));
  const ops::Rigid motion = given_frames(5 * cosines(.4, {1, 4, 3})).narrow(-1, 2, 1);
  const auto out = [&](const ops::Rigid& f) {
    return made.module.points().forward(given_s(), {.values = given_z()}, f, no_padding());
  };
  EXPECT_LT((out(frames) - out(motion.compose(frames))).abs().max().item<double>(), 1e-12);
}

TEST(PointAttention, AttendsToNoPadding) {
  const Made made;
  const ops::Rigid frames = given_frames(2 * cosines(.9, {1, 4, 3}));
  at::Tensor mask = no_padding();
  mask[0][3] = 0;
  const at::Tensor all = made.module.points().forward(given_s(), {.values = given_z()}, frames, mask);
  const at::Tensor few =
      made.module.points().forward(given_s().narrow(1, 0, 3), {.values = given_z().narrow(1, 0, 3).narrow(2, 0, 3)},
                                   frames.narrow(-1, 0, 3), mask.narrow(1, 0, 3));
  EXPECT_LT((all.narrow(1, 0, 3) - few).abs().max().item<double>(), 1e-14);
}

/// Returns the places of atoms after a layer.
at::Tensor places_after(const StructureLayer& layer) {
  const ops::ResidueTables tables = test::few_residues();
  const at::Tensor types = test::types_of("ARGP").unsqueeze(0);
  return ops::atoms14(ops::group_frames(layer.frames.rigid(), layer.angles, types, tables), types, tables);
}

TEST(StructureModule, HasTheValuesOfTransformers) {
  const Made made;
  const at::Tensor s = given_s().requires_grad_(true), z = given_z().requires_grad_(true);
  const std::vector<StructureLayer> layers = made.module.forward(s, z, no_padding(), {});
  ASSERT_EQ(layers.size(), 2);
  std::vector<at::Tensor> places, frames;
  for (const StructureLayer& layer : layers) {
    places.push_back(places_after(layer));
    frames.push_back(at::cat({layer.frames.quaternion, layer.frames.translation}, -1));
  }
  expect_values(signature(places.back()), {4.042642617898});
  expect_values(signature(at::stack(frames)), {.8300920258937});
  expect_values(places.back()[0][1][1], {7.397219026811, 1.206827801548, -.9018841263625});
  const auto gradients = torch::autograd::grad({signature(at::stack(places))}, {s, z});
  expect_values(signature(gradients[0]), {-.3144037748424});
  expect_values(signature(gradients[1]), {-.3317107839333});
}

TEST(StructureModule, FoldsChainsOfABatchAsAlone) {
  const Made made;
  const at::Tensor s = cosines(.23, {3, 4, 6}), z = cosines(.37, {3, 4, 4, 5});
  at::Tensor mask = at::ones({3, 4}, at::kDouble);
  mask[1][3] = 0;
  const auto folded = [&](const at::Tensor& own_s, const at::Tensor& own_z, const at::Tensor& own_mask) {
    const StructureLayer last = made.module.forward(own_s, own_z, own_mask, {}).back();
    return at::cat({last.frames.translation, last.angles.flatten(2)}, -1);
  };
  const at::Tensor all = folded(s, z, mask);
  for (int64_t b = 0; b < 3; ++b) {
    const at::Tensor alone = folded(s.narrow(0, b, 1), z.narrow(0, b, 1), mask.narrow(0, b, 1));
    EXPECT_LT((all.narrow(0, b, 1) - alone).abs().max().item<double>(), 1e-13) << b;
  }
}

TEST(StructureModule, GivesTheSameByRowsWithoutGradients) {
  Made made;
  const auto places = [&] { return places_after(made.module.forward(given_s(), given_z(), no_padding(), {}).back()); };
  const at::Tensor whole = places();
  const at::NoGradGuard no_grad;
  EXPECT_LT((places() - whole).abs().max().item<double>(), 1e-13);
  // Rows of so many features that a slice has fewer than all of them.
  StructureSizes sizes = kSizes;
  sizes.points.pair = 128;
  const Made wide(sizes);
  const at::Tensor s = cosines(.23, {1, 190, 6}), z = cosines(.37, {1, 190, 190, 128});
  const at::Tensor mask = at::ones({1, 190}, at::kDouble);
  const ops::Rigid frames = ops::Rigid::identity({1, 190}, at::kDouble);
  const auto attended = [&] { return wide.module.points().forward(s, {.values = z}, frames, mask); };
  const at::Tensor sliced = attended();
  const at::AutoGradMode with_gradients(true);
  EXPECT_LT((sliced - attended().detach()).abs().max().item<double>(), 1e-12);
}

TEST(StructureModule, HasFrames32BitsWideInNarrowModels) {
  nn::Parameters parameters({}, {.dtype = at::kBFloat16});
  nn::SerialLayers make(parameters);
  const StructureModule module("m", kSizes, make);
  const StructureLayer last =
      module.forward(given_s().to(at::kBFloat16), given_z().to(at::kBFloat16), no_padding(), {}).back();
  EXPECT_EQ(last.s.scalar_type(), at::kBFloat16);
  EXPECT_EQ(last.frames.translation.scalar_type(), at::kFloat);
  EXPECT_EQ(last.angles.scalar_type(), at::kFloat);
}

TEST(StructureModule, DropsOtherElementsInEachLayer) {
  StructureSizes sizes = kSizes;
  sizes.dropout = .5;
  const Made made(sizes);
  const auto layers = [&](uint64_t seed) {
    nn::ForwardContext step{.training = true, .dropout_seed = seed};
    return made.module.forward(given_s(), given_z(), no_padding(), step).back().s;
  };
  EXPECT_TRUE(layers(1).equal(layers(1)));
  EXPECT_FALSE(layers(1).equal(layers(2)));
}

/// Returns which elements equal another one of their residue.
at::Tensor repeated(const at::Tensor& s) { return s.unsqueeze(-1).eq(s.unsqueeze(-2)).sum(-1).gt(1); }

TEST(StructureModule, DrawsMasksOfEachLayer) {
  StructureSizes sizes = kSizes;
  sizes.dropout = .5;
  nn::Parameters parameters({}, {.dtype = at::kDouble});  // as drawn, branches are 0 and norms keep equal values equal
  nn::SerialLayers make(parameters);
  const StructureModule module("m", sizes, make);
  const std::vector<StructureLayer> layers =
      module.forward(given_s(), given_z(), no_padding(), {.training = true, .dropout_seed = 1});
  EXPECT_TRUE(repeated(layers[0].s).any().item<bool>());
  EXPECT_FALSE(repeated(layers[0].s).equal(repeated(layers[1].s)));
}

TEST(StructureModule, HasAsManyParametersAsPublished) {
  const Made made({}, {.dtype = at::kFloat, .device = at::kMeta});
  int64_t count = 0;
  for (const nn::Parameter& p : made.parameters) count += p.value.numel();
  EXPECT_EQ(count, 2'019'116);
}

// Steps are recorded on shapes alone, forward and backward.
TEST(StructureModule, HasShapesOnMeta) {
  const Made made(kSizes, {.dtype = at::kFloat, .device = at::kMeta});
  const auto meta = at::TensorOptions(at::kFloat).device(at::kMeta);
  const at::Tensor s = at::empty({2, 4, 6}, meta).requires_grad_(true), mask = at::empty({2, 4}, meta);
  const tensor::FlopCount count;
  const StructureLayer last = made.module.forward(s, at::empty({2, 4, 4, 5}, meta), mask, {}).back();
  EXPECT_GT(count.total(), 0);
  EXPECT_EQ(last.angles.sizes(), at::IntArrayRef({2, 4, 7, 2}));
  const at::Tensor sum = last.frames.translation.sum() + last.angles.sum();
  EXPECT_EQ(torch::autograd::grad({sum}, {s})[0].sizes(), s.sizes());
}

}  // namespace
}  // namespace colossal::models::structure_module_test
