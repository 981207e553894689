// STDiT3 against values computed with Open-Sora's formulas in fp64 and against a plain second implementation, whose
// weights have the names and the order of the published folder; its counts, gradients and folder.
#include "colossal/models/families/stdit.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/config.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/patches.h"
#include "models/made_model.h"
#include "support/thrown_message.h"

namespace colossal::models::stdit_test {
namespace {

using testing::HasSubstr;
using Weights = std::map<std::string, at::Tensor>;

/// Returns the shape that the golden values were computed with.
ModelShape small() {
  ModelShape shape{.architecture = built_in().at("stdit"),
                   .hidden = 32,
                   .layers = 2,
                   .heads = 4,
                   .kv_heads = 4,
                   .head_dim = 8,
                   .ffn = 128,
                   .norm_epsilon = 1e-6,
                   .tied = false,
                   .own = StditSizes{.frames = 3, .height = 4, .width = 6, .text = 12, .tokens = 6}};
  shape.architecture->settle(shape);
  return shape;
}

std::vector<nn::ExternalName> folder_names(const ModelShape& shape) {
  return shape.architecture->hugging_face.names(shape);
}

/// Returns the parameter or buffer of that name.
at::Tensor value_of(Made& made, const std::string& name) {
  for (const nn::Buffer& buffer : made.parameters.buffers())
    if (buffer.name == name) return buffer.value;
  return made.parameters.at(name).value.detach();
}

/// Sets the weights to those of a folder.
void set_weights(Made& made, const Weights& weights) {
  for (const nn::ExternalName& name : folder_names(made.model.shape)) {
    std::vector<at::Tensor> parts;
    for (const nn::ExternalRows& rows : name.parts) {
      const at::Tensor& whole = weights.at(rows.name);
      const int64_t end = rows.first + (rows.count - 1) * rows.stride + 1;
      parts.push_back(rows.is_whole() ? whole : whole.slice(0, rows.first, end, rows.stride));
    }
    value_of(made, name.ours).copy_(at::cat(parts));
  }
}

/// Returns the tensors of a folder with values of `make`, which is given the number of the tensor, sorted by name.
template <class Make>
Weights folder_weights(Made& made, const Make& make) {
  Weights weights;
  for (const nn::ExternalName& name : folder_names(made.model.shape))
    weights[name.parts.front().name] = value_of(made, name.ours);  // of the sizes of the tensor
  int64_t number = 0;
  for (auto& [name, tensor] : weights) {
    const bool is_buffer = name == "y_embedder.y_embedding";
    tensor = make(is_buffer ? 0 : number, name, tensor);
    number += is_buffer ? 0 : 1;
  }
  return weights;
}

/// Returns the golden weights: .1 sin((i i mod 1009) + number), plus 1 in norms.
Weights golden_weights(Made& made) {
  return folder_weights(made, [](int64_t number, const std::string& name, const at::Tensor& like) {
    const at::Tensor index = at::arange(like.numel(), at::TensorOptions(at::kLong));
    const at::Tensor angles = (index * index).remainder(1009).to(at::kDouble) + static_cast<double>(number);
    return (angles.sin() * .1 + (name.ends_with("_norm.weight") ? 1. : 0.)).view(like.sizes());
  });
}

at::Tensor random(const std::vector<int64_t>& sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble));
}

Weights random_weights(Made& made) {
  return folder_weights(made, [](int64_t number, const std::string&, const at::Tensor& like) {
    return random(like.sizes().vec(), 100 + static_cast<uint64_t>(number)) * .3;
  });
}

at::Tensor integers(std::vector<int64_t> values, std::vector<int64_t> sizes) {
  return at::tensor(values, at::kLong).view(sizes);
}

tensor::Batch clip_batch(const at::Tensor& clips, const at::Tensor& text, const at::Tensor& times, double fps) {
  using tensor::Dim;
  tensor::Batch batch;
  batch.add("noised", {clips, {Dim::Row, Dim::Other, Dim::Other, Dim::Other, Dim::Other}});
  batch.add("times", {times, {Dim::Row}});
  batch.add("fps", {at::full_like(times, fps), {Dim::Row}});
  batch.add("text", {text, {Dim::Row, Dim::Other, Dim::Feature}});
  return batch;
}

