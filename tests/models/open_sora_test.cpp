// Open-Sora 2 against FLUX, whose values are those of diffusers, and against a plain second implementation with the
// names and the order of features of the published file; its gradients, its file, its sizes.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "colossal/base/json.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/ldm/file.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/models/config.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/families/mmdit.h"
#include "colossal/nn/batch_step.h"
#include "models/made_model.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::models::open_sora_test {
namespace {

using testing::HasSubstr;
using Weights = std::map<std::string, at::Tensor>;  // by the name in the file

/// Returns a model of two double blocks and a single one, with heads that are no halves of each other's axes.
ModelShape small(const char* architecture = "open-sora") {
  MmditSizes own = open_sora_sizes();
  own.frames = architecture == std::string("flux") ? 0 : 3;
  own.height = 4, own.width = 6;
  own.channels = 3;
  own.text = 10, own.pooled = 7;
  own.single = 1;
  own.axes = {4, 6, 6};
  ModelShape shape{.architecture = built_in().at(architecture),
                   .hidden = 32,
                   .layers = 3,
                   .heads = 2,
                   .kv_heads = 2,
                   .head_dim = 16,
                   .ffn = 72,
                   .norm_epsilon = 1e-6,
                   .tied = false,
                   .own = own};
  shape.architecture->settle(shape);
  return shape;
}

at::Tensor random(const std::vector<int64_t>& sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble));
}

double number(const at::Tensor& t) { return t.item<double>(); }
double difference(const at::Tensor& a, const at::Tensor& b) { return number((a - b).abs().max()); }

/// Sets all parameters to random numbers, and norms to numbers around 1.
void draw_weights(Made& made) {
  const at::NoGradGuard no_grad;
  uint64_t seed = 100;
  for (nn::Parameter& p : made.parameters) {
    p.value.copy_(random(p.value.sizes().vec(), ++seed) * .3);
    if (p.name.ends_with("_norm.weight")) p.value += 1;
  }
}

tensor::Batch batch_of(const at::Tensor& noised, const at::Tensor& given = {}) {
  using tensor::Dim;
  const int64_t rows = noised.size(0);
  std::vector<Dim> dims(static_cast<size_t>(noised.dim()), Dim::Other);
  dims.front() = Dim::Row;
  tensor::Batch batch;
  batch.add("noised", {noised, dims});
  batch.add("times", {at::arange(rows, at::kDouble) * 500 + 312.5, {Dim::Row}});
  batch.add("text", {random({rows, 5, 10}, 2), {Dim::Row, Dim::Other, Dim::Feature}});
  batch.add("pooled", {random({rows, 7}, 3), {Dim::Row, Dim::Other}});
  if (!given.defined()) return batch;
  batch.add("given", {given, {Dim::Row, Dim::Other}});
  batch.add("shown", {random(noised.sizes().vec(), 4), dims});
  return batch;
}

at::Tensor prediction(const Made& made, const tensor::Batch& batch) {
  const Stage all{0, static_cast<int64_t>(made.model.blocks.size())};
  return predicted_picture(made.model.shape, run_stage(made.model, all, {}, nn::step_of(batch))[0], batch);
}

/// Returns the tensors of the published file.
Weights file_of(Made& made) {
  Weights file;
  for (const nn::ExternalName& name : made.model.shape.architecture->hugging_face.names(made.model.shape)) {
    const at::Tensor value = made.parameters.at(name.ours).value.detach();
    int64_t first = 0;
    for (const nn::ExternalRows& rows : name.parts) {
      if (rows.is_whole()) {
        file[rows.name] = value.clone();
        continue;
      }
      const int64_t end = rows.first + (rows.count - 1) * rows.stride + 1;
      at::Tensor& whole = file[rows.name];
      std::vector<int64_t> sizes = value.sizes().vec();
      sizes[0] = end;
      if (!whole.defined()) whole = at::zeros(sizes, at::kDouble);
      if (whole.size(0) < end) {
        sizes[0] = end - whole.size(0);
        whole = at::cat({whole, at::zeros(sizes, at::kDouble)});
      }
      whole.slice(0, rows.first, end, rows.stride).copy_(value.narrow(0, first, rows.count));
      first += rows.count;
    }
  }
  return file;
}

/// A plain Open-Sora 2, with the weights of a file by name. It reads clips [B, C, T, h, w] row by row.
class PlainOpenSora {
 public:
  PlainOpenSora(Weights weights, std::vector<int64_t> axes) : w_(std::move(weights)), axes_(std::move(axes)) {}

