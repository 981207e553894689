// Open-Sora 1.2's autoencoder of clips against a second implementation in the order of dimensions of its folder; in
// chunks of frames; its counts, its folder, refusals.
#include "colossal/models/families/open_sora_vae.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/memory/account.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/autoencoder_clips.h"
#include "colossal/models/autoencoder_kl_rows.h"
#include "colossal/models/built_in.h"
#include "colossal/models/clip_sizes.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/serial_layers.h"
#include "models/made_model.h"
#include "support/thrown_message.h"

namespace colossal::models::open_sora_vae_test {
namespace {

using testing::HasSubstr;

double number(const at::Tensor& t) { return t.item<double>(); }
double apart(const at::Tensor& a, const at::Tensor& b) { return number((a - b).abs().max()); }

/// A tiny model whose parameters are sines, and its tensors by their names in the folder.
struct Small : Made {
  Small() : Made(built_in().resolve({.name = "open-sora-vae-tiny"})) {
    double offset = 0;
    for (const nn::ExternalName& name : open_sora_vae_folder().names(model.shape)) {
      if (name.ours == "shift" || name.ours == "scale") continue;
      const at::Tensor value = parameters.at(name.ours).value.detach();
      const int64_t parts = static_cast<int64_t>(name.parts.size()), rows = value.size(0) / parts;
      const bool is_scale = value.dim() == 1 && name.ours.ends_with(".weight");
      value.copy_(sines(1.7, offset += 1, value.sizes().vec()) * .2 + (is_scale ? 1 : 0));
      for (int64_t i = 0; i < parts; ++i) tensors[name.parts[i].name] = value.narrow(0, i * rows, rows);
    }
  }
  std::map<std::string, at::Tensor> tensors;
};

/// The autoencoder as Open-Sora computes it, [B, C, T, H, W].
class Plain {
 public:
  explicit Plain(std::map<std::string, at::Tensor> tensors) : tensors_(std::move(tensors)) {}

  /// Encodes one chunk.
  at::Tensor moments(const at::Tensor& clip) const {
    at::Tensor x = by_frame(clip, [&](const at::Tensor& frames) { return mean_of_frames(frames) * .18215; });
    x = at::constant_pad_nd(x, {0, 0, 0, 0, (4 - x.size(2) % 4) % 4, 0});
    const std::string e = "temporal_vae.encoder.";
    x = in_time(x, e + "conv_in");
    for (int level = 0; level < 3; ++level) {
      x = time_resnet(x, concat(e, "block_res_blocks.", level, ".0"));
      if (level < 2) x = in_time(x, concat(e, "conv_blocks.", level), 2);
    }
    x = time_resnet(x, e + "res_blocks.0");
    x = in_time(at::silu(norm(x, e + "norm1", 1e-5)), e + "conv2");
    return in_time(x, "temporal_vae.quant_conv");
  }

  /// Decodes one chunk to so many frames.
  at::Tensor decoded(const at::Tensor& latents, int64_t frames) const {
    const std::string d = "temporal_vae.decoder.";
    at::Tensor x = in_time(in_time(latents, "temporal_vae.post_quant_conv"), d + "conv1");
    x = time_resnet(x, d + "res_blocks.0");
    for (int level = 2; level >= 0; --level) {
      x = time_resnet(x, concat(d, "block_res_blocks.", level, ".0"));
      if (level == 0) continue;
      x = in_time(x, concat(d, "conv_blocks.", level - 1));
      const at::Tensor pairs = x.view({x.size(0), x.size(1) / 2, 2, x.size(2), x.size(3), x.size(4)});
      x = at::stack({pairs.select(2, 0), pairs.select(2, 1)}, 3).flatten(2, 3);
    }
    x = in_time(at::silu(norm(x, d + "norm1", 1e-5)), d + "conv_out");
    x = x.narrow(2, x.size(2) - frames, frames);
    return by_frame(x, [&](const at::Tensor& z) { return frames_of_latents(z / .18215); });
  }

