// The norm of the whole model's gradient, whatever its layout.
#pragma once
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/memory/shard.h"

namespace colossal::optim {

/// L2 norm of the logical gradient: every element counted once, by the rank that holds its first copy; padding counts as zero.
/// Gradients must already be summed over the ranks whose partial sums they are.
///
/// Communication: one all_reduce of one double over all ranks. Every rank must call, with or without gradients.
double gradient_norm(const std::vector<memory::Shard>& shards, comm::Mesh& mesh);

}  // namespace colossal::optim