  at::Tensor forward(const tensor::Batch& batch) const {
    std::vector<at::Tensor> rows;
    for (int64_t i = 0; i < batch.rows(); ++i) rows.push_back(row(batch.part(i, 1)));
    return at::stack(rows);
  }

 private:
  static constexpr int64_t kHeads = 2, kPatch = 2;

  at::Tensor linear(const std::string& name, const at::Tensor& x) const {
    return at::linear(x, w_.at(name + ".weight"), w_.at(name + ".bias"));
  }
  at::Tensor embedder(const std::string& name, const at::Tensor& x) const {
    return linear(name + ".out_layer", at::silu(linear(name + ".in_layer", x)));
  }
  at::Tensor mlp(const std::string& name, const at::Tensor& x) const {
    return linear(name + ".2", at::gelu(linear(name + ".0", x), "tanh"));
  }
  static at::Tensor norm(const at::Tensor& x) { return at::layer_norm(x, {x.size(-1)}, {}, {}, 1e-6); }
  std::vector<at::Tensor> modulation(const std::string& name, const at::Tensor& y, int64_t count) const {
    return linear(name, at::silu(y)).chunk(count);
  }
  /// Returns the patches [T * rows * columns, C * 4] of a clip [C, T, h, w], channel by channel.
  static at::Tensor packed(const at::Tensor& clip) {
    const int64_t rows = clip.size(2) / kPatch, columns = clip.size(3) / kPatch;
    return clip.reshape({clip.size(0), clip.size(1), rows, kPatch, columns, kPatch})
        .permute({1, 2, 4, 0, 3, 5})
        .reshape({clip.size(1) * rows * columns, -1});
  }
  /// Returns the angles of all tokens, [tokens, head_dim / 2]. Words are at 0.
  at::Tensor angles(int64_t words, int64_t frames, int64_t rows, int64_t columns) const {
    std::vector<at::Tensor> tokens(static_cast<size_t>(words),
                                   at::zeros({axes_[0] / 2 + axes_[1] / 2 + axes_[2] / 2}, at::kDouble));
    for (int64_t t = 0; t < frames; ++t)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) {
          std::vector<at::Tensor> of_axes;
          const int64_t places[] = {t, r, c};
          for (int axis = 0; axis < 3; ++axis) {
            const auto features = static_cast<double>(axes_[axis]);
            of_axes.push_back(at::pow(10000., at::arange(0, features, 2, at::kDouble) / -features) *
                              static_cast<double>(places[axis]));
          }
          tokens.push_back(at::cat(of_axes));
        }
    return at::stack(tokens);
  }
  /// Returns heads [kHeads, tokens, D], normed and turned in pairs of their halves.
  at::Tensor turned(const at::Tensor& x, const std::string& scale, const at::Tensor& angle) const {
    const at::Tensor normed = x * (x.square().mean(-1, true) + 1e-6).rsqrt() * w_.at(scale);
    const std::vector<at::Tensor> halves = normed.chunk(2, -1);
    return at::cat(
        {halves[0] * angle.cos() - halves[1] * angle.sin(), halves[1] * angle.cos() + halves[0] * angle.sin()}, -1);
  }
  static at::Tensor by_head(const at::Tensor& x) { return x.unflatten(-1, {kHeads, -1}).transpose(0, 1); }
  struct Heads {
    at::Tensor q, k, v;
  };
  Heads heads(const std::string& name, const at::Tensor& x, const at::Tensor& v, const at::Tensor& angle) const {
    return {turned(by_head(linear(name + "q_proj", x)), name + "norm.query_norm.scale", angle),
            turned(by_head(linear(name + "k_proj", x)), name + "norm.key_norm.scale", angle), by_head(v)};
  }
  static at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    const at::Tensor scores = at::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(q.size(-1)));
    return at::matmul(scores.softmax(-1), v).transpose(0, 1).flatten(1);
  }
  void double_block(const std::string& name, at::Tensor& text, at::Tensor& video, const at::Tensor& y,
                    const at::Tensor& angle) const {
    const int64_t words = text.size(0);
    const auto of_text = modulation(name + "txt_mod.lin", y, 6), of_video = modulation(name + "img_mod.lin", y, 6);
    const auto heads_of = [&](const std::string& stream, const at::Tensor& x, const std::vector<at::Tensor>& m,
                              const at::Tensor& own) {
      const at::Tensor read = norm(x) * (1 + m[1]) + m[0];
      return heads(name + stream, read, linear(name + stream + "v_proj", read), own);
    };
    const Heads a = heads_of("txt_attn.", text, of_text, angle.narrow(0, 0, words)),
                b = heads_of("img_attn.", video, of_video, angle.narrow(0, words, video.size(0)));
    const at::Tensor both = attend(at::cat({a.q, b.q}, 1), at::cat({a.k, b.k}, 1), at::cat({a.v, b.v}, 1));
    const auto after = [&](at::Tensor& x, const std::string& stream, const std::vector<at::Tensor>& m,
                           const at::Tensor& attended) {
      x = x + m[2] * linear(name + stream + "_attn.proj", attended);
      x = x + m[5] * mlp(name + stream + "_mlp", norm(x) * (1 + m[4]) + m[3]);
    };
    after(text, "txt", of_text, both.narrow(0, 0, words));
    after(video, "img", of_video, both.narrow(0, words, video.size(0)));
  }
  at::Tensor single_block(const std::string& name, const at::Tensor& x, const at::Tensor& y,
                          const at::Tensor& angle) const {
    const auto m = modulation(name + "modulation.lin", y, 3);
    const at::Tensor read = norm(x) * (1 + m[1]) + m[0], both = linear(name + "v_mlp", read);
    const int64_t hidden = x.size(1);
    const Heads h = heads(name, read, both.narrow(1, 0, hidden), angle);
    const at::Tensor inside = at::gelu(both.narrow(1, hidden, both.size(1) - hidden), "tanh");
    return x + m[2] * linear(name + "linear2", at::cat({attend(h.q, h.k, h.v), inside}, 1));
  }

  /// Returns the prediction [C, T, h, w] of one row.
  at::Tensor row(const tensor::Batch& b) const {
    const at::Tensor noised = b.at("noised")[0];
    const int64_t channels = noised.size(0), frames = noised.size(1), height = noised.size(2), width = noised.size(3);
    const auto padded = [&](const at::Tensor& x) {
      return at::constant_pad_nd(x, {0, width % kPatch, 0, height % kPatch});
    };
    at::Tensor video = linear("img_in", packed(padded(noised)));
    at::Tensor mask = at::zeros({1, frames, height, width}, at::kDouble), shown = at::zeros_like(noised);
    if (b.find("given").defined())
      for (int64_t t = 0; t < frames; ++t)
        if (b.at("given")[0][t].item<int64_t>() == 1) {
          mask.select(1, t).fill_(1);
          shown.select(1, t).copy_(b.at("shown")[0].select(1, t));
        }
    video = video + linear("cond_in", packed(padded(at::cat({mask, shown}))));
    at::Tensor text = linear("txt_in", b.at("text")[0]);
    const at::Tensor w = at::exp(at::arange(128, at::kDouble) * (-std::log(10000.) / 128)) * b.at("times")[0];
    const at::Tensor y = embedder("time_in", at::cat({w.cos(), w.sin()})) + embedder("vector_in", b.at("pooled")[0]);
    const int64_t rows = (height + 1) / kPatch, columns = (width + 1) / kPatch, words = text.size(0);
    const at::Tensor angle = angles(words, frames, rows, columns);
    for (const char* name : {"double_blocks.0.", "double_blocks.1."}) double_block(name, text, video, y, angle);
    const at::Tensor x = single_block("single_blocks.0.", at::cat({text, video}), y, angle);
    const auto m = modulation("final_layer.adaLN_modulation.1", y, 2);
    video = norm(x.narrow(0, words, video.size(0))) * (1 + m[1]) + m[0];
    return linear("final_layer.linear", video)
        .view({frames, rows, columns, channels, kPatch, kPatch})
        .permute({3, 0, 1, 4, 2, 5})
        .reshape({channels, frames, rows * kPatch, columns * kPatch})
        .narrow(2, 0, height)
        .narrow(3, 0, width);
  }

  Weights w_;
  std::vector<int64_t> axes_;
};

