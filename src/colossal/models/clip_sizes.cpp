#include "colossal/models/clip_sizes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::models {

GivenClip clip_of(const tensor::Batch& batch) {
  const at::Tensor latents = batch.find("latents");
  const at::Tensor& clip = latents.defined() ? latents : batch.at("images");
  require(clip.dim() == 4 || clip.dim() == 5, "model",
          "clips must be [B, channels, frames, height, width], and pictures [B, channels, height, width]: got ",
          clip.sizes());
  return {{clip.dim() == 5 ? clip.size(2) : 1, {clip.size(-2), clip.size(-1)}}, latents.defined()};
}

at::Tensor as_clip_pixels(const at::Tensor& clips) {
  const at::Tensor all = clips.dim() == 4 ? clips.unsqueeze(2) : clips;
  return all.permute({0, 2, 3, 4, 1}).flatten(2, 3).contiguous();
}

std::vector<State> clip_states(const std::function<ClipState(const tensor::Batch& batch, int64_t block)>& hidden,
                               const std::function<ClipSize(const tensor::Batch& batch)>& latent, int64_t channels,
                               at::ScalarType exact) {
  using tensor::Dim;
  const auto cells = [&](const char* name, int64_t features) -> State {
    return {.name = name,
            .dims = {Dim::Row, Dim::Other, Dim::Other},
            .sizes = [latent, features](const nn::ForwardContext& step, int64_t) -> std::vector<int64_t> {
              const ClipSize size = latent(*step.batch);
              return {step.batch->rows(), size.frames * size.picture.pixels(), features};
            },
            .dtype = exact};
  };
  return {{.name = "hidden",
           .dims = {Dim::Row, Dim::Other, Dim::Token, Dim::Feature},
           .sizes = [hidden](const nn::ForwardContext& step, int64_t block) -> std::vector<int64_t> {
             const ClipState state = hidden(*step.batch, block);
             return {step.batch->rows(), state.size.frames, state.size.picture.pixels(), state.features};
           }},
          cells("moments", 2 * channels),
          cells("latent", channels)};
}

void check_clip_sizes(const ClipSize& size, int64_t factor, int64_t frame_factor) {
  for (const auto& [name, side] : {std::pair{"height", size.picture.height}, {"width", size.picture.width}})
    require(side % factor == 0, "model", name, " must be divisible by ", factor,
            ", the pixels of a side for a cell: got ", side,
            "; nearest: ", std::max<int64_t>(1, (side + factor / 2) / factor) * factor);
  require((size.frames - 1) % frame_factor == 0, "model", "frames must be ", frame_factor, " k + 1: got ", size.frames,
          "; nearest: ", (size.frames - 1 + frame_factor / 2) / frame_factor * frame_factor + 1);
}

}  // namespace colossal::models
