// HunyuanVideo's autoencoder of clips against values computed with diffusers 0.42.1 in fp64; in chunks of time; its
// counts, its form in diffusers, refusals.
#include "colossal/models/families/hunyuan_video_vae.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <tuple>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/memory/account.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/autoencoder_clips.h"
#include "colossal/models/built_in.h"
#include "colossal/models/clip_sizes.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/serial_layers.h"
#include "models/made_model.h"
#include "support/thrown_message.h"

namespace colossal::models::hunyuan_video_vae_test {
namespace {

using testing::HasSubstr;

nlohmann::json small_config() {
  return {
      {"block_out_channels", {8, 16, 16, 16}}, {"layers_per_block", 1}, {"norm_num_groups", 4}, {"latent_channels", 4}};
}

ModelShape shape_of(const nlohmann::json& config) { return hunyuan_video_vae_folder().from_json(config); }

/// Sets the parameters to the values that the tensors of the folder had: those sorted by name have t = 0, 1, ... and
/// the elements .1 sin((i i mod 1009) + t), plus 1 in norms.
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

/// Returns what the chunks of `run` are joined to, after a check of their frames.
at::Tensor joined(const std::vector<int64_t>& frames, const std::function<void(const FrameTaker&)>& run) {
  std::vector<at::Tensor> chunks;
  std::vector<int64_t> counts;
  run([&](const at::Tensor& some) {
    chunks.push_back(some);
    counts.push_back(some.size(2));
  });
  EXPECT_EQ(counts, frames);
  return at::cat(chunks, 2);
}

TEST(HunyuanVideoVae, ReadsClipsInChunksAsWhole) {
  const Golden made;
  const at::Tensor pixels = sines(.3, .1, {1, 3, 9, 8, 16});
  const at::Tensor moments = moments_of_clips(made.model, pixels), latents = moments.narrow(1, 0, 4);
  const at::Tensor clips = decoded_clips(made.model, latents);
  const FrameReader read = [&](int64_t first, int64_t count) { return pixels.narrow(2, first, count); };
  using Frames = std::vector<int64_t>;
  for (const auto& [stored, at_once] : {std::pair{int64_t{0}, 1}, {int64_t{4000}, 2}, {int64_t{1} << 30, 1}}) {
    SCOPED_TRACE(testing::Message() << stored << " bytes, latent frames at once: " << at_once);
    const ChunkOptions options{.latent_frames = at_once, .stored_bytes = stored};
    const at::Tensor own = joined(at_once == 1 ? Frames{1, 1, 1} : Frames{2, 1}, [&](const FrameTaker& take) {
      encode_in_chunks(made.model, 9, read, take, options);
    });
    EXPECT_LT(number((own - moments).abs().max()), 1e-12);
    const at::Tensor drawn = joined(at_once == 1 ? Frames{1, 4, 4} : Frames{5, 4}, [&](const FrameTaker& take) {
      decode_in_chunks(made.model, latents, take, 0, options);
    });
    EXPECT_LT(number((drawn - clips).abs().max()), 1e-11);
  }
}

TEST(HunyuanVideoVae, ReadsLargeFramesOneByOneAndByRows) {
  const Golden made;
  const at::Tensor pixels = sines(.3, .1, {1, 3, 9, 16, 24});
  const at::Tensor moments = moments_of_clips(made.model, pixels), latents = moments.narrow(1, 0, 4);
  const at::Tensor clips = decoded_clips(made.model, latents);
  const FrameReader read = [&](int64_t first, int64_t count) { return pixels.narrow(2, first, count); };
  for (const auto& [stored, state, band] : {std::tuple{0, 1, 1}, {1 << 30, 3000, 1000}, {0, 1 << 26, 700}}) {
    SCOPED_TRACE(testing::Message() << stored << " bytes, elements of states " << state << ", of bands " << band);
    const ChunkOptions options{
        .latent_frames = 2, .state_elements = state, .band_elements = band, .stored_bytes = stored};
    std::vector<at::Tensor> own, drawn;
    encode_in_chunks(made.model, 9, read, [&](const at::Tensor& some) { own.push_back(some); }, options);
    EXPECT_LT(number((at::cat(own, 2) - moments).abs().max()), 1e-12);
    decode_in_chunks(made.model, latents, [&](const at::Tensor& some) { drawn.push_back(some); }, 0, options);
    EXPECT_EQ(drawn.size(), state == 1 ? 9U : drawn.size());
    EXPECT_LT(number((at::cat(drawn, 2) - clips).abs().max()), 1e-11);
  }
}

/// The tensors of a clip, from sizes alone; latents and pixels are the caller's. Only the keys and values of the cells
/// grow with the frames.
TEST(HunyuanVideoVae, NeedsLittleMoreMemoryForMoreFrames) {
  nn::Parameters parameters({}, {.device = at::kMeta, .without_memory = true});
  nn::SerialLayers layers(parameters);
  const Model model = make_model(built_in().resolve({.name = "hunyuan-video-vae"}), layers);
  const at::TensorOptions meta = at::TensorOptions(at::kFloat).device(at::kMeta);
  const auto peaks = [&](int64_t frames, const ChunkOptions& options) {
    const at::Tensor latents = at::empty({1, 16, (frames - 1) / 4 + 1, 32, 48}, meta);
    const FrameReader read = [&](int64_t, int64_t count) { return at::empty({1, 3, count, 256, 384}, meta); };
    const auto peak = [&](const auto& work) {
      const memory::Account account(memory::Counted::Shapes);
      work();
      return account.usage().peak_total;
    };
    const FrameTaker drop = [](const at::Tensor&) {};
    return std::pair{peak([&] { encode_in_chunks(model, frames, read, drop, options); }),
                     peak([&] { decode_in_chunks(model, latents, drop, frames, options); })};
  };
  constexpr int64_t kMiB = int64_t{1} << 20, kLargest = 1 << 22;
  const ChunkOptions nothing{.stored_bytes = 0};
  const auto [encoding, decoding] = peaks(17, nothing);
  const auto [more_encoding, more_decoding] = peaks(33, nothing);
  const int64_t keys = 4 * 32 * 48 * 2 * 512 * 4;  // of four more frames
  EXPECT_LE(more_encoding, encoding + 4 * keys);
  EXPECT_LE(more_decoding, decoding + 4 * keys);
  const auto [whole_encoding, whole_decoding] =
      peaks(17, {.state_elements = int64_t{1} << 40, .band_elements = int64_t{1} << 40, .stored_bytes = 0});
  const auto [part_encoding, part_decoding] = peaks(17, {.state_elements = kLargest, .stored_bytes = 0});
  EXPECT_LT(4 * part_encoding, 3 * whole_encoding)
      << part_encoding / kMiB << " and " << whole_encoding / kMiB << " MiB";
  EXPECT_LT(4 * part_decoding, 3 * whole_decoding)
      << part_decoding / kMiB << " and " << whole_decoding / kMiB << " MiB";
}

TEST(HunyuanVideoVae, TakesPicturesAsClipsOfOneFrame) {
  const Golden made;
  const at::Tensor pictures = sines(.3, .1, {2, 3, 16, 8});
  const at::Tensor moments = moments_of_clips(made.model, pictures.unsqueeze(2));
  EXPECT_LT(number((moments_of(made.model, pictures) - moments.squeeze(2)).abs().max()), 1e-13);
  const at::Tensor latents = moments.narrow(1, 0, 4);
  EXPECT_LT(
      number((decoded(made.model, latents.squeeze(2)) - decoded_clips(made.model, latents).squeeze(2)).abs().max()),
      1e-12);
}

TEST(HunyuanVideoVae, ReconstructsFromTheDrawnLatentWithGradients) {
  using tensor::Dim;
  const Golden made;
  const std::vector<Dim> dims{Dim::Row, Dim::Other, Dim::Other, Dim::Other, Dim::Other};
  const at::Tensor clips = sines(.3, .1, {1, 3, 5, 8, 8}), noise = sines(.7, .2, {1, 4, 2, 1, 1});
  tensor::Batch batch;
  batch.add("images", {clips, dims});
  batch.add("noise", {noise, dims});
  const Stage all{0, static_cast<int64_t>(made.model.blocks.size())};
  const nn::ForwardContext step = nn::step_of(batch);
  const auto loss = [&] {
    const States end = run_stage(made.model, all, {}, step);
    return (end[0] - as_clip_pixels(clips).flatten(1, 2)).square().mean() + end[1].square().mean();
  };
  const States end = run_stage(made.model, all, {}, step);
  const std::vector<at::Tensor> both = moments_of_clips(made.model, clips).chunk(2, 1);
  const at::Tensor want = decoded_clips(made.model, both[0] + (both[1] / 2).exp() * noise);
  EXPECT_LT(number((reconstructed_clips(end[0], {5, {8, 8}}) - want).abs().max()), 1e-12);
  for (int64_t block = -1; block < static_cast<int64_t>(made.model.blocks.size()); ++block)
    check_sizes(made.model, run_stage(made.model, {0, block + 1, true, false}, {}, step), step, block);

  loss().backward();
  constexpr double kStep = 1e-6;
  for (const char* name : {"input.weight", "blocks.0.conv_2.weight", "blocks.1.conv.bias", "head.weight"}) {
    nn::Parameter& parameter = const_cast<nn::Parameters&>(made.parameters).at(name);
    const at::NoGradGuard no_grad;
    const at::Tensor element = parameter.value.view(-1)[1];
    const double before = number(element);
    const auto at_value = [&](double value) {
      element.fill_(value);
      return number(loss());
    };
    const double difference = (at_value(before + kStep) - at_value(before - kStep)) / (2 * kStep);
    element.fill_(before);
    EXPECT_NEAR(number(parameter.value.grad().view(-1)[1]), difference, 1e-6 * std::max(1.0, std::abs(difference)))
        << name;
  }
}

TEST(HunyuanVideoVae, RefusesLengthsThatItCannotMake) {
  const AutoencoderSizes sizes = autoencoder_of(built_in().resolve({.name = "hunyuan-video-vae"}));
  EXPECT_EQ(latent_frames(sizes, 1), 1);
  EXPECT_EQ(latent_frames(sizes, 129), 33);
  EXPECT_EQ(pixel_frames(sizes, 33), 129);
  const auto refused = [&](int64_t frames) { return test::thrown_message([&] { latent_frames(sizes, frames); }); };
  EXPECT_THAT(refused(4), HasSubstr("clips of 4 k + 1 frames: got 4; nearest: 5"));
  EXPECT_THAT(refused(6), HasSubstr("got 6; nearest: 5"));
  EXPECT_THAT(refused(0), HasSubstr("at least one frame: got 0"));
  const Golden made;
  EXPECT_THAT(test::thrown_message([&] { decoded_clips(made.model, sines(.3, .1, {1, 4, 2, 2, 2}), 9); }),
              HasSubstr("as many frames as it stands for: got 9; such a number is 5"));
  EXPECT_THAT(test::thrown_message([&] { decoded_clips(made.model, sines(.3, .1, {1, 3, 2, 2, 2})); }),
              HasSubstr("latents of clips must be [B, 4, t, h, w]"));
  EXPECT_THAT(test::thrown_message([&] { moments_of_clips(made.model, sines(.3, .1, {1, 3, 5, 7, 8})); }),
              HasSubstr("at least 8 x 8 pixels"));
}

TEST(HunyuanVideoVae, HasTheParametersOfTheOriginal) {
  const Made made(built_in().resolve({.name = "hunyuan-video-vae"}), /*has_memory=*/false);
  EXPECT_EQ(made.parameters.numel(), 246'478'803);
}

TEST(HunyuanVideoVae, WritesTheConfigThatItReads) {
  const ModelShape shape = shape_of(small_config());
  const nlohmann::json j = hunyuan_video_vae_folder().to_json(shape);
  EXPECT_EQ(j["_class_name"], "AutoencoderKLHunyuanVideo");
  EXPECT_EQ(shape_of(j), shape);
  EXPECT_EQ(shape_of(nlohmann::json::object()).own.as<HunyuanVideoVaeSizes>().scaling, 0.476986);
  EXPECT_EQ(built_in().shape_of(j).architecture->name, "hunyuan_video_vae");
}

TEST(HunyuanVideoVae, RefusesConfigsWithWhichItComputesOtherNumbers) {
  const auto refused = [](const char* key, const nlohmann::json& value) {
    nlohmann::json j = small_config();
    j[key] = value;
    return test::thrown_message([&] { shape_of(j); });
  };
  EXPECT_EQ(refused("_name_or_path", "x"), "");
  EXPECT_THAT(refused("act_fn", "gelu"), HasSubstr("act_fn"));
  EXPECT_THAT(refused("temporal_compression_ratio", 8), HasSubstr("temporal_compression_ratio"));
  EXPECT_THAT(refused("spatial_compression_ratio", 6), HasSubstr("factor must be a power of 2: got 6"));
  EXPECT_THAT(refused("spatial_compression_ratio", 16), HasSubstr("5 to 16 levels"));
  EXPECT_THAT(refused("out_channels", 4), HasSubstr("out_channels must be in_channels: got 4 and 3"));
  EXPECT_THAT(refused("norm_num_groups", 5), HasSubstr("groups must divide the features of each level"));
  EXPECT_THAT(refused("double_z", false), HasSubstr("got double_z = false"));
  const auto of_preset = [](const std::string& key) {
    return test::thrown_message(
        [&] { built_in().resolve({.name = "hunyuan-video-vae-tiny", .own = own_keys({key})}); });
  };
  EXPECT_THAT(of_preset("frames=7"), HasSubstr("frames must be 4 k + 1: got 7; nearest: 9"));
  EXPECT_THAT(of_preset("width=18"), HasSubstr("width must be divisible by 4"));
}

}  // namespace
}  // namespace colossal::models::hunyuan_video_vae_test