tensor::Batch golden_batch() {
  return clip_batch(sines(.3, .1, {1, 4, 3, 4, 6}), sines(.2, M_PI / 2, {1, 6, 12}),
                    at::full({1}, 700, at::TensorOptions(at::kDouble)), 24);
}

tensor::Batch with(const tensor::Batch& batch, const char* name, const at::Tensor& field) {
  std::vector<tensor::Dim> dims(static_cast<size_t>(field.dim()), tensor::Dim::Other);
  dims.front() = tensor::Dim::Row;
  return batch.with(name, {field, dims});
}

at::Tensor end_of(const Made& made, const tensor::Batch& batch) {
  return run_stage(made.model, {0, static_cast<int64_t>(made.model.blocks.size())}, {}, nn::step_of(batch))[0];
}

/// Returns all channels that the end gives, as clips.
at::Tensor all_channels(const at::Tensor& end, const tensor::Batch& batch) {
  const ops::PictureSize size = picture_size(batch);
  const nn::PatchShape shape = nn::patches_over({8, size.height, size.width, 2, 0});
  return nn::join_patches(end.transpose(1, 2).flatten(0, 1), shape)
      .unflatten(0, {end.size(0), -1})
      .transpose(1, 2)
      .narrow(3, 0, size.height)
      .narrow(4, 0, size.width);
}

double number(const at::Tensor& t) { return t.item<double>(); }
double difference(const at::Tensor& a, const at::Tensor& b) { return number((a - b).abs().max()); }

TEST(Stdit, HasTheValuesOfOpenSora) {
  Made made(small());
  set_weights(made, golden_weights(made));
  const tensor::Batch batch = golden_batch();
  const at::Tensor end = end_of(made, batch), y = all_channels(end, batch);
  ASSERT_EQ(y.sizes(), at::IntArrayRef({1, 8, 3, 4, 6}));
  EXPECT_NEAR(number(y.flatten()[0]), .2371513251072, 1e-12);
  EXPECT_NEAR(number(y.sum()), -14.38596097457, 1e-11);
  EXPECT_NEAR(number(y.square().sum()), 91.180268016, 1e-9);
  EXPECT_TRUE(predicted_picture(made.model.shape, end, batch).equal(-y.narrow(1, 0, 4)));
}

TEST(Stdit, ModulatesGivenFramesWithTimeZero) {
  Made made(small());
  set_weights(made, golden_weights(made));
  const tensor::Batch batch = with(golden_batch(), "given", integers({1, 0, 0}, {1, 3}));
  EXPECT_NEAR(number(all_channels(end_of(made, batch), batch).narrow(2, 1, 2).sum()), -9.679140323479, 1e-11);
}

TEST(Stdit, DrawsEachFrameAsAPictureBeforeItIsTrained) {
  const Made made(small());
  const tensor::Batch batch = golden_batch();
  const at::Tensor clip = all_channels(end_of(made, batch), batch);
  EXPECT_GT(number(clip.abs().max()), 0.1);
  for (int64_t frame = 0; frame < 3; ++frame) {
    const tensor::Batch picture = with(batch, "noised", batch.at("noised").narrow(2, frame, 1));
    const at::Tensor alone = all_channels(end_of(made, picture), picture);
    EXPECT_LT(difference(alone, clip.narrow(2, frame, 1)), 1e-14) << frame;
  }
}

/// A plain STDiT3, with the weights of a folder by name. It reads clips [B, C, T, h, w] row by row, without text pads.
class PlainStdit {
 public:
  explicit PlainStdit(const Weights& weights, int64_t heads, double base_side)
      : w_(weights), heads_(heads), base_side_(base_side) {}

  at::Tensor forward(const tensor::Batch& batch) const {
    std::vector<at::Tensor> rows;
    for (int64_t i = 0; i < batch.rows(); ++i) rows.push_back(row(batch.part(i, 1)));
    return at::stack(rows);
  }

