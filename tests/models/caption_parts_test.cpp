// What a denoiser reads of captions: states of CLIP and T5, joined, and pads that an encoder does or does not read.
#include "colossal/models/caption_parts.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "colossal/models/config.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/families/t5.h"
#include "colossal/models/text_encoder.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/kv_cache.h"
#include "models/made_model.h"
#include "support/thrown_message.h"

namespace colossal::models::caption_parts_test {
namespace {

using testing::HasSubstr;

ModelShape preset(const std::string& name) { return built_in().resolve({.name = name}); }

/// Returns ids of a caption of three bytes with pads, [1, tokens], and their mask.
std::pair<at::Tensor, at::Tensor> ids_of(const CaptionPart& part, bool begins) {
  std::vector<int64_t> ids{'c', 'a', 't', 257};
  if (begins) ids.insert(ids.begin(), 256);
  const auto length = static_cast<int64_t>(ids.size());
  ids.resize(static_cast<size_t>(part.tokens), 258);
  return {at::tensor(ids, at::kLong).unsqueeze(0),
          at::arange(part.tokens, at::kLong).lt(length).to(at::kLong).unsqueeze(0)};
}

/// Returns what a preset reads of a caption by the presets that belong to it.
std::vector<tensor::Batch> read_by(const DenoiserSizes& sizes) {
  std::vector<tensor::Batch> read;
  for (const CaptionPart& part : sizes.captions) {
    const Made encoder(preset(part.preset));
    const auto [ids, mask] = ids_of(part, text_encoder_of(encoder.model.shape).begins);
    read.push_back(read_caption(part, encoder.model, ids, mask));
  }
  return read;
}

TEST(CaptionParts, GiveWhatEachPresetReads) {
  const at::NoGradGuard no_grad;
  for (const char* name : {"sd-1.5-tiny", "sdxl-tiny", "sd3-tiny", "flux-tiny", "stdit3-tiny"}) {
    const DenoiserSizes sizes = denoiser_of(preset(name));
    const tensor::Batch told = joined_captions(sizes, read_by(sizes));
    EXPECT_EQ(told.at("text").sizes(), at::IntArrayRef({1, sizes.text_tokens, sizes.text})) << name;
    EXPECT_EQ(told.find("pooled").defined(), sizes.pooled > 0) << name;
    if (sizes.pooled > 0) {
      EXPECT_EQ(told.at("pooled").sizes(), at::IntArrayRef({1, sizes.pooled})) << name;
    }
    EXPECT_EQ(told.find("text_mask").defined(), sizes.masks_text) << name;
  }
}

// Stable Diffusion 3: features of both CLIPs, zeros, and then the tokens of T5 or zeros in their place.
TEST(CaptionParts, FollowEachOtherAsFeaturesAndAsTokens) {
  const at::NoGradGuard no_grad;
  DenoiserSizes sizes = denoiser_of(preset("sd3-tiny"));
  const std::vector<tensor::Batch> read = read_by(sizes);
  const tensor::Batch told = joined_captions(sizes, read);
  const at::Tensor clip = told.at("text").narrow(1, 0, 77);
  EXPECT_TRUE(clip.narrow(2, 0, 32).equal(read[0].at("text")));
  EXPECT_TRUE(clip.narrow(2, 32, 32).equal(read[1].at("text")));
  EXPECT_TRUE(told.at("text").narrow(1, 77, 51).equal(read[2].at("text")));
  EXPECT_TRUE(told.at("pooled").narrow(1, 24, 24).equal(read[1].at("pooled")));
  sizes.captions.pop_back();
  sizes.zero_tokens = 51;
  const tensor::Batch without = joined_captions(sizes, {read[0], read[1]});
  EXPECT_TRUE(without.at("text").narrow(1, 0, 77).equal(clip));
  EXPECT_EQ(without.at("text").narrow(1, 77, 51).abs().max().item<double>(), 0);
  sizes.text = 70;
  const at::Tensor wide = joined_captions(sizes, {read[0], read[1]}).at("text");
  EXPECT_EQ(wide.narrow(2, 64, 6).abs().max().item<double>(), 0);
  EXPECT_THAT(test::thrown_message([&] { joined_captions(sizes, {read[0]}); }), HasSubstr("2 text encoders: got 1"));
}

TEST(CaptionParts, TakeTheLastBlockOutOfHiddenStatesAlone) {
  const at::NoGradGuard no_grad;
  const Made clip(preset("clip-text-tiny"));
  CaptionPart part{.states = CaptionStates::Hidden};
  const auto [ids, mask] = ids_of(part, true);
  EXPECT_TRUE(read_caption(part, clip.model, ids, mask).at("text").equal(hidden_before_norm(clip.model, ids, 1)));
  const auto refusal = [&](int64_t skip) {
    return test::thrown_message([&] { read_caption(part, clip.model, ids, mask, skip); });
  };
  EXPECT_THAT(refusal(1), HasSubstr("clip_skip must be 0 to 0, because one of the 2 blocks")) << "one is left out";
  part.states = CaptionStates::Normed;
  EXPECT_EQ(refusal(1), "");
  EXPECT_THAT(refusal(2),
              HasSubstr("clip_skip must be 0 to 1, because one of the 2 blocks of the text encoder stays:"));
  EXPECT_TRUE(read_caption(part, clip.model, ids, mask).at("text").equal(text_states(clip.model, ids)));
  part.states = CaptionStates::None;
  part.pooled = true;
  const tensor::Batch pooled = read_caption(part, clip.model, ids, mask);
  EXPECT_FALSE(pooled.find("text").defined());
  EXPECT_TRUE(pooled.at("pooled").equal(text_states(clip.model, ids).select(1, 4))) << "the end token";
}

// FLUX and Stable Diffusion 3 read T5's states with pads, as transformers computes them without a mask.
TEST(CaptionParts, ReadPadsOfT5UnlessTheyAreMasked) {
  const at::NoGradGuard no_grad;
  const Made t5(preset("t5-encoder-tiny"));
  CaptionPart part{.tokens = 9};
  const auto [ids, mask] = ids_of(part, false);
  const at::Tensor alone = text_states(t5.model, ids.narrow(1, 0, 4));
  const auto states = [&] { return read_caption(part, t5.model, ids, mask).at("text").narrow(1, 0, 4); };
  EXPECT_FALSE(at::allclose(states(), alone, 1e-3, 1e-3));
  part.is_masked = true;
  EXPECT_TRUE(at::allclose(states(), alone, 1e-12, 1e-12));
  EXPECT_TRUE(read_caption(part, t5.model, ids, mask).at("text_mask").equal(mask));
  EXPECT_TRUE(read_caption(part, t5.model, ids, mask, /*clip_skip=*/1).at("text").narrow(1, 0, 4).equal(states()));
  EXPECT_THAT(test::thrown_message([&] { pooled_state(t5.model, ids); }), HasSubstr("which pools no token"));
}

// The encoder alone computes what the first blocks of a whole T5 compute.
TEST(CaptionParts, EqualTheEncoderOfAWholeT5) {
  const at::NoGradGuard no_grad;
  ModelShape whole = preset("t5-encoder-tiny");
  auto own = whole.own.as<T5Sizes>();
  own.encoder_only = false;
  own.decoder_layers = whole.layers;
  whole.own = own;
  whole.layers *= 2;
  Made both(whole), t5(preset("t5-encoder-tiny"));
  for (const nn::Parameter& p : t5.parameters.declared()) {
    const std::string name = p.name == "norm.weight" ? "blocks.1.encoder_norm.weight" : p.name;
    at::Tensor value = p.value;
    value.copy_(both.parameters.at(name).value);
    if (name != p.name) value.mul_(2), both.parameters.at(name).value.mul_(2);  // a norm of its own
  }
  const at::Tensor ids = at::tensor({3, 200, 257, 5}, at::kLong).unsqueeze(0);
  const nn::ForwardContext step = nn::step_of(nn::token_batch(ids), {.parts = {nn::SourceTokens{4}}});
  EXPECT_TRUE(text_states(t5.model, ids).equal(run_stage(both.model, {.last = 2, .ends = false}, {}, step)[1]));
}

}  // namespace
}  // namespace colossal::models::caption_parts_test