// FLUX's own values are compared with those of diffusers (Flux.HasTheValuesAndGradientsOfDiffusers).
TEST(OpenSora, DrawsAClipOfOneFrameAsFluxDrawsAPicture) {
  Made flux(small("flux")), clips(small());
  draw_weights(flux);
  const at::NoGradGuard no_grad;
  for (nn::Parameter& p : clips.parameters) {
    EXPECT_TRUE(!p.name.starts_with("given.") || p.value.eq(0).all().item<bool>()) << "it starts at 0";
    if (!p.name.starts_with("given.")) p.value.copy_(flux.parameters.at(p.name).value);
  }
  const at::Tensor picture = random({2, 3, 4, 6}, 1), clip = picture.unsqueeze(2);
  const at::Tensor want = prediction(flux, batch_of(picture));
  EXPECT_GT(number(want.abs().max()), .1);
  EXPECT_TRUE(at::equal(prediction(clips, batch_of(clip)).squeeze(2), want));
  const at::Tensor given = at::ones({2, 1}, at::kLong);
  EXPECT_TRUE(at::equal(prediction(clips, batch_of(clip, given)).squeeze(2), want)) << "given frames do not count yet";
}

// Sides that patches do not divide, given frames and rows without any.
TEST(OpenSora, HasTheValuesOfAPlainImplementation) {
  Made made(small());
  draw_weights(made);
  const PlainOpenSora plain(file_of(made), {4, 6, 6});
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{2, 3, 3, 4, 6}, {2, 3, 2, 5, 3}}) {
    at::Tensor given = at::zeros({2, sizes[2]}, at::kLong);
    given[1][sizes[2] - 1] = 1;
    for (const tensor::Batch& batch : {batch_of(random(sizes, 1)), batch_of(random(sizes, 1), given)}) {
      const at::Tensor got = prediction(made, batch), want = plain.forward(batch);
      ASSERT_EQ(got.sizes(), at::IntArrayRef(sizes));
      EXPECT_LT(difference(got, want), 1e-12 * number(want.abs().max())) << sizes;
    }
  }
}

