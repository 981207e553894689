#include "colossal/optim/galore.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/optim/adam.h"

namespace colossal::optim {
namespace {

bool is_projected(const std::vector<int64_t>& shape, int64_t rank) {
  return shape.size() == 2 && std::min(shape[0], shape[1]) > rank;
}

/// Relative tolerance within which magnitudes count as equal to the largest one, because of rounding.
constexpr double kEqualMagnitudes = 1e-3;

/// Makes the component of largest magnitude of each column positive: the first one if several are equal. The sign of an
/// eigenvector is arbitrary. Two layouts, whose gradients differ by rounding, could otherwise choose mirrored
/// projections. Then momentum from before the next update_every would have the wrong sign in one of them.
at::Tensor with_signs(const at::Tensor& vectors) {
  const at::Tensor magnitude = vectors.abs();
  const at::Tensor is_largest = magnitude >= magnitude.amax({0}, /*keepdim=*/true) * (1 - kEqualMagnitudes);
  const at::Tensor is_first = is_largest.logical_and(is_largest.cumsum(0) == 1);
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

}  // namespace

Galore::Galore(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical)
    : TensorwiseOptimizer(config, shards, logical),
      type_(logical.model_type() == at::kDouble ? at::kDouble : at::kFloat),
      owners_(tensors().mesh().all(), find_matrices()),
      others_(shards, {"exp_avg", "exp_avg_sq"},
              [&](const nn::Parameter& p) { return !is_projected(p.spec.shape, config.rank); }) {
  for (at::Tensor& moment : moments_) moment = at::zeros({total_}, options());
}

at::TensorOptions Galore::options() const { return tensors().zeros().options().dtype(type_); }

std::vector<OwnerComputes::Matrix> Galore::find_matrices() {
  const std::vector<std::vector<size_t>> holders = shards_of_tensors();
  const int64_t rank = config().rank;
  std::vector<OwnerComputes::Matrix> matrices;
  place_.assign(tensors().entries().size(), -1);
  for (const size_t i : tensors().as_declared()) {
    const auto& shape = tensors().entries()[i].spec.shape;
    if (!is_projected(shape, rank)) continue;
    const bool from_left = shape[0] <= shape[1];
    const int64_t least = std::min(shape[0], shape[1]), most = std::max(shape[0], shape[1]);
    const std::vector<int64_t> low =
        from_left ? std::vector<int64_t>{rank, shape[1]} : std::vector<int64_t>{shape[0], rank};
    place_[i] = static_cast<int64_t>(matrices_.size());
    matrices_.push_back({i, from_left, at::zeros({least, rank}, options()), total_, low});
    total_ += low[0] * low[1];
    // Cost of the product that is square in the smaller side, and of its eigenvectors.
    const auto n = static_cast<double>(least), m = static_cast<double>(most);
    matrices.push_back({shape, {least, rank}, 2 * n * n * m + 9 * n * n * n, holders[i]});
  }
  return matrices;
}

const Galore::Matrix* Galore::matrix_of(const nn::Parameter& parameter) const {
  const int64_t place = place_[tensors().index(parameter)];
  return place < 0 ? nullptr : &matrices_[static_cast<size_t>(place)];
}

template <class Body>
void Galore::for_blocks(const memory::Resident& shard, const at::Tensor& buffer, const Body& body) const {
  for (const memory::Piece& piece : shard.pieces)
    if (const Matrix* matrix = matrix_of(*piece.parameter))
      for_matrix_blocks(piece, buffer, tensors().mesh().coordinates(),
                        [&](const at::Tensor& block, int64_t row, int64_t column, bool counts) {
                          body(*matrix, block, row, column, counts);
                        });
}

void Galore::find_projections() {
  owners_.run(
      shards(), options(),
      {.needs = {.gradients = Access::Read},
       .collect =
           [&](size_t k, const at::Tensor& whole, const OwnerComputes::Leases& leases) {
             for (const size_t i : owners_.matrices()[k].shards)
               for_blocks(*leases.at(i), leases.at(i)->gradients,
                          [&](const Matrix& matrix, const at::Tensor& block, int64_t row, int64_t column, bool counts) {
                            if (counts && &matrix == &matrices_[k])
                              whole.narrow(0, row, block.size(0)).narrow(1, column, block.size(1)).copy_(block);
                          });
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
    for_blocks(shard, shard.gradients.to(type_),
               [&](const Matrix& matrix, const at::Tensor& block, int64_t row, int64_t column, bool counts) {
                 if (!counts) return;
                 at::Tensor low = matrix.low(flat);
                 if (matrix.from_left)
                   low.narrow(1, column, block.size(1))
                       .add_(ops::matmul_tn(cut(matrix.projection, row, block.size(0)), block));
                 else
                   low.narrow(0, row, block.size(0))
                       .add_(ops::matmul_nn(block, cut(matrix.projection, column, block.size(1))));
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
    for_blocks(shard, shard.directions, [&](const Matrix& matrix, at::Tensor block, int64_t row, int64_t column, bool) {
      const at::Tensor direction = matrix.low(low);
      block.copy_(
          matrix.from_left
              ? ops::matmul_nn(cut(matrix.projection, row, block.size(0)), direction.narrow(1, column, block.size(1)))
              : ops::matmul_nt(direction.narrow(0, row, block.size(0)), cut(matrix.projection, column, block.size(1))));
    });
    adam_or_descend(others_, adam, gradient_scale, i, shard,
                    {.rate = learning_rate, .weight_decay = config().weight_decay, .scale = config().projection_scale});
  });
}

void Galore::add_to(std::vector<StateTensor>& state) const {
  others_.add_to(state, shards());
  for (const Matrix& matrix : matrices_) {
    const std::string& name = tensors().entries()[matrix.tensor].name;
    state.push_back(
        {"projection." + name, matrix.projection, tensor::ShardSpec::whole(matrix.projection.sizes().vec()), {}});
    state.push_back({"exp_avg." + name, matrix.low(moments_[0]), tensor::ShardSpec::whole(matrix.low_shape), {}});
    state.push_back({"exp_avg_sq." + name, matrix.low(moments_[1]), tensor::ShardSpec::whole(matrix.low_shape), {}});
  }
}

}  // namespace colossal::optim
