// Gradient clipping, and the norm of the whole model's gradient under any layout.
#pragma once
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/memory/shard.h"

namespace colossal::optim {

enum class NormOrder { Two, Infinity };

/// Returns this rank's contribution to the norm, as a 0-dim fp64 tensor on the device of the gradients: the sum of the
/// squares that the rank counts, or its largest magnitude. Undefined: the rank has no gradients. Does not wait for the
/// device. Shards without gradients contribute nothing. If some shards are leased on an accelerator and some on the
/// host, the result is on the accelerator.
at::Tensor own_norm(const std::vector<memory::Shard>& shards, const tensor::MeshCoordinates& coordinates,
                    NormOrder order);

/// Returns the norm of the gradient of all ranks. `own` is the value of own_norm() on this rank, 0 for an undefined
/// one.
/// Communication: one all_reduce of one double over all ranks. Every rank must call it, with or without gradients.
double joint_norm(double own, comm::Mesh& mesh, NormOrder order);

/// The norm of the gradient, and the sum of a number over all ranks.
struct NormAndSum {
  double norm, sum;
};
/// Returns joint_norm() of `own` and the sum of `number` over all ranks, both by one message. Numbers must be 0 or
/// more.
/// Communication: one all_reduce over all ranks: of two doubles; with NormOrder::Infinity, whose maximum cannot add up,
///                of one double and one for each rank. Every rank must call it.
NormAndSum joint_norm_and_sum(double own, double number, comm::Mesh& mesh, NormOrder order);

/// Returns joint_norm() of own_norm(): the norm of the logical gradient. Every element is counted once, by the rank
/// that holds its first replica; padding counts as zero. A gradient with a NaN or an infinity has a norm that is not
/// finite, on every rank. Gradients must already be summed over the ranks that hold partial sums of them.
///
/// Communication: as joint_norm().
/// Cost:          a pass over the gradients; the host waits for the device once for any number of parameters.
double gradient_norm(const std::vector<memory::Shard>& shards, comm::Mesh& mesh, NormOrder order = NormOrder::Two);

/// Returns the factor that scales a gradient of this norm to `limit`; 1 if the norm is not larger. limit 0 = no
/// clipping.
double clip_factor(double norm, double limit);

/// Clamps every element of the gradients to [-limit, limit], in place; NaN stays NaN. No communication.
/// Errors ("optimizer"): a limit that is not above 0.
void clip_by_value(const std::vector<memory::Shard>& shards, double limit);

}  // namespace colossal::optim
