// The choice of memory.recompute = "auto": which blocks of a rank are computed again in backward.
//
//   const auto engine = train::initialize(world, config, shape);       // chooses
//   log.info(train::describe(engine->recomputation()));
//   // recompute = "auto": recomputes blocks [0-7 [0-3]] [8-9]; 31 % of the forward pass runs again; activations take
//   // 5.6 GiB of 6.0 GiB, with 1 micro-batch in flight
#pragma once
#include <cstdint>
#include <string>

#include "colossal/base/segments.h"
#include "colossal/comm/mesh.h"
#include "colossal/train/run_models.h"

namespace colossal::distributed {
class DistributedModel;
}

namespace colossal::train {

/// Part of a device's memory that the tensors of a run may take. The rest is for libraries and fragmentation.
inline constexpr double kUsablePart = 0.9;

/// The recomputation of one rank.
struct RecomputeChoice {
  bool is_chosen = false;  ///< false = memory.recompute is not "auto", and the rest is empty
  Segments segments{};     ///< by number of the block
  int64_t budget = 0;      ///< bytes for the activations of the rank
  int64_t peak = 0;        ///< bytes that they take at most, by the measured sizes
  int64_t in_flight = 1;   ///< most passes of a micro-batch through a stage whose activations exist at once
  double repeated = 0;     ///< operations that backward repeats / operations of a forward pass
  bool operator==(const RecomputeChoice&) const = default;
};

/// Returns a line for logs and predictions. In brackets are the blocks of a segment, then the segments of its
/// recomputation; "on the host" marks a segment whose input waits there.
std::string describe(const RecomputeChoice& choice);

/// Returns the bytes for activations of a rank of the same pipeline stage as `rank`, if the tensors of the rank may
/// take `device_bytes`: these less parameters, gradients and states (memory_needs()), and less two whole chunks of
/// parameters and of gradients if these are sharded or offloaded. Negative = not even these fit. A planner stores the
/// result in config.memory.activations, so that a run on shapes stands for a device that this machine lacks.
/// No communication. Errors: as memory_needs().
int64_t activation_budget(const ConfiguredRun& run, int rank, int64_t device_bytes);

/// Returns config.memory.activations, or else what activation_budget() says for memory.device, or else for 0.9 of the
/// memory of the device; on the CPU the ranks of a machine have equal parts of its memory less memory.host. The result
/// is the smallest of all ranks of the mesh's world.
/// Communication: comm::agree() and an all_reduce of 8 bytes over all ranks, unless config.memory.activations is set.
/// Errors ("memory"): the memory of the device cannot be read. As activation_budget().
int64_t agreed_activation_budget(const ConfiguredRun& run, comm::Mesh& mesh, at::Device device);

/// Returns the fastest recomputation within `budget` for the stages of `built`, the distributed main model
/// (plan/rotor.h).
/// Each pass in flight has an equal part of the budget, and each stage its own tree. It follows from the config, the
/// shape and the budget alone, so all ranks of a stage choose alike. Recomputation changes no number, so a run may
/// resume with another choice.
///
/// Inputs of segments may wait on the host if the run stores recomputed inputs in tiers (memory.device or memory.disk).
/// A byte copied costs as much as 100 operations on a CPU and 10,000 on an accelerator; that is 1e12 operations/s by
/// 1e10 bytes/s, and 5e14 by 5e10.
///
/// No communication. Time: measured_chains() and plan_recomputation(). Errors: as measured_chains(). "memory": a budget
/// below the smallest peak, with that peak.
RecomputeChoice choose_recompute(const ConfiguredRun& run, const distributed::DistributedModel& built, int64_t budget);

}  // namespace colossal::train
