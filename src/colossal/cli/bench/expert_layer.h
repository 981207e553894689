// The measurement of `colossal bench experts`: one mixture of experts, forward and backward, with ranks as threads.
//
//   const ExpertWorkload work{.hidden = 64, .experts = 8};
//   const ExpertLayerCost cost = measured_expert_layer(work, 2, nn::Recompute::None);
//   cost.sent == parallel::hidden_states_sent(cost.remote, work.hidden, false);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/nn/recompute.h"
#include "colossal/parallel/expert/traffic.h"

namespace colossal::cli {

/// Sizes of the layer and of the global batch.
struct ExpertWorkload {
  int64_t hidden = 256, ffn = 512;
  int64_t experts = 8, used = 2;
  int64_t batch = 8, sequence = 64;
  int64_t rounds = 3;  ///< number of timed steps
  int64_t node = 0;    ///< ranks of a node (parallel::ExpertConfig::node); 0 = tokens go straight to each rank

  int64_t assignments() const { return batch * sequence * used; }
};

/// Cost of a forward and a backward pass of the layer. Traffic is the sum over all ranks.
struct ExpertLayerCost {
  int64_t remote = 0;            ///< assignments whose expert is on another rank than the token, from chosen_experts()
  parallel::NodeRows node_rows;  ///< rows of both hops from chosen_experts(); zeros without nodes
  int64_t sent = 0;              ///< elements of hidden states and their gradients, in dispatch and combine
  int64_t counts = 0;            ///< integers: numbers of tokens
  int64_t sums = 0;              ///< elements of all_reduces: loads and scores for the balance loss
  int64_t other = 0;             ///< elements of all other calls
  int64_t calls = 0;             ///< largest number of collectives of a rank
  double seconds = 0;            ///< time of the slowest rank; median over the rounds
  double expert_load = 0, rank_load = 0;  ///< as the layer reports them (nn::ExpertMetrics)
};

/// Input and router of the measured layer. All values are small multiples of a power of two. So every logit is exact in
/// fp32 in any order of summation, and chosen_experts() and the layer choose from the same numbers. Equal logits occur.
struct ExactInputs {
  explicit ExactInputs(const ExpertWorkload& work);
  at::Tensor x;       ///< [batch, sequence, hidden], fp32
  at::Tensor router;  ///< weight of the router [experts, hidden], fp32
};

/// Returns the experts of each token, token after token in the order of the batch, best expert first: those with the
/// largest logits, and the lower expert of two equal ones. This is a plain loop that does not use the layer.
std::vector<int64_t> chosen_experts(const ExactInputs& inputs, int64_t used);

/// Runs one layer of parallel::TensorLayers over a mesh with the axis "expert", which splits the rows of the batch.
/// Counts the traffic of one step and measures the time of work.rounds further ones.
///
/// Threads: one thread of LibTorch for each rank.
/// Errors ("experts"): experts or rows that the ranks do not divide, before any thread is started; errors of
///                     nn::check_options(). ("parallel"): parallel::check_expert_node().
ExpertLayerCost measured_expert_layer(const ExpertWorkload& work, int64_t ranks, nn::Recompute recompute);

}  // namespace colossal::cli