 private:
  at::Tensor linear(const std::string& name, const at::Tensor& x) const {
    return at::linear(x, w_.at(name + ".weight").flatten(1), w_.at(name + ".bias"));
  }
  at::Tensor mlp(const std::string& name, const char* first, const char* second, const at::Tensor& x, bool silu) const {
    const at::Tensor h = linear(name + first, x);
    return linear(name + second, silu ? at::silu(h) : at::gelu(h, "tanh"));
  }
  at::Tensor embedded(const std::string& name, double value) const {
    const at::Tensor w = (at::arange(128, at::kDouble) * (-std::log(10000.) / 128)).exp() * value;
    return mlp(name + ".mlp", ".0", ".2", at::cat({w.cos(), w.sin()}), true);
  }
  static at::Tensor norm(const at::Tensor& x) { return at::layer_norm(x, {x.size(-1)}, {}, {}, 1e-6); }
  /// Pairs of neighbours are complex numbers that turn; x [.., T, D].
  static at::Tensor turned(const at::Tensor& x) {
    const int64_t half = x.size(-1) / 2;
    const at::Tensor w = at::pow(10000., at::arange(half, at::kDouble) / -half),
                     angle = at::arange(x.size(-2), at::kDouble).unsqueeze(1) * w;
    const at::Tensor z = at::view_as_complex(x.unflatten(-1, {half, 2}).contiguous());
    return at::view_as_real(z * at::polar(at::ones_like(angle), angle)).flatten(-2);
  }
  at::Tensor by_head(const at::Tensor& x) const { return x.unflatten(-1, {heads_, -1}).transpose(-2, -3); }
  static at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    const at::Tensor scores = at::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(q.size(-1)));
    return at::matmul(scores.softmax(-1), v).transpose(-2, -3).flatten(-2);
  }
  at::Tensor self_attention(const std::string& name, const at::Tensor& x, bool is_temporal) const {
    const std::vector<at::Tensor> qkv = linear(name + ".qkv", is_temporal ? x.transpose(0, 1) : x).chunk(3, -1);
    const auto normed = [&](const char* which, const at::Tensor& part) {
      const at::Tensor h = by_head(part);
      const at::Tensor y = h * (h.square().mean(-1, true) + 1e-6).rsqrt() * w_.at(name + which);
      return is_temporal ? turned(y) : y;
    };
    const at::Tensor y = attend(normed(".q_norm.weight", qkv[0]), normed(".k_norm.weight", qkv[1]), by_head(qkv[2]));
    return linear(name + ".proj", is_temporal ? y.transpose(0, 1) : y);
  }
  at::Tensor cross_attention(const std::string& name, const at::Tensor& x, const at::Tensor& text) const {
    const std::vector<at::Tensor> kv = linear(name + ".kv_linear", text).chunk(2, -1);
    const at::Tensor q = by_head(linear(name + ".q_linear", x.flatten(0, 1)));
    return linear(name + ".proj", attend(q, by_head(kv[0]), by_head(kv[1]))).view(x.sizes());
  }
  /// Returns the positions of a frame: half of the features of the column, half of the row.
  static at::Tensor positions(int64_t rows, int64_t columns, int64_t features, double scale) {
    const double side = std::round(std::sqrt(static_cast<double>(rows * columns)));
    const at::Tensor w = at::pow(10000., at::arange(features / 4, at::kDouble) / -(features / 4.));
    at::Tensor table = at::empty({rows, columns, features}, at::kDouble);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) {
        const at::Tensor of_column = w * (static_cast<double>(c) * side / static_cast<double>(columns) / scale),
                         of_row = w * (static_cast<double>(r) * side / static_cast<double>(rows) / scale);
        table[r][c] = at::cat({of_column.sin(), of_column.cos(), of_row.sin(), of_row.cos()});
      }
    return table.flatten(0, 1);
  }

  /// Returns the clip [8, T, h, w] of one row.
  at::Tensor row(const tensor::Batch& b) const {
    at::Tensor clip = b.at("noised")[0];
    const int64_t frames = clip.size(1), height = clip.size(2), width = clip.size(3);
    clip = at::constant_pad_nd(clip, {0, width % 2, 0, height % 2});
    const int64_t rows = clip.size(2) / 2, columns = clip.size(3) / 2, hidden = w_.at("x_embedder.proj.bias").size(0);
    const double side = 8 * std::sqrt(static_cast<double>(height * width));
    const at::Tensor weight = w_.at("x_embedder.proj.weight").squeeze(2);
    at::Tensor x =
        at::conv2d(clip.transpose(0, 1), weight, w_.at("x_embedder.proj.bias"), 2).flatten(2).transpose(1, 2);
    x = x + positions(rows, columns, hidden, side / base_side_);
    const at::Tensor rate = embedded("fps_embedder", number(b.at("fps")[0]));
    const at::Tensor c = embedded("t_embedder", number(b.at("times")[0])) + rate, c0 = embedded("t_embedder", 0) + rate;
    const at::Tensor given = b.at("given")[0].ne(0).view({-1, 1, 1});  // of frames
    const auto vectors = [&](const at::Tensor& of_time, const at::Tensor& of_zero, const at::Tensor& table) {
      const auto sum = [&](const at::Tensor& v) { return (v.view({-1, hidden}) + table).unsqueeze(1).unsqueeze(1); };
      return at::where(given.unsqueeze(0), sum(of_zero), sum(of_time));  // [vectors, T, 1, h]
    };
    at::Tensor text = number(b.at("untold")[0]) != 0 ? w_.at("y_embedder.y_embedding") : b.at("text")[0];
    text = mlp("y_embedder.y_proj", ".fc1", ".fc2", text, false);
    text = text.narrow(0, 0, b.at("text_mask")[0].sum().item<int64_t>());
    const at::Tensor block = linear("t_block.1", at::silu(c)), block0 = linear("t_block.1", at::silu(c0));
    for (const bool is_temporal : {false, true}) {
      const std::string name = is_temporal ? "temporal_blocks.0." : "spatial_blocks.0.";
      const at::Tensor m = vectors(block, block0, w_.at(name + "scale_shift_table"));
      x = x + m[2] * self_attention(name + "attn", norm(x) * (1 + m[1]) + m[0], is_temporal);
      x = x + cross_attention(name + "cross_attn", x, text);
      x = x + m[5] * mlp(name + "mlp", ".fc1", ".fc2", norm(x) * (1 + m[4]) + m[3], false);
    }
    const auto twice = [](const at::Tensor& v) { return at::cat({v, v}); };
    const at::Tensor m = vectors(twice(c), twice(c0), w_.at("final_layer.scale_shift_table"));
    const at::Tensor y = linear("final_layer.linear", norm(x) * (1 + m[1]) + m[0]);
    return y.view({frames, rows, columns, 2, 2, 8})
        .permute({5, 0, 1, 3, 2, 4})
        .reshape({8, frames, 2 * rows, 2 * columns})
        .narrow(2, 0, height)
        .narrow(3, 0, width);
  }

  Weights w_;
  int64_t heads_;
  double base_side_;
};