TEST(OpenSora, HasTheGradientsOfFiniteDifferences) {
  Made made(small());
  draw_weights(made);
  const tensor::Batch batch = batch_of(random({1, 3, 3, 2, 3}, 1), at::tensor({0, 1, 0}, at::kLong).unsqueeze(0));
  const auto loss = [&] { return prediction(made, batch).sin().sum(); };
  loss().backward();
  uint64_t seed = 0;
  for (nn::Parameter& p : made.parameters) {
    const at::Tensor way = random(p.value.sizes().vec(), ++seed), slope = (p.value.grad() * way).sum();
    constexpr double kStep = 1e-6;
    const at::NoGradGuard no_grad;
    const auto at_step = [&](double step) {
      p.value.add_(way, step);
      const double value = number(loss());
      p.value.add_(way, -step);
      return value;
    };
    const double measured = (at_step(kStep) - at_step(-kStep)) / (2 * kStep);
    EXPECT_NEAR(number(slope), measured, 1e-6 * (1 + std::abs(measured))) << p.name;
    EXPECT_NE(number(slope), 0) << p.name;
  }
}

TEST(OpenSora, NeedsTheFramesThatAreGiven) {
  Made made(small());
  const tensor::Batch batch = batch_of(random({1, 3, 3, 4, 6}, 1), at::ones({1, 3}, at::kLong)).without("shown");
  EXPECT_THAT(test::thrown_message([&] { prediction(made, batch); }), HasSubstr("in the field `shown`: got none"));
}

