// Clipping, and the norm of the whole model's gradient, whatever its layout.
#pragma once
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/memory/shard.h"

namespace colossal::optim {

enum class NormOrder { Two, Infinity };

/// What this rank knows of the norm: the sum of the squares that it counts, or its largest magnitude; a 0-dim fp64
/// tensor on the device of the gradients, for which nobody waits here; undefined: this rank has none. Shards without
/// gradients count nothing. Where some shards are lent on an accelerator and some on the host it is on the accelerator.
at::Tensor own_norm(const std::vector<memory::Shard>& shards, const tensor::Place& place, NormOrder order);

/// The norm of all ranks' gradient, of which this one knows `own`, the number of own_norm(), 0 for an undefined one.
/// Communication: one all_reduce of one double over all ranks. Every rank must call, with or without gradients.
double joint_norm(double own, comm::Mesh& mesh, NormOrder order);

/// joint_norm() of own_norm(): norm of the logical gradient, every element counted once, by the rank that holds its
/// first copy; padding counts as zero. A gradient with a NaN or an infinity has a norm that is not finite, on every
/// rank. Gradients must already be summed over the ranks whose partial sums they are.
///
/// Communication: joint_norm()'s.
/// Cost:          a pass over the gradients; the host waits for the device once, whatever the number of parameters.
double gradient_norm(const std::vector<memory::Shard>& shards, comm::Mesh& mesh, NormOrder order = NormOrder::Two);

/// The factor that brings a gradient of this norm down to `limit`, 1 where it is not longer. limit 0: no clipping.
double clip_factor(double norm, double limit);

/// Every element of the gradients, in place, into [-limit, limit]; NaN stays NaN. No communication.
/// Errors ("optimizer"): a limit that is not above 0.
void clip_by_value(const std::vector<memory::Shard>& shards, double limit);

}  // namespace colossal::optim
