// Draws pictures with a model that predicts their noise.
//
//   const noise::SamplerPlan plan = noise::plan_sampler(levels, {.sampler = "ddim", .steps = 25});
//   const Drawing drawing{.classes = {3, 3}, .seeds = {1, 2}, .guidance = 4};
//   const at::Tensor pictures = draw(model, plan, drawing);          // [2, C, h, w], pixels in [-1, 1]
//   const data::Picture first = picture_of(pictures[0]);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/data/pictures/picture.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/noise/sampler.h"

namespace colossal::diffusion {

/// A request for n pictures.
struct Drawing {
  std::vector<int64_t> classes{};  ///< the class of each picture; the null class is the one after the last
  std::vector<uint64_t> seeds{};   ///< the seed of each picture
  double guidance = 1;             ///< weight of classifier-free guidance (2207.12598); 1 = none, one pass a step
  double rescale = 0;              ///< share of the deviation that guidance changed which is given back (2305.08891)
  at::Tensor start{};              ///< standard normal noise [n, C, h, w]; undefined = drawn from the seeds
};

/// Draws pictures and returns them, [n, C, h, w] in fp32 (fp64 from a model in fp64) on the host, the same on every
/// rank of the replica.
///
/// Noise:         of a picture depends on (seed, step) alone, so a picture does not depend on those beside it but for
///                the rounding of products.
/// Communication: that of DistributedModel::everywhere() in each step. All ranks of a replica call it alike.
/// Errors ("draw"): other numbers of classes than seeds; a class that the model does not have; a start of other sizes.
at::Tensor draw(distributed::DistributedModel& model, const noise::SamplerPlan& plan, const Drawing& drawing);

/// Returns pixels [3, h, w] in [-1, 1] as a picture: clamped, and rounded to 8 bits.
data::Picture picture_of(const at::Tensor& pixels);

}  // namespace colossal::diffusion
