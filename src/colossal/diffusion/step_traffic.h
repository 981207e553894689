// Elements that ranks send in a step of a drawing with a UNet: by formula, and measured.
//
//   const distributed::ParallelConfig layout{.tensor = {.size = 2}};
//   const models::ModelShape shape = models::built_in().resolve({.name = "sd-1.5-tiny"});
//   measured_step_traffic(shape, layout, 1) == step_traffic(shape, layout, 1);
#pragma once
#include <cstdint>

#include "colossal/distributed/config.h"
#include "colossal/models/shape.h"

namespace colossal::diffusion {

/// Returns the elements that all ranks together send in a step in which each replica draws one picture of the shape's
/// size: those that tensor parallelism 1d sums (models::unet_elements_summed), and those of run::gathered_halves().
/// `layout` may have data and tensor 1d. `guidance`: 2 = both passes of guidance on ranks of their own; 1 = one pass,
/// without guidance.
int64_t step_traffic(const models::ModelShape& shape, const distributed::ParallelConfig& layout, int64_t guidance);

/// Runs such a step of a UNet with random weights, and counts. Ranks are threads of this process.
/// Threads: sets LibTorch's number of threads to one for each rank.
/// Errors:  those of DistributedModel.
int64_t measured_step_traffic(const models::ModelShape& shape, const distributed::ParallelConfig& layout,
                              int64_t guidance);

}  // namespace colossal::diffusion
