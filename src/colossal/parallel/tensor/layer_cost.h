// What a mode of tensor parallelism costs: traffic and memory of one transformer layer, by the published formulas and
// as measured.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/parallel/tensor/layout.h"

namespace colossal::parallel {

/// The four linear layers of a GPT layer without biases: heads h -> 3h, from_heads h -> h, expand h -> 4h, contract 4h
/// -> h; fp32.
struct LayerSizes {
  int64_t hidden = 1024;
  int64_t heads = 64;
  int64_t batch = 8;
  int64_t sequence = 256;
};

/// Cost of one rank.
struct LayerCost {
  /// Elements sent (Group's convention), the sum of weight gradients over copies of a weight included in backward
  double forward = 0, backward = 0;
  double calls = 0;  ///< collectives of both
  double parameter_bytes = 0;
  /// Kept from forward for backward: inputs of the linear layers, with keep_gathered weights too
  double activation_bytes = 0;
};

/// Errors: those of check_sizes(); heads that do not divide hidden. No communication.
void check_layer(const TensorConfig& config, const LayerSizes& sizes);

/// Every mode that `ranks` ranks can form: 1d first, with replicated tokens, with sequence, and with that and
/// keep_gathered; q^2 ranks 2d; depth * q^2, for each depth > 1 and q > 1, 2.5d; l^3 3d with and without keep_gathered.
std::vector<TensorConfig> tensor_modes(int64_t ranks);

/// "2.5d depth 4", "3d keep_gathered"
std::string mode_name(const TensorConfig& config);

/// The formulas of Megatron-LM (its sequence form: Korthikanti et al.), Optimus, Tesseract and 3D (see modes.h), for
/// sizes that divide: padding costs more than they say.
LayerCost published_cost(const TensorConfig& config, const LayerSizes& sizes);

/// The layers themselves, run forward and backward once on random numbers, a thread a rank; an element of the result
/// for each rank.
///
/// Traffic: World::traffic(). Parameters: distinct storages. Activations: bytes that the allocator handed out during
///          forward and that still live after it, less the output, which is the next layer's input.
/// Threads: sets LibTorch's number of threads to one a rank.
/// Errors:  those of check_layer(), before any thread is started.
std::vector<LayerCost> measured_cost(const TensorConfig& config, const LayerSizes& sizes);

}  // namespace colossal::parallel
