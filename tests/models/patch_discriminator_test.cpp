// The discriminator of patches: against a plain second implementation, its sizes, gradients, and refusals.
#include "colossal/models/families/patch_discriminator.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "colossal/models/config.h"
#include "colossal/models/task.h"
#include "colossal/nn/batch_step.h"
#include "models/made_model.h"
#include "support/plain_scores.h"
#include "support/thrown_message.h"

namespace colossal::models::patch_discriminator_test {
namespace {

using testing::HasSubstr;

ModelShape shape_of(const std::vector<std::string>& own = {}) {
  return built_in().resolve({.name = "patch-discriminator-tiny", .own = own_keys(own)});
}

nn::ForwardContext step_of(const at::Tensor& images) {
  using tensor::Dim;
  tensor::Batch batch;
  batch.add("images", {images, {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
  return nn::step_of(batch);
}

at::Tensor scores_of(const Made& made, const at::Tensor& images) {
  return run_stage(made.model, {0, static_cast<int64_t>(made.model.blocks.size())}, {}, step_of(images)).at(0);
}

/// Gives each parameter waves, and returns copies that record gradients.
std::map<std::string, at::Tensor> with_values(Made& made) {
  std::map<std::string, at::Tensor> copies;
  double next = 0;
  for (nn::Parameter& p : made.parameters) {
    p.value.detach().copy_(sines(.7, ++next, p.value.sizes().vec()) * .2 + (p.name.ends_with("norm.weight") ? 1 : 0));
    copies[p.name] = p.value.detach().clone().requires_grad_();
  }
  return copies;
}

TEST(PatchDiscriminator, EqualsItsPlainForm) {
  for (const auto& [depth, groups, height, width] :
       std::vector<std::array<int64_t, 4>>{{2, 8, 12, 17}, {1, 4, 7, 6}, {3, 0, 24, 25}, {2, 1, 13, 12}}) {
    Made made(shape_of({concat("depth=", depth), concat("groups=", groups)}));
    const std::map<std::string, at::Tensor> plain = with_values(made);
    const at::Tensor images = sines(.3, .1, {2, 3, height, width});
    const at::Tensor ours = images.clone().requires_grad_(), theirs = images.clone().requires_grad_();
    const at::Tensor scores = scores_of(made, ours), wanted = test::plain_scores(plain, theirs, depth, groups);
    EXPECT_EQ(scores.sizes(), at::IntArrayRef({2, wanted.size(2) * wanted.size(3), 1}));
    EXPECT_TRUE(at::allclose(scores.flatten(1), wanted.flatten(1), 1e-12, 1e-13)) << depth << ", " << groups;
    scores.square().sum().backward();
    wanted.square().sum().backward();
    EXPECT_TRUE(at::allclose(ours.grad(), theirs.grad(), 1e-11, 1e-13)) << "pictures";
    for (const nn::Parameter& p : made.parameters)
      EXPECT_TRUE(at::allclose(p.value.grad(), plain.at(p.name).grad(), 1e-11, 1e-12)) << p.name;
  }
}

// The counts of taming-transformers have no biases before norms: 64 + 128 + 256 + 512 less.
TEST(PatchDiscriminator, HasTheSizesOfThePaper) {
  const Made made(built_in().resolve({.name = "patch-discriminator"}), /*has_memory=*/false);
  int64_t count = 0;
  for (const nn::Parameter& p : made.parameters) count += p.spec.numel();
  const int64_t convolutions = 16 * (3 * 64 + 64 * 128 + 128 * 256 + 256 * 512 + 512);
  EXPECT_EQ(count, convolutions + 64 + 3 * (128 + 256 + 512) + 1);
  const PatchDiscriminatorSizes sizes;
  EXPECT_EQ(sizes.size_after(2, {256, 256}), (ops::PictureSize{31, 31}));
  EXPECT_EQ(sizes.features_after(5), 512);
  EXPECT_EQ(made.model.shape.task().objective, "");
}

TEST(PatchDiscriminator, DrawsItsWeightsFromANarrowDistribution) {
  Made made(shape_of({"features=64"}));
  EXPECT_NEAR(made.parameters.at("blocks.1.conv.weight").value.std().item<double>(), .02, .001);
}

TEST(PatchDiscriminator, RefusesWhatDoesNotFit) {
  const auto refused = [](const std::vector<std::string>& own) { return test::thrown_message([&] { shape_of(own); }); };
  EXPECT_THAT(refused({"groups=7"}), HasSubstr("groups must divide the features of each block: got 7 and 16"));
  EXPECT_THAT(refused({"depth=0"}), HasSubstr("depth"));
  Made made(shape_of());
  EXPECT_THAT(test::thrown_message([&] { scores_of(made, sines(.3, .1, {1, 3, 11, 40})); }),
              HasSubstr("scores pictures of at least 12 x 12 pixels: got 11 x 40"));
}

}  // namespace
}  // namespace colossal::models::patch_discriminator_test
