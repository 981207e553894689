// What a mode of parallel sequences costs: traffic, memory and operations of the attention of one layer, by formula and
// as measured.
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

/// softmax(q k) v in fp32, of one document a row. In bf16 and fp16 everything takes half the bytes, but what is fp32
/// there, too: logarithms of sums, the weights of ring-self-attention, and on their way the gradients of keys and
/// values (gather, ring, usp, ring-self-attention); and where queries stand under ulysses, in integers of 8 bytes.
struct AttentionSizes {
  int64_t batch = 1;
  int64_t tokens = 2048;  ///< of a row, all ranks together
  int64_t heads = 16;
  int64_t kv_heads = 16;
  int64_t head_dim = 64;
  bool causal = true;
};

/// Cost of one rank.
struct AttentionCost {
  double forward = 0, backward = 0;  ///< bytes sent (Group's convention)
  /// Of both, what goes from node to node, over the outer ring of sequence.node; 0 where none is given
  double between_nodes = 0;
  double calls = 0;  ///< of both: collectives, sends and receives
  /// Kept from forward for backward, and the result, which the next layer keeps: q, k and v as the mode computes with
  /// them, a number a query and head (or whole weights), under ulysses where each query stands.
  double activation_bytes = 0;
  double operations = 0;  ///< of both, floating-point, of the pairs of a query and a key that the mask lets through
};

/// Every mode that `ranks` ranks can form: one each, usp for each size of its inner groups that is more than one rank
/// and less than all, and ring and each usp once more for each number of ranks a node, more than one, that it takes.
std::vector<SequenceConfig> sequence_modes(int64_t ranks);

/// "ring", "ring node 4", "usp ulysses 2"
std::string mode_name(const SequenceConfig& config);

/// By formula, exactly, for any sizes: docs/explanation/sequence-parallel.md has them for tokens that divide. The
/// sources are those of the modes (modes.h); that of operations is 12 D a head and pair, a third of them forward.
/// Errors ("parallel"): those of check_sequence() and of check_heads(); key-value heads that do not divide heads.
std::vector<AttentionCost> published_cost(const SequenceConfig& config, const AttentionSizes& sizes);

/// Attention itself, forward and backward once on random numbers, a thread a rank.
///
/// Traffic: World::traffic(). Activations: what a memory::Account of the rank has when forward is done and nobody else
///          holds q, k and v. Operations: what is announced to a tensor::FlopCount.
/// Threads: sets LibTorch's number of threads to one a rank.
/// Errors:  those of published_cost(), before any thread is started.
std::vector<AttentionCost> measured_cost(const SequenceConfig& config, const AttentionSizes& sizes);

}  // namespace colossal::parallel