// Sides that patches do not divide, text with pads, given frames and a row without a caption.
TEST(Stdit, HasTheValuesOfAPlainImplementation) {
  Made made(small());
  const Weights weights = random_weights(made);
  set_weights(made, weights);
  const PlainStdit plain(weights, 4, 512);
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{2, 4, 2, 5, 7}, {2, 4, 3, 3, 2}}) {
    tensor::Batch batch =
        clip_batch(random(sizes, 1), random({2, 6, 12}, 2), at::tensor({312.5, 871.}, at::kDouble), 8);
    const int64_t frames = sizes[2];
    at::Tensor given = at::zeros({2, frames}, at::kLong);
    given[1][frames - 1] = 1;
    batch = with(batch, "given", given);
    batch = with(batch, "text_mask", integers({1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 0}, {2, 6}));
    batch = with(batch, "untold", integers({0, 1}, {2}));
    const at::Tensor got = all_channels(end_of(made, batch), batch), want = plain.forward(batch);
    ASSERT_EQ(got.sizes(), want.sizes());
    EXPECT_LT(difference(got, want), 1e-11 * number(want.abs().max())) << sizes;
  }
}

TEST(Stdit, HasTheGradientsOfFiniteDifferences) {
  Made made(small());
  set_weights(made, random_weights(made));
  tensor::Batch batch = with(golden_batch(), "given", integers({0, 1, 0}, {1, 3}));
  batch = with(batch, "text_mask", integers({1, 1, 1, 1, 0, 0}, {1, 6}));
  const auto loss = [&] { return end_of(made, batch).sin().sum(); };
  loss().backward();
  uint64_t seed = 0;
  for (nn::Parameter& p : made.parameters) {
    const at::Tensor way = random(p.value.sizes().vec(), ++seed), slope = (p.value.grad() * way).sum();
    constexpr double kStep = 1e-5;
    const at::NoGradGuard no_grad;
    const auto at_step = [&](double step) {
      p.value.add_(way, step);
      const double value = number(loss());
      p.value.add_(way, -step);
      return value;
    };
    const double measured = (at_step(kStep) - at_step(-kStep)) / (2 * kStep);
    EXPECT_NEAR(number(slope), measured, 1e-5 * (1 + std::abs(measured))) << p.name;
    EXPECT_NE(number(slope), 0) << p.name;
  }
}

