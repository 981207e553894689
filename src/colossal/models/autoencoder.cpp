#include "colossal/models/autoencoder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/models/not_finite.h"
#include "colossal/models/task.h"
#include "colossal/nn/batch_step.h"

namespace colossal::models {
namespace {

tensor::Batch picture_batch(const char* name, const at::Tensor& pictures) {
  using tensor::Dim;
  tensor::Batch batch;
  batch.add(name, {pictures, {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
  return batch;
}

/// Returns x [B, C, h, w] as hidden states [B, h w, C].
at::Tensor as_cells(const at::Tensor& x) { return x.flatten(2).transpose(1, 2).contiguous(); }

/// Returns hidden states [B, h w, C] as [B, C, h, w].
at::Tensor as_channels(const at::Tensor& x, int64_t height, int64_t width) {
  return x.transpose(1, 2).unflatten(2, {height, width}).contiguous();
}

/// Returns a number for each channel of x [B, C, ...], in its dtype.
at::Tensor of_channels(const std::vector<double>& numbers, const at::Tensor& x) {
  require(x.dim() > 2 && x.size(1) == static_cast<int64_t>(numbers.size()), "model", "latents must be [B, ",
          numbers.size(), ", ...]: got ", x.sizes());
  std::vector<int64_t> sizes(static_cast<size_t>(x.dim()), 1);
  sizes[1] = x.size(1);
  const at::Tensor all = at::empty(sizes, at::TensorOptions(at::kDouble));
  std::copy(numbers.begin(), numbers.end(), all.mutable_data_ptr<double>());
  return all.to(x.options());
}

/// Returns the blocks that decode.
Stage decoder_of(const Model& model) {
  return {.first = autoencoder_of(model.shape).encoder_blocks,
          .last = static_cast<int64_t>(model.blocks.size()),
          .embeds = false,
          .ends = true};
}

/// Returns the states with which they begin.
States states_of(const Model& model, const at::Tensor& latents) {
  States states(model.states.size());
  states.at(AutoencoderStates::latent) = as_cells(latents);
  return states;
}

}  // namespace

AutoencoderSizes autoencoder_of(const ModelShape& shape) {
  const auto sizes = shape.part<AutoencoderSizes>();
  require(sizes.channels > 0, "objective",
          "reconstruction needs a model that encodes and decodes pictures: got one that ", shape.task().purpose(),
          "; name an autoencoder, such as model.name = \"autoencoder-kl-tiny\"");
  return sizes;
}

at::Tensor reconstructed_pictures(const at::Tensor& end, int64_t height, int64_t width) {
  require(end.dim() == 3 && end.size(1) == height * width, "model", "the reconstruction of pictures of ", height, " x ",
          width, " must be [B, ", height * width, ", channels]: got ", end.sizes());
  return as_channels(end, height, width);
}

at::Tensor moments_of(const Model& model, const at::Tensor& pixels) {
  const AutoencoderSizes sizes = autoencoder_of(model.shape);
  require(pixels.dim() == 4 && pixels.size(2) >= sizes.factor && pixels.size(3) >= sizes.factor, "model",
          "pictures to encode must be [B, channels, H, W] of at least ", sizes.factor, " x ", sizes.factor,
          " pixels, a cell of a latent: got ", pixels.sizes());
  const at::NoGradGuard no_grad;
  const Stage encoder{.first = 0, .last = sizes.encoder_blocks, .embeds = true, .ends = false};
  const States states = run_stage(model, encoder, {}, nn::step_of(picture_batch("images", pixels)));
  return as_channels(states.at(AutoencoderStates::moments), sizes.cells(pixels.size(2)), sizes.cells(pixels.size(3)));
}

std::string not_finite_in_decoder(const Model& model, const at::Tensor& latents) {
  return first_not_finite(model, decoder_of(model), states_of(model, latents),
                          nn::step_of(picture_batch("latents", latents)));
}

at::Tensor decoded(const Model& model, const at::Tensor& latents) {
  const AutoencoderSizes sizes = autoencoder_of(model.shape);
  require(latents.dim() == 4 && latents.size(1) == sizes.channels, "model", "latents must be [B, ", sizes.channels,
          ", h, w]: got ", latents.sizes());
  const at::NoGradGuard no_grad;
  const States states =
      run_stage(model, decoder_of(model), states_of(model, latents), nn::step_of(picture_batch("latents", latents)));
  return reconstructed_pictures(states.at(AutoencoderStates::hidden), latents.size(2) * sizes.factor,
                                latents.size(3) * sizes.factor);
}

at::Tensor latent_of(const AutoencoderSizes& sizes, const at::Tensor& sample) {
  const at::Tensor scaled = (sample - sizes.shift) * sizes.scaling;
  if (sizes.means.empty()) return scaled;
  return (scaled - of_channels(sizes.means, sample)) / of_channels(sizes.deviations, sample);
}

at::Tensor sample_of(const AutoencoderSizes& sizes, const at::Tensor& latent) {
  if (sizes.means.empty()) return latent / sizes.scaling + sizes.shift;
  const at::Tensor scaled = latent * of_channels(sizes.deviations, latent) + of_channels(sizes.means, latent);
  return scaled / sizes.scaling + sizes.shift;
}

}  // namespace colossal::models
