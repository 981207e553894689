// The norm of the whole model's gradient, whatever its layout.
#pragma once
#include "colossal/comm/mesh.h"
#include "colossal/nn/flat_parameters.h"

namespace colossal::optim {

/// L2 norm of the logical gradient: every element counted once, by the rank that holds its first copy; padding counts as zero.
/// Gradients must already be summed over the data axis and their spec's gradient_axes.
///
/// Communication: one all_reduce of one double over all axes but "data". Every rank must call, with or without gradients.
double gradient_norm(const nn::FlatParameters& flat, comm::Mesh& mesh);

}  // namespace colossal::optim
