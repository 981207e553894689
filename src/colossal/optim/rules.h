// The update rules: the functions that make them, and the classes from which they derive. A new rule is a source x.cpp,
// its line here, and its rows in optimizer.cpp and config.cpp.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "colossal/ops/updates/update.h"
#include "colossal/optim/logical_tensors.h"
#include "colossal/optim/optimizer.h"
#include "colossal/optim/shard_states.h"

namespace colossal::optim {

/// A function that makes a rule. `config` has the betas of the rule; shards and tensors are as for make_optimizer().
using RuleMaker = std::unique_ptr<Optimizer>(const OptimizerConfig& config, std::vector<memory::Shard>& shards,
                                             const LogicalTensors& tensors);

/// Adam (Kingma and Ba, arXiv:1412.6980) and AdamW (Loshchilov and Hutter, arXiv:1711.05101) over shards.
///
/// Two moments per element, in the dtype of the values. weight_decay times the parameter's `decay` is a penalty in the
/// gradient (Adam), or decoupled (AdamW). For CPU tensors the update runs on the CPU, regardless of where the model
/// computes.
RuleMaker make_adamw;
RuleMaker make_adam;

/// Stochastic gradient descent over shards, with Polyak or Nesterov momentum.
///
/// One state per element, none with momentum = 0. weight_decay times the parameter's `decay` is a penalty in the
/// gradient. The update equals torch.optim.SGD's.
/// Errors ("optimizer"): nesterov without momentum.
RuleMaker make_sgd;

/// Lion (Chen et al., arXiv:2302.06675) over shards.
///
/// One state per element. The size of a step is the rate, independent of the gradient's magnitude. The paper therefore
/// recommends a rate 3 to 10 times smaller than AdamW's, and a weight_decay larger by the same factor. Decay is
/// decoupled, times the parameter's `decay`.
RuleMaker make_lion;

/// LAMB (You et al., arXiv:1904.00962, algorithm 2) over shards.
///
/// The update, with both moments corrected for their bias:
///
///   r = m^ / (sqrt(v^) + epsilon);  u = r + weight_decay w;  w -= rate * |w| / |u| * u
///
/// Norms are of logical tensors, so the step is the same under every layout. The ratio |w| / |u| is 1 if a norm is 0.
/// weight_decay applies only to parameters with `decay`. Two moments per element; u is stored in Resident::directions.
/// Passes: the moments and u (28 bytes per element for fp32), the norms of w and u (8), the step (12).
/// Communication: one all_reduce of 2 * tensors doubles per step among all ranks.
RuleMaker make_lamb;

/// LARS (You et al., arXiv:1708.03888) over shards.
///
/// The update: l = trust |w| / (|g| + weight_decay |w|);  b = momentum b + rate l (g + weight_decay w);  w -= b
///
/// Norms are of logical tensors, so the step is the same under every layout. l is 1 for vectors (biases, norms) and if
/// a norm is 0. One state per element, none with momentum = 0.
/// Passes: the norms of w and g (8 bytes per element for fp32), the step (20, or 12 with momentum = 0). On accelerators
///         the rate stays on the device, and l (g + weight_decay w) is computed before the step, in slices of 2^22
///         elements. For bf16 values it is rounded to bf16.
/// Communication: one all_reduce of 2 * tensors doubles per step among all ranks.
RuleMaker make_lars;

/// Adafactor (Shazeer and Stern, arXiv:1804.04235) over shards.
///
/// Algorithms 4 and 5 of the paper without momentum, with decay 1 - t^-0.8, clipping at 1 and relative steps:
///
///   V = moment of g^2 + 1e-30, of matrices by its rows and columns;  u = g / sqrt(V);  u /= max(1, RMS(u))
///   w -= rate * max(1e-3, RMS(w)) * u + rate * weight_decay * w
///
/// The rate is the schedule's; the paper uses min(1e-2, 1 / sqrt(t)). States: two vectors per matrix, on every rank,
/// and one value per element of other parameters. u is stored in Resident::directions.
/// Passes over matrices: sums of rows and columns (4 bytes per element for fp32), u and its norm (8), the norm of w
///                       (4), the step (12).
/// Communication: two all_reduces of doubles per step among all ranks: n + m for each matrix [n, m], and 2 * tensors.
RuleMaker make_adafactor;

/// CAME (Luo et al., arXiv:2307.02047) over shards: the memory of Adafactor, and a measure of how far updates can be
/// trusted.
///
/// Algorithm 2 of the paper, with betas b1, b2, b3:
///
///   V = moment (b2) of g^2 + 1e-30, of matrices by its rows and columns;  u = g / sqrt(V);  u /= max(1, RMS(u))
///   m = b1 m + (1 - b1) u;  S = moment (b3) of (u - m)^2 + 1e-16, by its rows and columns
///   w -= rate (m / sqrt(S) + weight_decay w); if w is not a matrix, m in place of m / sqrt(S)
///
/// States: one value per element, four vectors per matrix on every rank, and one more value per element of other
///         parameters. Resident::directions stores u, then u - m, then m / sqrt(S).
/// Passes over matrices: sums of rows and columns (4 bytes per element for fp32), u and its norm (8), m and u - m (16),
/// sums of these (4), m / sqrt(S) (8), the step (12).
/// Communication: three all_reduces of doubles per step among all ranks: two of n + m for each matrix [n, m], and one
///                of one per tensor.
RuleMaker make_came;

/// AdamW with moments in 8 bits (Dettmers et al., arXiv:2110.02861) over shards.
///
/// AdamW with quantized moments, which one pass decodes, updates and encodes again, in blocks of 256 elements of a
/// piece. Memory: two bytes per element and 8 bytes per block. No communication.
///
/// State: moments in fp32, which a checkpoint shards like other states. If the pieces are those that saved them,
///        loading gives bitwise the same quantized values. Otherwise the moments are rounded in other blocks.
/// Errors ("optimizer"): shards on a device for which this build has no kernels (ops::has_block_codes).
RuleMaker make_adam8bit;

/// GaLore (Zhao et al., arXiv:2403.03507) over shards: AdamW on gradients projected to low rank.
///
/// AdamW in a low-rank space for every matrix [n, m] (LogicalTensors) whose smaller side is larger than `rank`. If
/// n <= m, P holds the leading left singular vectors [n, rank] of its gradient:
///
///   R = P^T G;  N = Adam's direction for R;  w -= learning_rate (projection_scale P N + weight_decay w)
///
/// If n > m, the projection is from the right (R = G P, P [m, rank]). P is recomputed in step 1 and every update_every
/// steps. Other parameters get AdamW. It works under every layout, because the projections of the parts that ranks hold
/// add up.
///
/// States: rank (n + 2 m) values per matrix (n the smaller side), on every rank, and two per element of other
///         parameters. During a step: rank m more values per matrix, and Resident::directions of one shard at a time.
/// Communication: an all_reduce of the sum of all R per step among all ranks. In steps that compute P: a reduce of each
///                whole gradient to the rank that computes it, and a broadcast of P.
RuleMaker make_galore;

/// Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) over shards: orthogonalized momentum.
///
/// The update of every matrix G [n, m] of a hidden layer, with betas b0, b1, b2:
///
///   M = b0 M + (1 - b0) G;  O = newton_schulz(b0 M + (1 - b0) G)  (Nesterov);  w -= rate (s O + weight_decay w)
///
/// By default s = 0.2 sqrt(max(n, m)), so that steps are as large as AdamW's and its rate and weight decay carry over
/// (Liu et al. 2025, arXiv:2502.16982). With step_scale = "spectral", s = sqrt(max(1, n / m)) (Jordan). Other
/// parameters (vectors, tables, heads: nn::Parameter::hidden_matrix) get AdamW with b1, b2. In a module that the caller
/// supplies (train::initialize), the head cannot be distinguished from other matrices. It is orthogonalized like them,
/// unless it is tied to a table. Each slice of a stack (LogicalTensors) is a matrix of its own, as is each segment of a
/// fused weight (q, k, v; gate, up). A convolution's kernel counts as [n, product of its other sizes].
///
/// Layouts: matrices are logical ones under every layout and sharding. Each is gathered on one rank of its stage, which
///          orthogonalizes it and sends the result to all ranks of the stage. These ranks share the matrices.
/// States:  one value per element of matrices, two per element of other parameters, sharded as the shards are. During a
///          step: the memory of OwnerComputes, and Resident::directions.
/// Communication: per matrix a reduce to its rank and a broadcast from it, n m elements each, in fp32 (fp64 for fp64
///                values), among the ranks of a stage. None for a stage of one rank.
/// Cost:    5 (4 n^2 m + 2 n^3) floating-point operations for a matrix with n <= m.
RuleMaker make_muon;

/// Returns the step of ops::adam_ with the betas and epsilon of `config`, without weight decay.
ops::AdamStep adam_step(const OptimizerConfig& config, int64_t step, double learning_rate);

/// Returns the names of the states that config.momentum needs: one, or none if it is 0.
std::vector<std::string> momentum_states(const OptimizerConfig& config);

/// Returns approximately the nearest matrix with orthonormal rows, or orthonormal columns if there are fewer of them.
/// Runs five iterations of X = a X + (b A + c A^2) X, A = X X^T, from x / |x|, with (a, b, c) = (3.4445, -4.7750,
/// 2.0315). They move singular values into [0.7, 1.2]. x [n, m] is fp32 or fp64; zeros stay zeros.
at::Tensor newton_schulz(const at::Tensor& x);

/// A rule whose step is one fused pass over each shard. No communication.
class ElementwiseOptimizer : public Optimizer {
 public:
  void step(int64_t step, double learning_rate, double gradient_scale) final;
  std::vector<StateTensor> state() final;
  bool takes_shards_on(at::Device) const final { return true; }

