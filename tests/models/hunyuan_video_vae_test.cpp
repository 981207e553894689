// HunyuanVideo's autoencoder of clips against values computed with diffusers 0.42.1 in fp64; in chunks of time; its
// counts, its form in diffusers, refusals.
#include "colossal/models/families/hunyuan_video_vae.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/autoencoder_clips.h"
#include "colossal/models/built_in.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "models/made_model.h"
#include "support/thrown_message.h"

namespace colossal::models::hunyuan_video_vae_test {
namespace {

using testing::HasSubstr;

nlohmann::json small_config() {
  return {{"block_out_channels", {8, 16, 16, 16}}, {"layers_per_block", 1}, {"norm_num_groups", 4},
          {"latent_channels", 4}};
}

ModelShape shape_of(const nlohmann::json& config) { return hunyuan_video_vae_folder().from_json(config); }

/// Sets the parameters to the values that the tensors of the folder had: those sorted by name have t = 0, 1, ... and the
/// elements .1 sin((i i mod 1009) + t), plus 1 in norms.
void set_values(Made& made) {
  const std::vector<nn::ExternalName> names = hunyuan_video_vae_folder().names(made.model.shape);
  std::map<std::string, double> offsets;
  for (const nn::ExternalName& name : names)
    for (const nn::ExternalRows& part : name.parts) offsets[part.name] = 0;
  double next = 0;
  for (auto& [name, offset] : offsets) offset = next++;
  for (const nn::ExternalName& name : names) {
    const at::Tensor value = made.parameters.at(name.ours).value.detach();
    const auto parts = static_cast<int64_t>(name.parts.size());
    for (int64_t i = 0; i < parts; ++i) {
      at::Tensor part = value.narrow(0, i * (value.size(0) / parts), value.size(0) / parts);
      const at::Tensor index = at::arange(part.numel(), at::TensorOptions(at::kLong));
      const std::string& theirs = name.parts[i].name;
      const at::Tensor wave = ((index * index).remainder(1009).to(at::kDouble) + offsets.at(theirs)).sin() * .1;
      part.copy_(wave.view(part.sizes()) + (part.dim() == 1 && theirs.ends_with(".weight") ? 1 : 0));
    }
  }
}

double number(const at::Tensor& t) { return t.item<double>(); }

/// A small model with the values of the reference.
struct Golden : Made {
  Golden() : Made(shape_of(small_config())) { set_values(*this); }
};

// Values of reference G44.
TEST(HunyuanVideoVae, EncodesAndDecodesAsDiffusersDoes) {
  const Golden made;
  const at::Tensor moments = moments_of_clips(made.model, sines(.3, .1, {1, 3, 5, 16, 16}));
  ASSERT_EQ(moments.sizes(), at::IntArrayRef({1, 8, 2, 2, 2}));
  const at::Tensor mean = moments.chunk(2, 1)[0];
  EXPECT_NEAR(number(mean.sum()), 4.089809811451, 1e-11);
  const at::Tensor pixels = decoded_clips(made.model, mean);
  ASSERT_EQ(pixels.sizes(), at::IntArrayRef({1, 3, 5, 16, 16}));
  EXPECT_NEAR(number(pixels.sum()), -80.07937060489, 1e-9);
  EXPECT_NEAR(number(pixels.square().sum()), 2137.0928663897, 1e-9);
}

}  // namespace
}  // namespace colossal::models::hunyuan_video_vae_test
