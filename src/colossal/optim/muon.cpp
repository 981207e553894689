#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "colossal/ops/products/matmul.h"
#include "colossal/optim/owner_computes.h"
#include "colossal/optim/rules.h"

namespace colossal::optim {
namespace {

constexpr int kIterations = 5;
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr double kMinNorm = 1e-7;

/// Returns the options of gathered matrices: on the model's device even if shards are leased on the host, because an
/// accelerator multiplies them many times as fast.
at::TensorOptions exchange_options(const std::vector<memory::Shard>& shards, at::Device device) {
  const bool is_double = !shards.empty() && shards[0].options().dtype() == at::kDouble;
  return at::dtype(is_double ? at::kDouble : at::kFloat).device(device);
}

double scale_of(const OptimizerConfig& config, int64_t rows, int64_t columns) {
  const auto n = static_cast<double>(rows), m = static_cast<double>(columns);
  return config.step_scale == "spectral" ? std::sqrt(std::max(1.0, n / m)) : 0.2 * std::sqrt(std::max(n, m));
}

int64_t columns_of(const std::vector<int64_t>& shape) { return c10::multiply_integers(shape.begin() + 1, shape.end()); }

double cost_of(int64_t rows, int64_t columns) {
  const auto least = static_cast<double>(std::min(rows, columns)), most = static_cast<double>(std::max(rows, columns));
  return 4 * least * least * most + 2 * least * least * least;
}

class Muon : public TensorwiseOptimizer {
 public:
  Muon(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical);
  void step(int64_t step, double learning_rate, double gradient_scale) override;
  Takes takes() const override {
    return {.directions = true, .shards = std::max<size_t>(1, owners_.max_shards()), .of_directions = true};
  }

 private:
  void add_to(std::vector<StateTensor>& state) const override;

  /// A segment of a tensor. Segment number k is matrix number k of owners_.
  struct Segment {
    size_t tensor;      ///< number of the tensor in LogicalTensors
    int64_t first_row;  ///< first row in dimension 0 of the tensor
  };
  std::vector<OwnerComputes::Matrix> find_matrices();
  /// Calls body(block of a shard's directions, the same block of `whole`, whether this rank counts it) for the parts
  /// that this rank's shards hold of `whole`, the matrix number k.
  template <class Body>
  void for_blocks(size_t k, const at::Tensor& whole, const OwnerComputes::Leases& leases, const Body& body) const;
  void orthogonalize() const;

