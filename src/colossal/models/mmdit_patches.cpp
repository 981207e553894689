#include "colossal/models/mmdit_patches.h"

#include <ATen/ATen.h>

#include <vector>

#include "colossal/base/error.h"
#include "colossal/models/initial_deviations.h"
#include "colossal/nn/linear.h"
#include "colossal/nn/patches.h"
#include "colossal/nn/sinusoids.h"
#include "colossal/nn/tokens.h"

namespace colossal::models {

namespace mmdit {

constexpr const char *kGiven = "given", *kShown = "shown";  // fields

/// Returns the patches of pictures [B, C, height, width], or of the frames of clips [B, C, frames, height, width], as
/// one sequence. Pictures whose sides the patch does not divide are padded with zeros.
at::Tensor patches_of(const at::Tensor& pictures, int64_t patch) {
  const bool is_clip = pictures.dim() == 5;
  at::Tensor frames = is_clip ? pictures.transpose(1, 2).flatten(0, 1) : pictures;
  const nn::PatchShape shape = nn::patches_over({frames.size(1), frames.size(2), frames.size(3), patch, 0});
  if (shape.height != frames.size(2) || shape.width != frames.size(3))
    frames = at::constant_pad_nd(frames, {0, shape.width - frames.size(3), 0, shape.height - frames.size(2)});
  const at::Tensor patches = nn::cut_patches(frames, shape);
  return is_clip ? patches.unflatten(0, {pictures.size(0), -1}).flatten(1, 2) : patches;
}

}  // namespace mmdit

MmditGivenFrames::MmditGivenFrames(const ModelShape& s, nn::Layers& make)
    : own_(s.own.as<MmditSizes>()),
      part_(make.field_part()),
      weight_(make.vector("given.weight", {s.hidden, (own_.channels + 1) * own_.patch * own_.patch}, {.decay = true})),
      bias_(make.vector("given.bias", {s.hidden}, {})) {}

at::Tensor MmditGivenFrames::read(const at::Tensor& clips, const nn::ForwardContext& step) const {
  const tensor::Batch& batch = *step.batch;
  std::vector<int64_t> sizes = clips.sizes().vec();
  sizes[1] = 1;
  if (!batch.find(mmdit::kGiven).defined()) {
    sizes[1] += clips.size(1);
    return mmdit::patches_of(at::zeros(sizes, clips.options()), own_.patch);
  }
  require(batch.find(mmdit::kShown).defined(), "data",
          "a batch with given frames must have them in the field `shown`: got none; add it (models/denoiser.h)");
  const auto as_clips = [&](const char* name) { return part_(batch.field(name), step).to(clips.scalar_type()); };
  const at::Tensor mask = as_clips(mmdit::kGiven).view({sizes[0], 1, sizes[2], 1, 1});
  return mmdit::patches_of(at::cat({mask.expand(sizes), as_clips(mmdit::kShown) * mask}, 1), own_.patch);
}

at::Tensor MmditGivenFrames::forward(const at::Tensor& patches) const {
  return nn::linear(patches, weight_->value(), bias_->value());
}

MmditPatches::MmditPatches(const ModelShape& s, nn::Layers& make)
    : own_(s.own.as<MmditSizes>()),
      part_(make.field_part()),
      tokens_(make.own_tokens()),
      features_(make.features(s.hidden, nn::Place::Outside)),
      dtype_(make.parameters().options().dtype) {
  const int64_t side = own_.patch, inputs = own_.channels * side * side;
  // a convolution in folders of models with a table, and a matrix in others
  std::vector<int64_t> sizes{s.hidden, inputs};
  if (own_.table > 0) sizes = {s.hidden, own_.channels, side, side};
  weight_ = make.vector("patches.weight", sizes, {.init = nn::Init::normal(glorot(inputs, s.hidden)), .decay = true});
  bias_ = make.vector("patches.bias", {s.hidden}, {});
  if (own_.table > 0) make_table(s.hidden, make.parameters());
  if (own_.frames > 0) given_ = std::make_unique<MmditGivenFrames>(s, make);
}

at::Tensor MmditPatches::forward(const tensor::Batch& batch, const nn::ForwardContext& step) const {
  const nn::Share tokens = tokens_(step).sequence;
  const auto own = [&](const at::Tensor& x, int64_t dim) { return tokens.of(x, dim, "sequence"); };
  const at::Tensor pictures = part_(batch.field("noised"), step).to(dtype_);
  const at::Tensor x =
      nn::linear(own(mmdit::patches_of(pictures, own_.patch), 1), weight_->value().flatten(1), bias_->value());
  if (given_) return x + given_->forward(own(given_->read(pictures, step), 1));
  if (!table_.defined()) return x;
  const nn::Range here = features_->here();
  return x + own(middle(mmdit_grid(own_, batch)), 0).narrow(1, here.first, here.size);
}

/// The table counts the patches of the pictures for which the model is made, whatever its side.
void MmditPatches::make_table(int64_t hidden, nn::Parameters& parameters) {
  const int64_t side = own_.table;
  table_ = parameters.buffer("positions", tensor::ShardSpec::whole({side * side, hidden}), dtype_).value;
  if (!table_.defined()) return;  // another stage of a pipeline has it
  const at::Tensor indices = at::arange(side, at::TensorOptions(table_.device()).dtype(at::kDouble));
  const at::Tensor places = indices / (static_cast<double>(side) / static_cast<double>(own_.height / own_.patch));
  table_.copy_(nn::picture_positions(places, places, hidden));
}

/// Returns the rows of the table for a picture, [patches, H].
at::Tensor MmditPatches::middle(const MmditGrid& grid) const {
  const int64_t side = own_.table;
  require(grid.rows <= side && grid.columns <= side, "model", "a picture must have at most ", side, " x ", side,
          " patches, as the table of positions has: got ", grid.rows, " x ", grid.columns);
  return table_.view({side, side, -1})
      .narrow(0, (side - grid.rows) / 2, grid.rows)
      .narrow(1, (side - grid.columns) / 2, grid.columns)
      .flatten(0, 1);
}

}  // namespace colossal::models