 private:
  using OfFrames = std::function<at::Tensor(const at::Tensor&)>;
  static at::Tensor by_frame(const at::Tensor& clip, const OfFrames& run) {
    std::vector<at::Tensor> frames;
    for (const at::Tensor& frame : clip.unbind(2)) frames.push_back(run(frame));
    return at::stack(frames, 2);
  }

  at::Tensor of(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? at::Tensor() : found->second;
  }
  at::Tensor norm(const at::Tensor& x, const std::string& name, double epsilon) const {
    return at::group_norm(x, 4, of(name + ".weight"), of(name + ".bias"), epsilon);
  }
  at::Tensor in_time(const at::Tensor& x, const std::string& name, int64_t stride = 1) const {
    const at::Tensor weight = of(name + ".conv.weight");
    const int64_t side = weight.size(3) / 2, front = weight.size(2) - stride;
    return at::conv3d(at::constant_pad_nd(x, {side, side, side, side, front, 0}), weight, of(name + ".conv.bias"),
                      {stride, 1, 1});
  }
  at::Tensor time_resnet(const at::Tensor& x, const std::string& name) const {
    const at::Tensor y = in_time(at::silu(norm(x, name + ".norm1", 1e-5)), name + ".conv1");
    const at::Tensor z = in_time(at::silu(norm(y, name + ".norm2", 1e-5)), name + ".conv2");
    return (of(name + ".conv3.conv.weight").defined() ? in_time(x, name + ".conv3") : x) + z;
  }

  at::Tensor in_space(const at::Tensor& x, const std::string& name) const {
    const at::Tensor weight = of(name + ".weight");
    return at::conv2d(x, weight, of(name + ".bias"), 1, weight.size(2) / 2);
  }
  at::Tensor resnet(const at::Tensor& x, const std::string& name) const {
    const at::Tensor y = in_space(at::silu(norm(x, name + ".norm1", 1e-6)), name + ".conv1");
    const at::Tensor z = in_space(at::silu(norm(y, name + ".norm2", 1e-6)), name + ".conv2");
    return (of(name + ".conv_shortcut.weight").defined() ? in_space(x, name + ".conv_shortcut") : x) + z;
  }
  at::Tensor middle(const at::Tensor& x, const std::string& name) const {
    const at::Tensor y = resnet(x, name + ".resnets.0");
    const std::string own = name + ".attentions.0.";
    const at::Tensor cells = norm(y, own + "group_norm", 1e-6).flatten(2).transpose(1, 2);
    const auto linear = [&](const at::Tensor& t, const std::string& layer) {
      return at::linear(t, of(own + layer + ".weight"), of(own + layer + ".bias"));
    };
    const at::Tensor q = linear(cells, "to_q"), k = linear(cells, "to_k"), v = linear(cells, "to_v");
    const at::Tensor scores = at::softmax(q.matmul(k.transpose(1, 2)) / std::sqrt(static_cast<double>(q.size(2))), -1);
    const at::Tensor out = linear(scores.matmul(v), "to_out.0").transpose(1, 2).view(y.sizes());
    return resnet(y + out, name + ".resnets.1");
  }
  at::Tensor mean_of_frames(const at::Tensor& frames) const {
    const std::string s = "spatial_vae.module.", e = s + "encoder.";
    at::Tensor x = resnet(in_space(frames, e + "conv_in"), e + "down_blocks.0.resnets.0");
    const std::string half = e + "down_blocks.0.downsamplers.0.conv";
    x = at::conv2d(at::constant_pad_nd(x, {0, 1, 0, 1}), of(half + ".weight"), of(half + ".bias"), 2);
    x = middle(resnet(x, e + "down_blocks.1.resnets.0"), e + "mid_block");
    x = in_space(in_space(at::silu(norm(x, e + "conv_norm_out", 1e-6)), e + "conv_out"), s + "quant_conv");
    return x.chunk(2, 1)[0];
  }
  at::Tensor frames_of_latents(const at::Tensor& latents) const {
    const std::string s = "spatial_vae.module.", d = s + "decoder.";
    at::Tensor x = middle(in_space(in_space(latents, s + "post_quant_conv"), d + "conv_in"), d + "mid_block");
    for (const int i : {0, 1}) x = resnet(x, concat(d, "up_blocks.0.resnets.", i));
    x = at::upsample_nearest2d(x, {2 * x.size(2), 2 * x.size(3)});
    x = in_space(x, d + "up_blocks.0.upsamplers.0.conv");
    for (const int i : {0, 1}) x = resnet(x, concat(d, "up_blocks.1.resnets.", i));
    return in_space(at::silu(norm(x, d + "conv_norm_out", 1e-6)), d + "conv_out");
  }