TEST(OpenSora, ReadsAndWritesThePublishedFileBitForBit) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "Open_Sora_v2.safetensors";
  ModelShape shape = small();
  auto own = shape.own.as<MmditSizes>();
  own.axes = {4, 14, 14};  // an eighth by frame, as in the published model
  shape.own = own;
  shape.hidden = 64, shape.head_dim = 32, shape.ffn = 144;
  shape.architecture->settle(shape);
  Made made(shape), again(shape);
  draw_weights(made);
  const Weights file = file_of(made);
  checkpoint::write_safetensors(path, file);
  EXPECT_EQ(checkpoint::ldm_part(path)->part, "transformer");

  ModelShape read = built_in().shape_of(checkpoint::read_config(path));
  auto of_file = read.own.as<MmditSizes>();
  of_file.frames = own.frames, of_file.height = own.height, of_file.width = own.width;  // which no file has
  read.own = of_file;
  read.architecture->settle(read);
  EXPECT_EQ(read, shape);

  const HuggingFace& row = shape.architecture->hugging_face;
  const checkpoint::ExternalNames names{row.names(shape), row.prefix, row.ignored_names()};
  checkpoint::import_weights(path, again.parameters, names);
  for (const nn::Parameter& p : made.parameters)
    EXPECT_TRUE(at::equal(again.parameters.at(p.name).value, p.value)) << p.name;
  const std::string out = folder / "written";
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {{"data", 1}});
    checkpoint::export_weights(out, again.parameters, names, row.to_json(shape), mesh.all());
  });
  const checkpoint::SafetensorsReader written(out + "/model.safetensors");
  EXPECT_EQ(written.entries().size(), file.size());
  for (const auto& [name, value] : file) EXPECT_TRUE(at::equal(written.tensor(name), value)) << name;
  EXPECT_TRUE(file.contains("double_blocks.1.txt_attn.q_proj.weight"));
  EXPECT_EQ(file.at("single_blocks.0.v_mlp.bias").size(0), 64 + 144);
  EXPECT_EQ(file.at("cond_in.weight").sizes(), at::IntArrayRef({64, 12 + 4}));

  Weights fused = file;
  fused["double_blocks.0.img_attn.qkv.weight"] = at::ones({3 * 64, 64});
  checkpoint::write_safetensors(path, fused);
  EXPECT_THAT(test::thrown_message([&] { built_in().shape_of(checkpoint::read_config(path)); }),
              HasSubstr("fused_qkv"));
}

TEST(OpenSora, WritesTheConfigThatItReads) {
  for (const char* preset : {"open-sora-2", "open-sora-2-tiny"}) {
    ModelShape shape = built_in().resolve({.name = preset});
    const nlohmann::json j = shape.architecture->hugging_face.to_json(shape);
    EXPECT_EQ(j["model_type"], "MMDiT");
    ModelShape read = built_in().shape_of(j);
    auto own = read.own.as<MmditSizes>();
    const auto wanted = shape.own.as<MmditSizes>();
    own.frames = wanted.frames, own.height = wanted.height, own.width = wanted.width;
    own.text_tokens = wanted.text_tokens;
    read.own = own;
    read.architecture->settle(read);
    EXPECT_EQ(read, shape) << j.dump();
  }
  nlohmann::json j = built_in().at("open-sora")->hugging_face.to_json(built_in().resolve({.name = "open-sora-2"}));
  EXPECT_FALSE(j.contains("norm_epsilon")) << "1e-6 is the one of Open-Sora";
  const auto refused = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json other = j;
    other[key] = value;
    return test::thrown_message([&] { built_in().shape_of(other); });
  };
  EXPECT_EQ(refused("norm_epsilon", 1e-5), "");
  EXPECT_THAT(refused("fused_qkv", true), HasSubstr("fused_qkv"));
  EXPECT_THAT(refused("use_liger_rope", false), HasSubstr("use_liger_rope"));
  EXPECT_THAT(refused("axes_dim", {16, 112}), HasSubstr("axes of a model of clips must be those of frame, row"));
  EXPECT_THAT(refused("in_channels", 66), HasSubstr("divisible by the 4 cells of a patch: got 66"));
}

TEST(OpenSora, HasTheParametersOfThePublishedModel) {
  const Made made(built_in().resolve({.name = "open-sora-2"}), /*has_memory=*/false);
  // those of FLUX without guidance, and of the layer that reads given frames
  EXPECT_EQ(made.parameters.numel(), 11'901'408'320 - (256 + 3072 + 2) * 3072 + (64 + 4 + 1) * 3072);
  const DenoiserSizes sizes = denoiser_of(made.model.shape);
  EXPECT_EQ(made.model.shape.positions, 33 * 2304);
  EXPECT_EQ(sizes.sign, 1) << "Open-Sora 2 predicts noise - picture, as we do";
  EXPECT_STREQ(sizes.shift, "open-sora-2");
}

TEST(OpenSora, RefusesSizesThatDoNotFit) {
  const auto refused = [](const std::vector<std::string>& own) {
    return test::thrown_message([&] { built_in().resolve({.name = "open-sora-2-tiny", .own = own_keys(own)}); });
  };
  EXPECT_EQ(refused({"width=7"}), "") << "patches at the edge are padded";
  EXPECT_THAT(refused({"axes=[16, 16]"}), HasSubstr("axes of a model of clips must be those of frame, row and column"));
  EXPECT_THAT(refused({"table=16"}), HasSubstr("a model of clips must have no table of positions: got 16"));
}

}  // namespace
}  // namespace colossal::models::open_sora_test
