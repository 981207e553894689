// Costs of a mode of tensor parallelism: traffic and memory of one transformer layer, by the published formulas and by
// measurement.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/parallel/tensor/layout.h"

namespace colossal::parallel {

/// Sizes of the four linear layers of a GPT layer without biases: heads h -> 3h, from_heads h -> h, expand h -> 4h,
/// contract 4h -> h; fp32.
struct LayerSizes {
  int64_t hidden = 1024;
  int64_t heads = 64;
  int64_t batch = 8;
  int64_t sequence = 256;
};

/// Cost of one rank.
struct LayerCost {
  /// number of elements sent (Group's convention); backward includes the sum of weight gradients over copies of a
  /// weight
  double forward = 0, backward = 0;
  double calls = 0;  ///< number of collectives in both
  double parameter_bytes = 0;
  /// bytes kept from forward for backward: inputs of the linear layers, with keep_gathered also weights
  double activation_bytes = 0;
};

/// Checks the sizes. Errors: as check_sizes(); heads that do not divide hidden. Does not communicate.
void check_layer(const TensorConfig& config, const LayerSizes& sizes);

/// Returns every mode that `ranks` ranks can form. 1d is first: with replicated tokens, with sequence, and with
/// sequence and keep_gathered. Then follow 2d for q^2 ranks and 2.5d for depth * q^2 ranks (each depth > 1 and q > 1).
/// 3d for l^3 ranks is last, with and without keep_gathered.
std::vector<TensorConfig> tensor_modes(int64_t ranks);

/// Returns the name of a mode: "2.5d depth 4", "3d keep_gathered"
std::string mode_name(const TensorConfig& config);

/// Returns the cost by the formulas of Megatron-LM (its sequence form: Korthikanti et al.), Optimus, Tesseract and 3D
/// (see modes.h). They hold for sizes that divide; padding costs more.
LayerCost published_cost(const TensorConfig& config, const LayerSizes& sizes);

/// Measures the layers: runs them forward and backward once on random numbers, with one thread per rank. Returns one
/// element for each rank.
///
/// Traffic: World::traffic(). Parameters: distinct storages. Activations: bytes that the allocator returned during
///          forward and that are still in use after it, without the output, which is the next layer's input.
/// Threads: sets LibTorch's number of threads to one per rank.
/// Errors:  as check_layer(), before any thread is started.
std::vector<LayerCost> measured_cost(const TensorConfig& config, const LayerSizes& sizes);

}  // namespace colossal::parallel