TEST(Stdit, PredictsInFp32FromWeightsOf16Bits) {
  Made exact(small()), narrow(small(), /*has_memory=*/true, at::kBFloat16);
  const Weights weights = golden_weights(exact);
  set_weights(exact, weights);
  set_weights(narrow, weights);
  const tensor::Batch batch = with(golden_batch(), "untold", integers({1}, {1}));
  const at::Tensor want = end_of(exact, batch), got = end_of(narrow, batch);
  EXPECT_EQ(got.scalar_type(), at::kFloat);
  EXPECT_LT(difference(got, want), 0.05);
}

TEST(Stdit, HasTheParametersOfThePublishedModel) {
  const Made made(built_in().resolve({.name = "stdit3-xl-2"}), /*has_memory=*/false);
  EXPECT_EQ(made.parameters.numel(), 1'207'643'936);
  const DenoiserSizes sizes = denoiser_of(made.model.shape);
  EXPECT_EQ(sizes.outputs, 4);
  EXPECT_EQ(sizes.unread, 4);
}

TEST(Stdit, WritesTheConfigThatItReads) {
  const ModelShape shape = small();  // which keeps the architecture
  const HuggingFace& folder = shape.architecture->hugging_face;
  const nlohmann::json j = folder.to_json(built_in().resolve({.name = "stdit3-xl-2"}));
  EXPECT_EQ(j["model_type"], "STDiT3");
  EXPECT_EQ(j["depth"], 28);
  EXPECT_EQ(j["patch_size"], nlohmann::json({1, 2, 2}));
  EXPECT_EQ(built_in().shape_of(j), built_in().resolve({.name = "stdit3-xl-2"})) << j.dump();
  const nlohmann::json of_pixels = folder.to_json(built_in().resolve({.name = "stdit3-tiny"}));
  EXPECT_EQ(built_in().shape_of(of_pixels).own.as<StditSizes>().cell, 1) << "positions are those of pixels";
  const ModelShape uneven = built_in().resolve({.name = "stdit3-tiny", .hidden = 104, .ffn = 107});
  EXPECT_EQ(built_in().shape_of(folder.to_json(uneven)).ffn, 107) << "104 * (107 / 104.) is less than 107";
  ModelShape rounder = uneven;
  rounder.norm_epsilon = 1e-4;
  EXPECT_EQ(built_in().shape_of(folder.to_json(rounder)).norm_epsilon, 1e-4);
  EXPECT_FALSE(of_pixels.contains("norm_epsilon")) << "1e-6 is the one of Open-Sora";
  const auto refused = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json other = j;
    other[key] = value;
    return test::thrown_message([&] { built_in().shape_of(other); });
  };
  EXPECT_THAT(refused("patch_size", {2, 2, 2}), HasSubstr("patch_size must be 1 frame and two equal sides"));
  EXPECT_THAT(refused("patch_size", {1, 0, 0}), HasSubstr("must be from 1 to 1048576: got 0"));
  EXPECT_THAT(refused("qk_norm", false), HasSubstr("qk_norm"));
  EXPECT_THAT(refused("skip_y_embedder", true), HasSubstr("skip_y_embedder"));
}

TEST(Stdit, RefusesSizesThatItCannotDivide) {
  const auto refused = [](ModelConfig config) {
    config.name = "stdit3-tiny";
    return test::thrown_message([&] { built_in().resolve(config); });
  };
  EXPECT_EQ(refused({}), "");
  EXPECT_THAT(refused({.layers = 3}), HasSubstr("layers of an STDiT must be even"));
  EXPECT_THAT(refused({.dropout = 0.1}), HasSubstr("an STDiT has no dropout"));
}

}  // namespace
}  // namespace colossal::models::stdit_test
