// How a config stores parameters, gradients and states: the options of the chunk store and of its gradients.
//
//   memory::ChunkStore store(parameters, mesh, train::chunk_options(config, parameters.options().dtype));
//   parallel::GradientReducer reducer(store, train::gradient_options(config, parameters.options().dtype));
#pragma once
#include <c10/core/ScalarType.h>

#include "colossal/memory/chunk_store.h"
#include "colossal/parallel/data/chunk_gradients.h"
#include "colossal/run/config.h"

namespace colossal::train {

/// Options of the store of parameters of `dtype`. The caller adds a home and a device counter, if the run has tiers.
memory::ChunkOptions chunk_options(const run::Config& config, at::ScalarType dtype);

/// Micro-batches are added up in fp32 at least. In a pipeline, whose micro-batches overlap, gradients are reduced once
/// a step.
parallel::GradientOptions gradient_options(const run::Config& config, at::ScalarType dtype);

}  // namespace colossal::train
