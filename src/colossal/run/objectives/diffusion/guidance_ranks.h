// Two ranks that share a step of classifier-free guidance: each computes one of its two passes.
//
//   comm::Mesh mesh(world, axes_with_guidance(layout, /*guidance=*/2)), own = mesh.without({kGuidanceAxis});
//   const comm::Group& halves = mesh.group(kGuidanceAxis);
//   const at::Tensor own_half = predict(halves.rank() == 0 ? told : untold);         // a model on the mesh `own`
//   const at::Tensor both = gathered_halves(own_half, halves);                       // [2 n, C, h, w]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/comm/group.h"
#include "colossal/comm/mesh.h"
#include "colossal/distributed/config.h"

namespace colossal::run {

/// The axis of a mesh along which rank 0 computes the predictions with classes or captions, and rank 1 those without.
constexpr const char* kGuidanceAxis = "guidance";

/// Returns the axes of `guidance` copies of a layout, 1 or 2: kGuidanceAxis, then those of the layout.
std::vector<comm::Mesh::Axis> axes_with_guidance(const distributed::ParallelConfig& layout, int64_t guidance);

/// Checks that a drawing with the weight `guidance` has a pass for each of `ranks` ranks. Errors ("draw"): two ranks
/// with guidance 1, which is one pass. The caller gives 1 for a model that is told the weight.
void check_guidance_ranks(int64_t ranks, double guidance);

/// Returns the predictions of both ranks, [2 n, C, h, w], those of rank 0 first; `own` [n, C, h, w] are this rank's.
/// Communication: an all_gather over `halves`.
at::Tensor gathered_halves(const at::Tensor& own, comm::Group& halves);

/// Returns the elements that both ranks together send in gathered_halves() for n predictions of `elements` elements.
int64_t elements_of_halves(int64_t n, int64_t elements);

}  // namespace colossal::run
