// The moments of clips that runs encode.
#include "colossal/diffusion/clip_moments.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/memory/account.h"
#include "colossal/models/autoencoder_clips.h"
#include "colossal/models/built_in.h"
#include "colossal/models/config.h"
#include "colossal/nn/serial_layers.h"

namespace colossal::diffusion::clip_moments_test {
namespace {

at::Tensor in_parts(const models::Model& model, const at::Tensor& clip) { return encoded_moments(model, clip); }

TEST(ClipMoments, NeedTheMemoryOfAFewFrames) {
  nn::Parameters parameters({}, {.device = at::kMeta, .without_memory = true});
  nn::SerialLayers layers(parameters);
  const models::Model model = make_model(models::built_in().resolve({.name = "open-sora-vae-1.2"}), layers);
  const at::Tensor clip = at::empty({1, 3, 17, 64, 64}, at::TensorOptions(at::kFloat).device(at::kMeta));
  at::Tensor moments;
  const auto peak = [&](const auto& encode) {
    const memory::Account account(memory::Counted::Shapes);
    moments = encode(model, clip);
    return account.usage().peak_total;
  };
  const int64_t whole = peak(models::moments_of_clips);
  EXPECT_LT(2 * peak(in_parts), whole);
  EXPECT_EQ(moments.sizes(), at::IntArrayRef({1, 8, 5, 8, 8}));
}

TEST(ClipMoments, NeedNoMemoryOfAWholeClip) {
  nn::Parameters parameters({}, {.device = at::kMeta, .without_memory = true});
  nn::SerialLayers layers(parameters);
  const models::Model model = make_model(models::built_in().resolve({.name = "hunyuan-video-vae"}), layers);
  const auto peak = [&](int64_t frames, const auto& encode) {
    const at::Tensor clip = at::empty({1, 3, frames, 128, 256}, at::TensorOptions(at::kFloat).device(at::kMeta));
    const memory::Account account(memory::Counted::Shapes);
    const at::Tensor moments = encode(model, clip);
    EXPECT_EQ(moments.sizes(), at::IntArrayRef({1, 32, (frames - 1) / 4 + 1, 16, 32}));
    return account.usage().peak_total;
  };
  EXPECT_EQ(peak(9, in_parts), peak(9, models::moments_of_clips)) << "a short clip has one pass";
  EXPECT_LT(2 * peak(65, in_parts), peak(65, models::moments_of_clips));
}

}  // namespace
}  // namespace colossal::diffusion::clip_moments_test
