#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "colossal/ops/products/matmul.h"
#include "colossal/optim/factored.h"
#include "colossal/optim/owner_computes.h"
#include "colossal/optim/rules.h"

namespace colossal::optim {
namespace {

/// Relative tolerance within which magnitudes count as equal to the largest one, because of rounding.
constexpr double kEqualMagnitudes = 1e-3;

/// Makes the component of largest magnitude of each column positive: the first one if several are equal. The sign of an
/// eigenvector is arbitrary. Two layouts, whose gradients differ by rounding, could otherwise choose mirrored
/// projections. Then momentum from before the next update_every would have the wrong sign in one of them.
at::Tensor with_signs(const at::Tensor& vectors) {
  const at::Tensor magnitude = vectors * vectors.sign();  // LibTorch runs neither abs nor logical_and on meta
  const at::Tensor is_largest = magnitude >= magnitude.amax({0}, /*keepdim=*/true) * (1 - kEqualMagnitudes);
  const at::Tensor is_first = is_largest.bitwise_and(is_largest.cumsum(0) == 1);
  return vectors * (vectors * is_first).sum(0, /*keepdim=*/true).sign();
}

/// Returns the leading singular vectors of the smaller side, as columns: eigenvectors of the product that is square in
/// it.
at::Tensor leading_vectors(const at::Tensor& gradient, bool from_left, int64_t rank) {
  const at::Tensor square = from_left ? ops::matmul_nt(gradient, gradient) : ops::matmul_tn(gradient, gradient);
  // linalg_eigh returns eigenvalues in ascending order, so the leading vectors are the last columns.
  return with_signs(std::get<1>(at::linalg_eigh(square)).narrow(1, square.size(0) - rank, rank)).contiguous();
}

at::Tensor cut(at::Tensor whole, int64_t row, int64_t rows) { return whole.narrow(0, row, rows); }

class Galore : public TensorwiseOptimizer {
 public:
  Galore(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical);
  void step(int64_t step, double learning_rate, double gradient_scale) override;
  Takes takes() const override { return {.directions = true, .shards = std::max<size_t>(1, owners_.max_shards())}; }

 private:
  void add_to(std::vector<StateTensor>& state) const override;

  struct Matrix {
    size_t tensor;  ///< number of the tensor in LogicalTensors
    bool from_left;
    at::Tensor projection;  ///< [smaller side, rank], a view of projections_
    int64_t at;             ///< offset of its R in the flat buffers of all R
    std::vector<int64_t> low_shape;
    at::Tensor low(const at::Tensor& flat) const {
      return flat.narrow(0, at, low_shape[0] * low_shape[1]).view(low_shape);
    }
  };
  /// Calls body(matrix, block) for the blocks of matrices that a shard holds.
  template <class Body>
  void for_blocks(const memory::Resident& shard, const Body& body) const;
  bool is_projected(const LogicalTensors::Entry& entry) const;
  std::vector<OwnerComputes::Matrix> find_matrices();
  void find_projections();
  at::Tensor projected() const;
  at::TensorOptions options() const;  // type_, on the device of the values