 protected:
  ElementwiseOptimizer(const OptimizerConfig& config, std::vector<memory::Shard>& shards,
                       std::vector<std::string> states)
      : config_(config), shards_(shards), states_(shards, std::move(states)) {}
  const OptimizerConfig& config() const { return config_; }

 private:
  /// Updates one run. `states` are the run's parts of the states named in the constructor.
  virtual void update(const Run& run, const std::vector<at::Tensor>& states, int64_t step, double learning_rate) = 0;

  OptimizerConfig config_;
  std::vector<memory::Shard>& shards_;
  ShardStates states_;
};

/// A rule that needs norms, means or products of logical tensors.
class TensorwiseOptimizer : public Optimizer {
 public:
  bool communicates() const final { return true; }
  std::vector<StateTensor> state() final {
    std::vector<StateTensor> all;
    add_to(all);
    return all;
  }

 protected:
  TensorwiseOptimizer(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical)
      : config_(config), shards_(shards), tensors_(logical) {}
  const OptimizerConfig& config() const { return config_; }
  const std::vector<memory::Shard>& shards() const { return shards_; }
  const LogicalTensors& tensors() const { return tensors_; }

  /// Calls body(lease of the shard, part) for the parts of all pieces. Values may be written, and directions may be
  /// read.
  template <class Body>
  void for_parts(const Body& body) const {
    memory::for_leases(shards_, {.values = Access::Write, .directions = Access::Read},
                       [&](size_t, memory::Resident& shard) {
                         for (const memory::Piece& piece : shard.pieces)
                           for (const LogicalTensors::Part& part : tensors_.parts(piece)) body(shard, part);
                       });
  }

  /// Ends the step of a rule that handles only some tensors. Adam updates the pieces for which `others` has both
  /// moments, each with its own rate and decay. The other pieces descend along the directions of the shard, whose
  /// number is `index`. The lease must include kUpdate and the directions.
  void adam_or_descend(const PieceStates& others, ops::AdamStep adam, double gradient_scale, size_t index,
                       memory::Resident& shard, const Descent& descent) const;

  /// A part of a logical tensor in one of this rank's shards.
  struct HeldPart {
    size_t shard;
    memory::Piece piece;
  };
  /// Returns for each tensor the parts that this rank's shards hold, ordered by shard.
  std::vector<std::vector<HeldPart>> held_parts() const;
  /// Returns the numbers of the shards of `parts`, ascending.
  static std::vector<size_t> shards_of(const std::vector<HeldPart>& parts);

 private:
  /// Appends the tensors that state() returns.
  virtual void add_to(std::vector<StateTensor>& state) const = 0;

  OptimizerConfig config_;
  std::vector<memory::Shard>& shards_;
  LogicalTensors tensors_;
};

}  // namespace colossal::optim