  std::map<std::string, at::Tensor> tensors_;
};

TEST(OpenSoraVae, EqualsASecondImplementation) {
  const Small made;
  const Plain plain(made.tensors);
  for (const int64_t frames : {1, 3, 4, 5}) {
    SCOPED_TRACE(frames);
    const at::Tensor clip = sines(.3, .1, {2, 3, frames, 6, 8});
    const at::Tensor moments = moments_of_clips(made.model, clip), want = plain.moments(clip);
    ASSERT_EQ(moments.sizes(), at::IntArrayRef({2, 8, frames > 4 ? 2 : 1, 3, 4}));
    EXPECT_LT(apart(moments.narrow(1, 0, 4), want.narrow(1, 0, 4)), 1e-12);
    EXPECT_LT(apart(moments.narrow(1, 4, 4), want.narrow(1, 4, 4).clamp(-30, 20)), 1e-12);
    const at::Tensor latents = moments.narrow(1, 0, 4), pixels = decoded_clips(made.model, latents, frames);
    ASSERT_EQ(pixels.sizes(), clip.sizes());
    EXPECT_LT(apart(pixels, plain.decoded(latents, frames)), 1e-11);
  }
}

TEST(OpenSoraVae, TakesChunksOfFramesEachAlone) {
  const Small made;
  const Plain plain(made.tensors);
  const at::Tensor clip = sines(.3, .1, {1, 3, 13, 4, 6});  // 5 + 5 + 3 frames
  const at::Tensor moments = moments_of_clips(made.model, clip);
  ASSERT_EQ(moments.size(2), 5);
  EXPECT_LT(apart(moments.narrow(2, 2, 2), moments_of_clips(made.model, clip.narrow(2, 5, 5))), 1e-13);
  const at::Tensor latents = moments.narrow(1, 0, 4), pixels = decoded_clips(made.model, latents, 13);
  EXPECT_LT(apart(pixels.narrow(2, 10, 3), plain.decoded(latents.narrow(2, 4, 1), 3)), 1e-11);
  const FrameReader read = [&](int64_t first, int64_t count) { return clip.narrow(2, first, count); };
  for (const int64_t at_once : {1, 2, 4}) {
    std::vector<at::Tensor> own, drawn;
    const auto into = [](std::vector<at::Tensor>& list) {
      return [&list](const at::Tensor& some) { list.push_back(some); };
    };
    encode_in_chunks(made.model, 13, read, into(own), {.frames = at_once});
    EXPECT_EQ(own.size(), 3U);
    EXPECT_LT(apart(at::cat(own, 2), moments), 1e-13);
    decode_in_chunks(made.model, latents, into(drawn), 13, {.frames = at_once});
    for (const at::Tensor& some : drawn) EXPECT_LE(some.size(2), at_once);
    EXPECT_LT(apart(at::cat(drawn, 2), pixels), 1e-13);
  }
}

TEST(OpenSoraVae, PassesFramesByRows) {
  const Small made;
  const at::Tensor clip = sines(.3, .1, {2, 3, 3, 14, 6}), moments = moments_of_clips(made.model, clip);
  const at::Tensor latents = moments.narrow(1, 0, 4), pixels = decoded_clips(made.model, latents, 3);
  const ChunkOptions options{.frames = 2, .parameters = &made.parameters, .saves_memory = true};
  std::vector<at::Tensor> drawn;
  encode_in_chunks(
      made.model, 3, [&](int64_t first, int64_t count) { return clip.narrow(2, first, count); },
      [&](const at::Tensor& own) { EXPECT_LT(apart(own, moments), 1e-12); }, options);
  decode_in_chunks(made.model, latents, [&](const at::Tensor& some) { drawn.push_back(some); }, 3, options);
  EXPECT_LT(apart(at::cat(drawn, 2), pixels), 1e-11);
  const Made pictures(built_in().resolve({.name = "autoencoder-kl-tiny"}));
  EXPECT_THAT(
      test::thrown_message([&] { frame_moments_by_rows(pictures.model, pictures.parameters, clip.select(2, 0)); }),
      HasSubstr("by an open_sora_vae: got autoencoder_kl"));
}

/// The tensors of a clip, from sizes alone; latents and pixels are the caller's.
TEST(OpenSoraVae, NeedsTheSameMemoryForMoreFrames) {
  nn::Parameters parameters({}, {.device = at::kMeta, .without_memory = true});
  nn::SerialLayers layers(parameters);
  const Model model = make_model(built_in().resolve({.name = "open-sora-vae-1.2"}), layers);
  const at::TensorOptions meta = at::TensorOptions(at::kFloat).device(at::kMeta);
  const auto peaks = [&](int64_t frames) {
    const AutoencoderSizes sizes = autoencoder_of(model.shape);
    const at::Tensor latents = at::empty({1, 4, latent_frames(sizes, frames), 30, 53}, meta);
    const FrameReader read = [&](int64_t, int64_t count) { return at::empty({1, 3, count, 240, 424}, meta); };
    const auto peak = [&](const auto& work) {
      const memory::Account account(memory::Counted::Shapes);
      work();
      return account.usage().peak_total;
    };
    const FrameTaker drop = [](const at::Tensor&) {};
    return std::pair{peak([&] { encode_in_chunks(model, frames, read, drop); }),
                     peak([&] { decode_in_chunks(model, latents, drop, frames); })};
  };
  EXPECT_EQ(peaks(17), peaks(51));
  EXPECT_LT(peaks(51).second, int64_t{1500} << 20);
}

TEST(OpenSoraVae, TakesClipsByPicturesOfAnAutoencoderOfPictures) {
  const Made made(built_in().resolve({.name = "autoencoder-kl-tiny"}));
  const at::Tensor clip = sines(.3, .1, {2, 3, 5, 8, 4}), moments = moments_of_clips(made.model, clip);
  EXPECT_LT(apart(moments.select(2, 3), moments_of(made.model, clip.select(2, 3))), 1e-13);
  const at::Tensor latents = moments.narrow(1, 0, 4), pixels = decoded_clips(made.model, latents);
  EXPECT_LT(apart(pixels.select(2, 4), decoded(made.model, latents.select(2, 4))), 1e-13);
  const ChunkOptions options{.frames = 2, .parameters = &made.parameters, .saves_memory = true};
  std::vector<at::Tensor> drawn;
  decode_in_chunks(made.model, latents, [&](const at::Tensor& some) { drawn.push_back(some); }, 0, options);
  EXPECT_LT(apart(at::cat(drawn, 2), pixels), 1e-12);
}

TEST(OpenSoraVae, ReconstructsFromTheDrawnLatentWithGradients) {
  using tensor::Dim;
  Small made;
  const std::vector<Dim> dims{Dim::Row, Dim::Other, Dim::Other, Dim::Other, Dim::Other};
  const at::Tensor clips = sines(.3, .1, {1, 3, 3, 4, 4}), noise = sines(.7, .2, {1, 4, 1, 2, 2});
  tensor::Batch batch;
  batch.add("images", {clips, dims});
  batch.add("noise", {noise, dims});
  const nn::ForwardContext step = nn::step_of(batch);
  const Stage all{0, static_cast<int64_t>(made.model.blocks.size())};
  const States end = run_stage(made.model, all, {}, step);
  const std::vector<at::Tensor> both = moments_of_clips(made.model, clips).chunk(2, 1);
  const at::Tensor want = decoded_clips(made.model, both[0] + (both[1] / 2).exp() * noise, 3);
  EXPECT_LT(apart(reconstructed_clips(end[0], {3, {4, 4}}), want), 1e-11);
  for (int64_t block = -1; block < static_cast<int64_t>(made.model.blocks.size()); ++block)
    check_sizes(made.model, run_stage(made.model, {0, block + 1, true, false}, {}, step), step, block);
  (end[0].square().mean() + end[1].square().mean()).backward();
  for (const nn::Parameter& parameter : made.parameters.declared())
    EXPECT_GT(number(parameter.value.grad().abs().max()), 0) << parameter.name;
}

TEST(OpenSoraVae, NormsTheChannelsThatADenoiserReads) {
  const AutoencoderSizes sizes = autoencoder_of(built_in().resolve({.name = "open-sora-vae-1.2"}));
  EXPECT_EQ(sizes.factor, 8);
  EXPECT_EQ(sizes.frame_factor, 4);
  const at::Tensor sample = sines(.3, .1, {1, 4, 2, 1, 2}), latent = latent_of(sizes, sample);
  EXPECT_NEAR(number(latent[0][1][0][0][0]), (number(sample[0][1][0][0][0]) - .34) / 2.32, 1e-15);
  EXPECT_LT(apart(sample_of(sizes, latent), sample), 1e-15);
  EXPECT_THAT(test::thrown_message([&] { latent_of(sizes, sines(.3, .1, {1, 3, 2, 1, 2})); }),
              HasSubstr("latents must be [B, 4, ...]"));
}

TEST(OpenSoraVae, MakesClipsOfAnyLength) {
  const AutoencoderSizes sizes = autoencoder_of(built_in().resolve({.name = "open-sora-vae-1.2"}));
  for (const auto& [frames, latents] : {std::pair{1, 1}, {16, 4}, {17, 5}, {18, 6}, {51, 15}, {408, 120}})
    EXPECT_EQ(latent_frames(sizes, frames), latents) << frames;
  for (const auto& [latents, frames] : {std::pair{1, 1}, {5, 17}, {6, 18}, {15, 51}, {7, 22}})
    EXPECT_EQ(pixel_frames(sizes, latents), frames) << latents;
  const Small made;
  EXPECT_THAT(test::thrown_message([&] { decoded_clips(made.model, sines(.3, .1, {1, 4, 2, 2, 2}), 9); }),
              HasSubstr("as many frames as it stands for: got 9; such a number is 5"));
  tensor::Batch batch;
  using tensor::Dim;
  batch.add("images",
            {at::zeros({1, 3, 6, 4, 4}, at::kDouble), {Dim::Row, Dim::Other, Dim::Other, Dim::Other, Dim::Other}});
  EXPECT_THAT(test::thrown_message([&] { run_stage(made.model, {0, 20}, {}, nn::step_of(batch)); }),
              HasSubstr("at most the 5 frames of a chunk: got 6"));
}

nlohmann::json published_config() {
  return {{"architectures", {"VideoAutoencoderPipeline"}},
          {"cal_loss", false},
          {"freeze_vae_2d", false},
          {"from_pretrained", nullptr},
          {"micro_frame_size", 17},
          {"model_type", "VideoAutoencoderPipeline"},
          {"scale", {3.85, 2.32, 2.33, 3.06}},
          {"shift", {-0.1, 0.34, 0.27, 0.98}},
          {"vae_2d",
           {{"from_pretrained", "PixArt-alpha/pixart_sigma_sdxlvae_T5_diffusers"},
            {"local_files_only", false},
            {"micro_batch_size", 4},
            {"subfolder", "vae"},
            {"type", "VideoAutoencoderKL"}}},
          {"vae_temporal", {{"from_pretrained", nullptr}, {"type", "VAE_Temporal_SD"}}}};
}

TEST(OpenSoraVae, ReadsThePublishedFolder) {
  const ModelShape shape = built_in().shape_of(published_config());
  EXPECT_EQ(shape, built_in().resolve({.name = "open-sora-vae-1.2"}));
  nlohmann::json written = open_sora_vae_folder().to_json(shape);
  const nlohmann::json published = published_config();
  for (const auto& [key, value] : published.items()) EXPECT_EQ(written[key], value) << key;
  const Made made(shape, /*has_memory=*/false);
  EXPECT_EQ(made.parameters.numel(), 393'341'007);
  std::map<std::string, std::string> ours;
  for (const nn::ExternalName& name : open_sora_vae_folder().names(shape))
    for (const nn::ExternalRows& part : name.parts) ours[part.name] = name.ours;
  for (const char* name :
       {"spatial_vae.module.encoder.conv_in.weight", "spatial_vae.module.quant_conv.bias",
        "spatial_vae.module.decoder.up_blocks.3.resnets.2.norm2.weight",
        "spatial_vae.module.encoder.mid_block.attentions.0.to_q.weight", "temporal_vae.encoder.conv_in.conv.weight",
        "temporal_vae.encoder.block_res_blocks.1.0.conv3.conv.weight", "temporal_vae.encoder.conv_blocks.1.conv.bias",
        "temporal_vae.encoder.res_blocks.3.norm2.bias", "temporal_vae.encoder.norm1.weight",
        "temporal_vae.encoder.conv2.conv.bias", "temporal_vae.quant_conv.conv.weight",
        "temporal_vae.post_quant_conv.conv.bias", "temporal_vae.decoder.conv1.conv.bias",
        "temporal_vae.decoder.block_res_blocks.0.0.conv3.conv.weight", "temporal_vae.decoder.conv_blocks.2.conv.weight",
        "temporal_vae.decoder.norm1.bias", "temporal_vae.decoder.conv_out.conv.weight", "shift", "scale"})
    EXPECT_TRUE(ours.contains(name)) << name;
  EXPECT_FALSE(ours.contains("temporal_vae.encoder.conv_in.conv.bias"));
  EXPECT_FALSE(ours.contains("temporal_vae.encoder.conv_blocks.0.conv.weight"));
}

TEST(OpenSoraVae, WritesTheConfigThatItReads) {
  for (const auto& own : std::vector<std::vector<std::string>>{
           {}, {"halves=[0,1]"}, {"multipliers=[1,2]", "halves=[1]"}, {"shift=[0,0,0,0]", "scale=[1,1,1,1]"}}) {
    ModelShape shape = built_in().resolve({.name = "open-sora-vae-tiny", .own = own_keys(own)});
    const ModelShape read = built_in().shape_of(open_sora_vae_folder().to_json(shape));
    auto want = shape.own.as<OpenSoraVaeSizes>(), got = read.own.as<OpenSoraVaeSizes>();
    want.height = want.width = got.height = got.width = 0;  // no keys of the folder
    EXPECT_EQ(want, got);
  }
  nlohmann::json plain = published_config();
  plain.erase("shift");
  plain["scale"] = 2.0;
  EXPECT_EQ(built_in().shape_of(plain).own.as<OpenSoraVaeSizes>().scale, std::vector<double>(4, 2.0));
}

TEST(OpenSoraVae, RefusesSizesThatDoNotFit) {
  const auto refused = [](const std::string& key) {
    return test::thrown_message([&] { built_in().resolve({.name = "open-sora-vae-tiny", .own = own_keys({key})}); });
  };
  EXPECT_THAT(refused("frames=6"), HasSubstr("frames must be at most the 5 of a chunk: got 6"));
  EXPECT_THAT(refused("halves=[1]"), HasSubstr("a number for each level but the last: got 1 for 3 levels"));
  EXPECT_THAT(refused("filters=10"), HasSubstr("groups must divide filters: got 4 and 10"));
  EXPECT_THAT(refused("width=17"), HasSubstr("width must be divisible by 2"));
  EXPECT_THAT(refused("shift=[0,0,0]"), HasSubstr("a number for each channel: got 3 and 4 for 4"));
  nlohmann::json j = published_config();
  j["vae_temporal"]["type"] = "VAE_Other";
  EXPECT_THAT(test::thrown_message([&] { built_in().shape_of(j); }), HasSubstr("VAE_Other"));
}

}  // namespace
}  // namespace colossal::models::open_sora_vae_test
