// A mixture of experts: a feed-forward layer of which each token uses a few parts. The router scores all experts for a
// token; the token goes through the best of them, and their results are added with the scores as weights
// (arXiv:1701.06538, arXiv:2101.03961).
//
//   const std::unique_ptr<nn::Experts> experts = layers.experts(
//       "blocks.0.mlp", 64, {.count = 8, .used = 2, .ffn = 128, .activation = ops::silu_gate, .gated = true});
//   const at::Tensor y = experts->forward(x, step);                     // [B, S, 64] -> [B, S, 64]
//
// Parameters: `name`.router.weight [count, hidden]; `name`.experts.up.weight [count, ffn, hidden] (gated:
// experts.gate_up.weight [count, 2 ffn, hidden]); `name`.experts.down.weight [count, hidden, ffn]; with biases
// experts.up.bias [count, ffn] (gated: gate_up.bias) and experts.down.bias [count, hidden]. The buffer
// `name`.router.bias [count] has the balance biases, if there are any.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "colossal/nn/recompute.h"
#include "colossal/nn/reports.h"

namespace colossal {
struct Metric;
}

namespace colossal::nn {

struct ForwardContext;
class ExpertRanks;  // nn/expert_ranks.h
class Parameters;

/// How a mixture of experts is built, routed and balanced.
struct ExpertOptions {
  enum class Score : uint8_t { Softmax, Sigmoid };
  /// Over which tokens the balance loss is computed: all of the global micro-batch, or those of each rank.
  enum class BalanceOver : uint8_t { Batch, Rank };

  int64_t count = 0;  ///< number of experts
  int64_t used = 2;   ///< number of experts that each token goes through
  int64_t ffn = 0;    ///< features inside one expert
  Score score = Score::Softmax;
  bool normalize = true;  ///< the weights of the used experts are divided by their sum
  double scale = 1;       ///< factor of the weights, after that
  /// The experts form `groups` equal groups in order. A token uses experts of its `groups_used` best groups only. The
  /// score of a group is that of its best expert, or with `bias` the sum of its best two
  int64_t groups = 1, groups_used = 1;
  /// In training an expert takes at most ceil(capacity x used x tokens / count) assignments of a global micro-batch, in
  /// logical order; further ones are dropped. 0 = no limit
  double capacity = 0;
  double balance_loss = 0;  ///< strength of the balance loss; 0 = off
  BalanceOver balance_over = BalanceOver::Batch;
  double z_loss = 0;     ///< factor of mean(logsumexp(logits)^2); 0 = off
  bool bias = false;     ///< the buffer router.bias is added to the scores when experts are chosen, not to the weights
  double bias_rate = 0;  ///< how far a step moves the balance biases (arXiv:2408.15664)
  /// Activation inside an expert. If `gated`, it maps [T, 2 ffn], gate and up, to [T, ffn]
  Unary activation{};
  bool gated = false;
  bool linear_bias = false;      ///< biases of the two linear layers of an expert
  double deviation = 0.02;       ///< standard deviation of the initial weights of the router and of experts.up
  double down_deviation = 0.02;  ///< standard deviation of the initial weights of experts.down
};

/// Metrics of the mixtures of a model in one step; see Experts::add_to().
struct ExpertMetrics {
  double expert_load = 0;            ///< assignments of the busiest expert over the mean of its layer, before dropping
  double rank_load = 0;              ///< assignments that the busiest rank computes over the mean of the ranks
  double dropped = 0, assigned = 0;  ///< sums over layers
  double balance_loss = 0;           ///< sum over layers
  int64_t layers = 0;
};

/// The layer. forward() is collective among the ranks that hold the experts of a replica.
class Experts {
 public:
  virtual ~Experts() = default;
  /// Returns the weighted sum of each token's experts, sharded like x. `beside` is called while tokens are in transit,
  /// and its result is added, such as that of a shared expert; null = none.
  virtual at::Tensor forward(const at::Tensor& x /*[B, S, H]*/, const ForwardContext& step,
                             const std::function<at::Tensor()>& beside = {}) = 0;
  /// Adds what the layer reported in a step to `metrics`, and moves the balance biases unless the step was skipped.
  /// Called once a step on all ranks of all stages, with equal arguments.
  virtual void end_step(const Reported& reported, ExpertMetrics& metrics) = 0;
};

/// Errors ("experts"): `used` above `count`, or above what `groups_used` groups have; `groups` that does not divide
///                     `count`; `groups_used` above `groups`; a capacity below 0.
void check_options(const std::string& name, const ExpertOptions& options);

/// Adds the rows expert_load, rank_load, dropped_share and balance_loss to `rows`. The first two are the largest of all
/// layers; balance_loss is the mean over layers.
void add_rows(const ExpertMetrics& metrics, std::vector<Metric>& rows);

/// Makes the layer over those ranks; factories call it (Layers::experts). Errors ("experts"): see check_options().
///
/// Communication of forward: nothing on one rank. Otherwise ExpertRanks::enter() and leave(), an all_to_all of counts
/// (ceil(count / ranks) int64 for each rank), and two all_to_all of hidden elements for each assignment on another
/// rank; with ExpertRanks::node() see nn/expert_dispatch.h. In training one all_reduce of 2 count + 4 doubles among all
/// ranks that route tokens, and with a capacity one of `used` integers for each token of the micro-batch, of 1 byte for
/// up to 256 experts and of 4 bytes for more. Backward makes the two all_to_all of rows again. On accelerators the host
/// waits once, for the numbers of rows (see nn/expert_dispatch.h).
std::unique_ptr<Experts> make_experts(Parameters& parameters, Reports& reports, const std::string& name, int64_t hidden,
                                      const ExpertOptions& options, std::shared_ptr<const ExpertRanks> ranks);

}  // namespace colossal::nn