  at::ScalarType type_;                       ///< fp64 for fp64 values, else fp32
  std::vector<std::vector<HeldPart>> parts_;  ///< parts of each tensor
  std::vector<Matrix> matrices_;
  /// One tensor [matrices, smaller side, rank] for each parameter with matrices, in the order of their declaration
  std::vector<at::Tensor> projections_;
  std::vector<int64_t> place_;  ///< index of a tensor in matrices_; -1 = not projected
  int64_t total_ = 0;           ///< elements of all R
  OwnerComputes owners_;        ///< owners of matrices_, among all ranks
  at::Tensor moments_[2];       ///< moments of all R, flat
  PieceStates others_;
};

Galore::Galore(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical)
    : TensorwiseOptimizer(config, shards, logical),
      type_(logical.model_type() == at::kDouble ? at::kDouble : at::kFloat),
      parts_(held_parts()),
      owners_(tensors().mesh().all(), find_matrices()),
      others_(shards, {"exp_avg", "exp_avg_sq"},
              [&](const nn::Parameter& p) { return !is_projected(tensors().entry(p)); }) {
  for (at::Tensor& moment : moments_) moment = at::zeros({total_}, options());
}

at::TensorOptions Galore::options() const { return tensors().zeros().options().dtype(type_); }

bool Galore::is_projected(const LogicalTensors::Entry& entry) const {
  return entry.shape.size() == 2 && std::min(entry.shape[0], entry.shape[1]) > config().rank;
}

std::vector<OwnerComputes::Matrix> Galore::find_matrices() {
  const int64_t rank = config().rank;
  std::vector<OwnerComputes::Matrix> matrices;
  place_.assign(tensors().size(), -1);
  for (const size_t i : tensors().as_declared()) {
    const LogicalTensors::Entry& entry = tensors().entries()[i];
    if (!is_projected(entry)) continue;
    const std::vector<int64_t>& shape = entry.shape;
    const bool from_left = shape[0] <= shape[1];
    const int64_t least = std::min(shape[0], shape[1]), most = std::max(shape[0], shape[1]);
    const std::vector<int64_t> low =
        from_left ? std::vector<int64_t>{rank, shape[1]} : std::vector<int64_t>{shape[0], rank};
    const auto n = static_cast<double>(least), m = static_cast<double>(most);
    const at::Tensor& projections =
        projections_.emplace_back(at::zeros({static_cast<int64_t>(entry.count), least, rank}, options()));
    for (size_t k = 0; k < entry.count; ++k) {
      const size_t tensor = entry.first + k;
      place_[tensor] = static_cast<int64_t>(matrices_.size());
      matrices_.push_back({tensor, from_left, projections.select(0, static_cast<int64_t>(k)), total_, low});
      total_ += low[0] * low[1];
      // Cost of the product that is square in the smaller side, and of its eigenvectors.
      matrices.push_back({shape, {least, rank}, 2 * n * n * m + 9 * n * n * n, shards_of(parts_[tensor])});
    }
  }
  return matrices;
}

template <class Body>
void Galore::for_blocks(const memory::Resident& shard, const Body& body) const {
  for (const memory::Piece& piece : shard.pieces)
    if (is_projected(tensors().entry(*piece.parameter)))
      for (const LogicalTensors::Block& block : tensors().blocks(piece))
        body(matrices_[static_cast<size_t>(place_[block.tensor])], block);
}

void Galore::find_projections() {
  owners_.run(
      shards(), options(),
      {.needs = {.gradients = Access::Read},
       .collect =
           [&](size_t k, const at::Tensor& whole, const OwnerComputes::Leases& leases) {
             for (const HeldPart& part : parts_[matrices_[k].tensor])
               for (const LogicalTensors::Block& block : tensors().blocks(part.piece))
                 if (block.counts) block.in(whole).copy_(block.of(leases.at(part.shard)->gradients));
           },
       .compute =
           [&](size_t k, const at::Tensor& whole) {
             return leading_vectors(whole, matrices_[k].from_left, config().rank);
           },
       .hand_out = [&](size_t k, const at::Tensor& result, const auto&) { matrices_[k].projection.copy_(result); }});
}

at::Tensor Galore::projected() const {
  at::Tensor flat = at::zeros_like(moments_[0]);
  memory::for_leases(shards(), {.gradients = Access::Read}, [&](size_t, memory::Resident& shard) {
    const at::Tensor gradients = shard.gradients.to(type_);
    for_blocks(shard, [&](const Matrix& matrix, const LogicalTensors::Block& block) {
      if (!block.counts) return;
      const at::Tensor low = matrix.low(flat), own = block.of(gradients);
      if (matrix.from_left)
        low.narrow(1, block.start[1], block.size[1])
            .add_(ops::matmul_tn(cut(matrix.projection, block.start[0], block.size[0]), own));
      else
        low.narrow(0, block.start[0], block.size[0])
            .add_(ops::matmul_nn(own, cut(matrix.projection, block.start[1], block.size[1])));
    });
  });
  tensors().mesh().all().all_reduce(flat, comm::Reduce::Sum).wait();
  return flat;
}

void Galore::step(int64_t step, double learning_rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  if ((step - 1) % config().update_every == 0) find_projections();
  const at::Tensor low = projected();  // holds gradients, then directions
  const ops::AdamStep adam = adam_step(config(), step, learning_rate);
  ops::adam_direction_({low, low, {}, gradient_scale}, low, moments_[0], moments_[1], adam);
  memory::Needs needs = kUpdate;
  needs.directions = Access::Write;
  memory::for_leases(shards(), needs, [&](size_t i, memory::Resident& shard) {
    for_blocks(shard, [&](const Matrix& matrix, const LogicalTensors::Block& block) {
      const auto &start = block.start, &size = block.size;
      const at::Tensor direction = matrix.low(low);
      block.of(shard.directions)
          .copy_(
              matrix.from_left
                  ? ops::matmul_nn(cut(matrix.projection, start[0], size[0]), direction.narrow(1, start[1], size[1]))
                  : ops::matmul_nt(direction.narrow(0, start[0], size[0]), cut(matrix.projection, start[1], size[1])));
    });
    adam_or_descend(others_, adam, gradient_scale, i, shard,
                    {.rate = learning_rate, .weight_decay = config().weight_decay, .scale = config().projection_scale});
  });
}

void Galore::add_to(std::vector<StateTensor>& state) const {
  others_.add_to(state, shards());
  size_t parameter = 0;
  for (const size_t i : tensors().as_declared()) {
    const LogicalTensors::Entry& entry = tensors().entries()[i];
    if (!is_projected(entry)) continue;
    const Matrix& first = matrices_[static_cast<size_t>(place_[entry.first])];  // the others follow it
    const int64_t size = static_cast<int64_t>(entry.count) * first.low_shape[0] * first.low_shape[1];
    const auto add = [&](const char* kind, const at::Tensor& values, const std::vector<int64_t>& shape_of_one) {
      const std::vector<int64_t> shape = entry.shape_of_state(shape_of_one);
      state.push_back({kind + entry.name, values.view(shape), tensor::ShardSpec::whole(shape), {}});
    };
    add("projection.", projections_[parameter++], first.projection.sizes().vec());
    add("exp_avg.", moments_[0].narrow(0, first.at, size), first.low_shape);
    add("exp_avg_sq.", moments_[1].narrow(0, first.at, size), first.low_shape);
  }
}

}  // namespace

std::unique_ptr<Optimizer> make_galore(const OptimizerConfig& config, std::vector<memory::Shard>& shards,
                                       const LogicalTensors& tensors) {
  return std::make_unique<Galore>(config, shards, tensors);
}

}  // namespace colossal::optim
