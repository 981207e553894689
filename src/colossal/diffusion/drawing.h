// Draws pictures or clips with a model that predicts their noise.
//
//   const noise::SamplerPlan plan = noise::plan_sampler(levels, {.sampler = "ddim", .steps = 25});
//   const Drawing drawing{.classes = {3, 3}, .seeds = {1, 2}, .guidance = 4};
//   const at::Tensor pictures = draw(model, plan, drawing);          // [2, C, h, w], pixels in [-1, 1] or latents
//   const data::Picture first = picture_of(pictures[0]);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/comm/group.h"
#include "colossal/data/pictures/picture.h"
#include "colossal/diffusion/attention_broadcast.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/noise/sampler.h"
#include "colossal/ops/convolution.h"
#include "colossal/tensor/batch.h"

namespace colossal::diffusion {

/// A request for n pictures. Of a model of clips each is a clip: where a picture has the sizes [n, C, h, w], it has
/// [n, C, frames, h, w], and a mask [n, 1, frames, h, w].
struct Drawing {
  std::vector<int64_t> classes{};  ///< the class of each picture; the null class is the one after the last
  /// Of a model that reads text, in place of classes: its fields (models/denoiser.h) for each picture's caption, and
  /// for the captions that guidance leads away from, with n rows each. Both have the model's conditions
  /// (models/conditions.h), but `guidance` and `sizes`, which follow from the drawing
  tensor::Batch told{}, untold{};
  std::vector<uint64_t> seeds{};  ///< the seed of each picture
  ops::PictureSize size{};        ///< of the pictures, in cells; zeros = that of the model
  int64_t frames = 0;             ///< of a clip, as the model draws it; 0 = those of the model. Only of clips
  double guidance = 1;            ///< weight of classifier-free guidance (2207.12598); 1 = none, one pass a step. A
                                  ///< model with DenoiserSizes::told_guidance is told it, and has one pass
  int64_t factor = 1;             ///< pixels of a side of a cell, for a model with DenoiserSizes::sizes: it is told
                                  ///< those of the picture, as original size and as target, without a cut
  double rescale = 0;             ///< share of the deviation that guidance changed which is given back (2305.08891)
  at::Tensor start{};             ///< standard normal noise [n, C, h, w]; undefined = drawn from the seeds
  /// Pictures from which drawing begins, [n, C, h, w] as the model draws them, noised as the first step of the plan
  /// says (2108.01073); undefined = noise alone
  at::Tensor pictures{};
  /// Where they are painted anew, [n, 1, h, w] of 0 and 1: after each step the rest becomes that of `pictures`, noised
  /// (RePaint without its jumps, 2201.09865). Undefined = everywhere
  at::Tensor mask{};
  /// Of a model with DenoiserSizes::beside: what it reads beside each sample, [n, beside, h, w]
  at::Tensor beside{};
  /// Of a model of clips: indices of frames that are given, the same for all clips, and these frames as the model draws
  /// them, [n, C, given_frames, h, w]. The model reads them without noise in every step, and they stay as they are. One
  /// with DenoiserSizes::noises_given reads them at the level of the step, too, as in training
  std::vector<int64_t> given_frames{};
  at::Tensor given{};
  std::function<bool()> stop_requested{};  ///< true = end after the step, with StoppedDrawing; null = never
  /// Of kGuidanceAxis (run/objectives/diffusion/guidance_ranks.h): with two ranks, rank 0 computes the predictions with
  /// classes or captions, and rank 1 those without; null or one rank = this rank computes both
  comm::Group* halves = nullptr;
  /// Steps that reuse attention, of a model whose blocks attend over one of two axes; nullopt = exact. Every layout
  /// reuses alike. A model pass of the sampler is a step
  std::optional<AttentionBroadcast> broadcast{};
};

/// Error for a drawing that Drawing::stop_requested ended.
class StoppedDrawing : public Error {
 public:
  StoppedDrawing() : Error("draw", "the drawing was stopped") {}
};

/// Draws pictures or clips and returns them, [n, C, h, w] or [n, C, frames, h, w] in fp32 (fp64 from a model in fp64)
/// on the host, the same on every rank of the replica, and of Drawing::halves.
///
/// Noise:         of a picture or clip depends on (seed, step) alone, so it does not depend on those beside it but for
///                the rounding of products.
/// Communication: that of DistributedModel::everywhere() in each step, and of run::gathered_halves() over
///                Drawing::halves. All ranks of a replica, and of these, call it alike.
/// Errors ("draw"): other numbers of classes or captions than seeds; a class that the model does not have; a condition
///                  that is not told; tensors of other sizes; frames of a model of pictures; all frames given; a
///                  broadcast of a model without two axes; StoppedDrawing; those of run::check_guidance_ranks().
at::Tensor draw(distributed::DistributedModel& model, const noise::SamplerPlan& plan, const Drawing& drawing);

/// Returns pixels [3, h, w] in [-1, 1] as a picture: clamped, and rounded to 8 bits.
data::Picture picture_of(const at::Tensor& pixels);

}  // namespace colossal::diffusion
