// What a model in training needs of memory at least, known before any of it is taken.
#pragma once
#include <c10/core/Device.h>

#include <cstdint>

#include "colossal/models/shape.h"
#include "colossal/run/config.h"

namespace colossal::train {

/// Bytes that the ranks of a run hold at the end of a backward pass, all of them together and each element as often as
/// the layout holds it. In double, so that no size overflows.
struct MemoryNeed {
  double elements = 0;  ///< of the model: its matrices, without norms, biases and positions
  double parameters = 0, gradients = 0, states = 0;
  double total() const { return parameters + gradients + states; }
};

/// A bound from below: activations, buffers, padding and copies that a tensor mode makes are left out.
MemoryNeed least_memory(const run::Config& config, const models::ModelShape& shape);

/// Bytes that the processes of this machine can have: its memory and swap, or what the cgroup allows of them.
double usable_memory();

/// Errors ("model"): a model that certainly does not fit into `limit` bytes for the `local` of the run's ranks that are
/// on this machine, with the estimate, the limit and what to change. Nothing is refused where ranks compute on an
/// accelerator, as `device` says, whose memory is not this one, nor with memory.disk, nor of a pipeline over several
/// machines, whose stages differ.
void check_memory(const run::Config& config, const models::ModelShape& shape, at::Device device, int64_t local,
                  double limit = usable_memory());

}  // namespace colossal::train
