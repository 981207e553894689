// Costs of a mode of sequence parallelism: traffic, memory and operations of the attention of one layer, by formula
// and by measurement.
//
//   for (const SequenceConfig& config : sequence_modes(4)) {
//     const auto formula = published_cost(config, sizes), measured = measured_cost(config, sizes);  // of each rank
//     std::printf("%s: %g of %g bytes\n", mode_name(config).c_str(), measured[0].forward, formula[0].forward);
//   }
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/parallel/sequence/config.h"

namespace colossal::parallel {

/// Sizes of softmax(q k) v in fp32, with one document per row. In bf16 and fp16 everything takes half the bytes,
/// except the tensors that stay fp32. These are logarithms of sums, the weights of ring-self-attention, and gradients
/// of keys and values in transit (gather, ring, usp, ring-self-attention). The query positions under ulysses stay
/// integers of 8 bytes.
struct AttentionSizes {
  int64_t batch = 1;
  int64_t tokens = 2048;  ///< tokens per row, over all ranks
  int64_t heads = 16;
  int64_t kv_heads = 16;
  int64_t head_dim = 64;
  bool causal = true;
};

/// Cost of one rank.
struct AttentionCost {
  double forward = 0, backward = 0;  ///< bytes sent (Group's convention)
  /// bytes of both that are sent between nodes, over the outer ring of sequence.node; 0 if no node size is given
  double between_nodes = 0;
  double calls = 0;  ///< number of collectives, sends and receives in both
  /// bytes kept from forward for backward. They include the result, which the next layer keeps, and q, k and v as the
  /// mode computes with them. A mode also keeps a number per query and head, or the whole weights
  /// (ring-self-attention); ulysses also the position of each query
  double activation_bytes = 0;
  double operations = 0;  ///< floating-point operations of both, for the pairs of a query and a key that the mask
                          ///< allows
};

/// Returns every mode that `ranks` ranks can form. Each mode appears once; usp appears once for each size of its inner
/// groups that is more than one rank and fewer than all. Ring and each usp appear again for each possible number of
/// ranks per node above one.
std::vector<SequenceConfig> sequence_modes(int64_t ranks);

/// Returns the name of a mode: "ring", "ring node 4", "usp ulysses 2"
std::string mode_name(const SequenceConfig& config);

/// Returns the cost of each rank by formula, exact for any sizes: docs/explanation/sequence-parallel.md has the
/// formulas for tokens that divide. The sources of the modes are in modes.h. The formula of operations is 12 D per head
/// and pair, a third of it in forward.
/// Errors ("parallel"): as check_sequence() and check_heads(); key-value heads that do not divide heads.
std::vector<AttentionCost> published_cost(const SequenceConfig& config, const AttentionSizes& sizes);
/// Returns the cost of one of these ranks. Time: proportional to the number of ranks; that of all is quadratic in it.
/// Errors ("parallel"): those of all ranks; `rank` outside [0, config.size).
AttentionCost published_cost(const SequenceConfig& config, const AttentionSizes& sizes, int64_t rank);

/// Measures the attention itself: forward and backward once on random numbers, one thread per rank.
///
/// Traffic: World::traffic(). Activations: bytes in a memory::Account of the rank after forward, when no
///          other code holds q, k and v. Operations: those announced to a tensor::FlopCount.
/// Threads: sets LibTorch's number of threads to one per rank.
/// Errors:  as published_cost(), before any thread is started.
std::vector<AttentionCost> measured_cost(const SequenceConfig& config, const AttentionSizes& sizes);

}  // namespace colossal::parallel
