#include "colossal/models/families/patch_discriminator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/models/built_in.h"
#include "colossal/models/task.h"
#include "colossal/nn/convolution.h"
#include "colossal/nn/features.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/outputs.h"
#include "colossal/ops/group_norm.h"

namespace colossal::models {
namespace {

constexpr int64_t kKernelSide = 4, kMostFeatures = 8, kMostDepth = 16;

/// Returns how the kernel of each convolution passes over a picture.
ops::Window patch_window(int64_t stride) { return {stride, 1, 1, 1, 1}; }

}  // namespace

int64_t PatchDiscriminatorSizes::features_after(int64_t block) const {
  return features * std::min(kMostFeatures, int64_t{1} << (block + 1));
}

ops::PictureSize PatchDiscriminatorSizes::size_after(int64_t block, const ops::PictureSize& picture) const {
  const auto side_after = [&](int64_t side, int64_t last) {
    side /= 2;  // of the first convolution
    for (int64_t i = 0; i <= last; ++i) side = stride(i) == 2 ? side / 2 : side - 1;
    return side;
  };
  const int64_t least = (int64_t{1} << depth) * 3;
  require(std::min(picture.height, picture.width) >= least, "model", "a patch_discriminator with ", depth,
          " blocks scores pictures of at least ", least, " x ", least, " pixels: got ", picture.height, " x ",
          picture.width, "; take larger pictures, or a discriminator with fewer blocks");
  return {side_after(picture.height, block), side_after(picture.width, block)};
}

void PatchDiscriminatorSizes::fields(Fields& f) {
  f.integer("channels", channels, "channels", "number of channels of a picture", 1, kMaxSize);
  f.integer("features", features, "features", "features of the first convolution", 1, kMaxSize >> 4);
  f.integer("depth", depth, "", "blocks after the first convolution; all but the last halve the sides", 1, kMostDepth);
  f.integer("groups", groups, "", "groups of each norm; 0 = no norms", 0, kMaxSize);
}

namespace patch_discriminator {  // a namespace of its own, because every family has functions of these names

constexpr double kEpsilon = 1e-5, kInitialDeviation = 0.02, kSlope = 0.2;

/// The model judges what another one makes, so it is not trained alone.
Task task(const ModelShape&) { return {.reads = Reads::Fields, .writes = Writes::Nothing, .objective = ""}; }

void settle(ModelShape& s) {
  const auto own = s.own.as<PatchDiscriminatorSizes>();
  for (const auto& [name, size] : {std::pair{"channels", own.channels}, {"features", own.features}})
    require(size > 0, "model", name, " must be positive: got ", size);
  require(own.depth > 0 && own.depth <= kMostDepth, "model", "depth must be between 1 and ", kMostDepth, ": got ",
          own.depth);
  for (int64_t block = 0; block < own.depth && own.groups != 0; ++block)
    require(own.groups > 0 && own.features_after(block) % own.groups == 0, "model",
            "groups must divide the features of each block: got ", own.groups, " and ", own.features_after(block),
            "; set model.groups or model.features");
  require(s.dropout == 0, "model", "a patch_discriminator has no dropout: got ", s.dropout, "; set model.dropout = 0");
  s.hidden = own.features_after(own.depth - 1);
  s.layers = own.depth;
  s.norm_epsilon = kEpsilon;
  s.tied = false;
}

ops::PictureSize picture_of(const tensor::Batch& batch) {
  const at::Tensor& images = batch.at("images");
  return {images.size(-2), images.size(-1)};
}

int64_t frames_of(const tensor::Batch& batch) {
  const at::Tensor& images = batch.at("images");
  return images.dim() == 5 ? images.size(2) : 1;
}

/// Returns hidden states [B, T patches, F] by frame, [B T, patches, F], and the reverse.
at::Tensor by_frame(const at::Tensor& x, const nn::ForwardContext& step) {
  return x.unflatten(1, {frames_of(*step.batch), -1}).flatten(0, 1);
}
at::Tensor by_row(const at::Tensor& x, const nn::ForwardContext& step) {
  return x.unflatten(0, {-1, frames_of(*step.batch)}).flatten(1, 2);
}

at::Tensor rectified(const at::Tensor& x) { return at::leaky_relu(x, kSlope); }

nn::LinearOptions kernel() { return {.deviation = kInitialDeviation, .taps = {kKernelSide, kKernelSide}}; }

Block block_of(const PatchDiscriminatorSizes& own, int64_t index, nn::Layers& make) {
  const std::string name = concat("blocks.", index);
  const int64_t in = own.features_after(index - 1), out = own.features_after(index);
  const std::shared_ptr<nn::Dense> conv = make.dense(name + ".conv", in, out, kernel());
  std::shared_ptr<nn::GroupNorm> norm;
  if (own.groups > 0) norm = make.group_norm(name + ".norm", out, {own.groups, kEpsilon}, nn::Place::Outside);
  return Block([=](const at::Tensor& x, const nn::ForwardContext& step) {
    const nn::Pictures pictures{own.size_after(index - 1, picture_of(*step.batch)), patch_window(own.stride(index))};
    const at::Tensor y = conv->forward(by_frame(x, step), pictures);
    return by_row(rectified(norm ? norm->forward(y) : y), step);
  });
}

/// The hidden state has a token for each patch of each frame.
State hidden_of(const PatchDiscriminatorSizes& own) {
  using tensor::Dim;
  const auto sizes = [own](const nn::ForwardContext& step, int64_t block) -> std::vector<int64_t> {
    const int64_t last = std::min(block, own.depth - 1);
    return {step.batch->rows(), frames_of(*step.batch) * own.size_after(last, picture_of(*step.batch)).pixels(),
            own.features_after(last)};
  };
  return {.name = "hidden", .dims = {Dim::Row, Dim::Token, Dim::Feature}, .sizes = sizes};
}

/// Refuses layouts in which a rank does not have whole pictures.
void check_layout(const ModelShape& s, nn::Layers& layers) {
  const bool is_split =
      layers.splits_tokens() || layers.batch_parts() > 1 || layers.features(s.hidden, nn::Place::Outside)->is_split();
  require(!is_split, "parallel",
          "a patch_discriminator needs layouts in which each rank has whole pictures and features: got one that splits "
          "them; set parallel.tensor.size = 1 and parallel.sequence.size = 1, and use data or zero");
}

Model make(const ModelShape& s, nn::Layers& layers) {
  check_layout(s, layers);
  const auto own = s.own.as<PatchDiscriminatorSizes>();
  const at::ScalarType exact = at::promote_types(layers.parameters().options().dtype, at::kFloat);
  Model model;
  model.fields = {"images"};
  model.states = {hidden_of(own)};
  const nn::FieldPart part = layers.field_part();
  const std::shared_ptr<nn::PictureEmbedding> input =
      layers.picture_embedding("input", own.channels, own.features_after(-1), kKernelSide, kInitialDeviation);
  model.embed = [=](const tensor::Batch& batch, const nn::ForwardContext& step) {
    own.size_after(-1, picture_of(batch));  // refuses small pictures
    at::Tensor images = part(batch.field("images"), step);
    if (images.dim() == 5) images = images.transpose(1, 2).flatten(0, 1);
    return by_row(rectified(input->forward(images, patch_window(2))), step);
  };
  for (int64_t i = 0; i < own.depth; ++i) model.blocks.push_back(block_of(own, i, layers));
  const std::shared_ptr<nn::Outputs> head = layers.outputs("head", s.hidden, 1, kernel());
  model.norm = [=](const at::Tensor& x, const nn::ForwardContext& step) {
    const nn::Pictures patches{own.size_after(own.depth - 1, picture_of(*step.batch)), patch_window(1)};
    return by_row(head->forward(by_frame(x.to(exact), step), patches, step), step);
  };
  return model;
}

Preset preset(const char* name, const PatchDiscriminatorSizes& own) {
  ModelShape shape{.tied = false, .own = own};
  settle(shape);
  return {name, shape};
}

}  // namespace patch_discriminator

Architecture patch_discriminator_architecture() {
  return {
      .name = "patch_discriminator",
      .own = PatchDiscriminatorSizes{},
      .presets = {patch_discriminator::preset("patch-discriminator", {}),
                  patch_discriminator::preset("patch-discriminator-tiny", {.features = 8, .depth = 2, .groups = 8})},
      .make = patch_discriminator::make,
      .task = patch_discriminator::task,
      .unused = {"hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "positions"},
      .settle = patch_discriminator::settle};
}

}  // namespace colossal::models