  at::TensorOptions options_;                 ///< dtype and device in which matrices are exchanged and multiplied
  std::vector<std::vector<HeldPart>> parts_;  ///< parts of each tensor
  std::vector<Segment> segments_;             ///< segment of each matrix
  OwnerComputes owners_;                      ///< owners among the ranks of this stage
  PieceStates momentum_, others_;
};

Muon::Muon(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical)
    : TensorwiseOptimizer(config, shards, logical),
      options_(exchange_options(shards, logical.model_device())),
      parts_(held_parts()),
      owners_(tensors().mesh().all_but("pipeline"), find_matrices()),
      momentum_(shards, {"momentum"}, [](const nn::Parameter& p) { return p.hidden_matrix; }),
      others_(shards, {"exp_avg", "exp_avg_sq"}, [](const nn::Parameter& p) { return !p.hidden_matrix; }) {}

/// Returns the matrices of this stage, the same on all of its ranks.
std::vector<OwnerComputes::Matrix> Muon::find_matrices() {
  const int stage = tensors().mesh().index("pipeline");
  std::vector<OwnerComputes::Matrix> matrices;
  for (const size_t i : tensors().as_declared()) {
    const LogicalTensors::Entry& entry = tensors().entries()[i];
    const std::vector<int>& stages = entry.spec.stages;
    if (!entry.hidden_matrix) continue;
    if (!stages.empty() && std::find(stages.begin(), stages.end(), stage) == stages.end()) continue;
    for (size_t tensor = entry.first; tensor < entry.first + entry.count; ++tensor) {
      int64_t row = 0;
      for (const tensor::Segment& segment : entry.segments()) {
        std::vector<int64_t> shape = entry.shape;
        shape[0] = segment.size;
        matrices.push_back({shape, shape, cost_of(segment.size, columns_of(shape)), shards_of(parts_[tensor])});
        segments_.push_back({tensor, row});
        row += segment.size;
      }
    }
  }
  return matrices;
}

template <class Body>
void Muon::for_blocks(size_t k, const at::Tensor& whole, const OwnerComputes::Leases& leases, const Body& body) const {
  for (const HeldPart& part : parts_[segments_[k].tensor])
    // A tensor that two stages of a pipeline hold is gathered on each of them, from its own parts.
    for (LogicalTensors::Block& block : tensors().blocks(part.piece, LogicalTensors::Counting::InStage)) {
      block.start[0] -= segments_[k].first_row;  // blocks are inside one segment
      if (block.start[0] < 0 || block.start[0] >= whole.size(0)) continue;
      body(block.of(leases.at(part.shard)->directions), block.in(whole), block.counts);
    }
}

void Muon::orthogonalize() const {
  owners_.run(shards(), options_,
              {.needs = {.directions = Access::Write},
               .collect =
                   [&](size_t k, const at::Tensor& whole, const auto& leases) {
                     for_blocks(k, whole, leases, [](const at::Tensor& mine, at::Tensor same, bool counts) {
                       if (counts) same.copy_(mine);
                     });
                   },
               .compute =
                   [&](size_t, const at::Tensor& whole) {
                     const at::Tensor matrix = whole.flatten(1);
                     const double scale = scale_of(config(), matrix.size(0), matrix.size(1));
                     return newton_schulz(matrix).mul(scale).contiguous().view(whole.sizes());
                   },
               .hand_out =
                   [&](size_t k, const at::Tensor& result, const auto& leases) {
                     for_blocks(k, result, leases,
                                [](at::Tensor mine, const at::Tensor& same, bool) { mine.copy_(same); });
                   }});
}

void Muon::step(int64_t step, double learning_rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  const double keep = config().betas[0];
  memory::for_leases(
      shards(),
      {.gradients = Access::Read, .states = Access::Write, .places = momentum_.places(), .directions = Access::Write},
      [&](size_t i, memory::Resident& shard) {
        for (size_t p = 0; p < shard.pieces.size(); ++p)
          for (at::Tensor momentum : momentum_.of(i, shard, p)) {
            const at::Tensor g = of_piece(shard.gradients, shard.pieces[p]).to(momentum.scalar_type()) * gradient_scale;
            momentum.lerp_(g, 1 - keep);
            of_piece(shard.directions, shard.pieces[p]).copy_(at::lerp(g, momentum, keep));
          }
      });
  orthogonalize();
  const ops::AdamStep adam{.learning_rate = learning_rate,
                           .beta1 = config().betas[1],
                           .beta2 = config().betas[2],
                           .epsilon = config().epsilon,
                           .step = step};
  memory::for_leases(shards(),
                     {.values = Access::Write,
                      .gradients = Access::Read,
                      .states = Access::Write,
                      .places = others_.places(),
                      .directions = Access::Read},
                     [&](size_t i, memory::Resident& shard) {
                       adam_or_descend(others_, adam, gradient_scale, i, shard,
                                       {.rate = learning_rate, .weight_decay = config().weight_decay});
                     });
}

void Muon::add_to(std::vector<StateTensor>& state) const {
  momentum_.add_to(state, shards());
  others_.add_to(state, shards());
}

}  // namespace

at::Tensor newton_schulz(const at::Tensor& x) {
  const bool is_tall = x.size(0) > x.size(1);
  at::Tensor y = (is_tall ? x.t() : x).contiguous();
  y = y / at::linalg_vector_norm(y).clamp_min(kMinNorm);
  for (int i = 0; i < kIterations; ++i) {
    const at::Tensor a = ops::matmul_nt(y, y);
    const at::Tensor polynomial = ops::matmul_nn(a, a).mul_(kC).add_(a, kB);
    y = ops::matmul_nn(polynomial, y).add_(y, kA);
  }
  return is_tall ? y.t() : y;
}

std::unique_ptr<Optimizer> make_muon(const OptimizerConfig& config, std::vector<memory::Shard>& shards,
                                     const LogicalTensors& tensors) {
  return std::make_unique<Muon>(config, shards, tensors);
}

}  // namespace colossal::optim
