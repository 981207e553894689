// The storage of parameters, gradients and states by a config: options of the chunk store and of its gradients.
//
//   memory::ChunkStore store(parameters, mesh, train::chunk_options(config, parameters.options().dtype));
//   parallel::GradientReducer reducer(store, train::gradient_options(config, parameters.options().dtype));
#pragma once
#include <c10/core/ScalarType.h>

#include "colossal/memory/chunk_store.h"
#include "colossal/parallel/data/chunk_gradients.h"
#include "colossal/run/config.h"

namespace colossal::train {

/// Returns options for a store of parameters of `dtype`. The caller adds an offload store and a device counter if the
/// run has tiers.
memory::ChunkOptions chunk_options(const run::Config& config, at::ScalarType dtype);

/// Returns options for gradients. Micro-batches are summed in fp32 or fp64. In a pipeline, whose micro-batches overlap,
/// gradients are reduced once per step.
parallel::GradientOptions gradient_options(const run::Config& config, at::ScalarType dtype);

}  // namespace colossal::train
