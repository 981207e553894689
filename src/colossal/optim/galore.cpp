#include "colossal/optim/galore.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/ops/matmul.h"
#include "colossal/optim/adam.h"

namespace colossal::optim {
namespace {

bool is_projected(const std::vector<int64_t>& shape, int64_t rank) {
  return shape.size() == 2 && std::min(shape[0], shape[1]) > rank;
}

at::ScalarType type_of(const std::vector<memory::Shard>& shards) {
  return !shards.empty() && shards[0].options().dtype() == at::kDouble ? at::kDouble : at::kFloat;
}

/// The leading singular vectors of its smaller side, as columns: eigenvectors of the product that is square in it.
at::Tensor leading_vectors(const at::Tensor& gradient, bool from_left, int64_t rank) {
  const at::Tensor square = from_left ? ops::matmul_nt(gradient, gradient) : ops::matmul_tn(gradient, gradient);
  // eigenvalues ascend
  return std::get<1>(at::linalg_eigh(square)).narrow(1, square.size(0) - rank, rank).contiguous();
}

at::Tensor cut(at::Tensor whole, int64_t row, int64_t rows) { return whole.narrow(0, row, rows); }

}  // namespace

Galore::Galore(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical)
    : TensorwiseOptimizer(config, shards, logical),
      type_(type_of(shards)),
      others_(shards, {"exp_avg", "exp_avg_sq"},
              [&](const nn::Parameter& p) { return !is_projected(p.spec.shape, config.rank); }) {
  int64_t total = 0;
  for (size_t i = 0; i < tensors().entries().size(); ++i) {
    const auto& shape = tensors().entries()[i].spec.shape;
    place_.push_back(is_projected(shape, config.rank) ? static_cast<int64_t>(matrices_.size()) : -1);
    if (place_.back() < 0) continue;
    const bool from_left = shape[0] <= shape[1];
    const std::vector<int64_t> low =
        from_left ? std::vector<int64_t>{config.rank, shape[1]} : std::vector<int64_t>{shape[0], config.rank};
    matrices_.push_back({i, from_left, {}, zeros({std::min(shape[0], shape[1]), config.rank}), total, low});
    total += low[0] * low[1];
  }
  for (size_t i = 0; i < shards.size(); ++i)
    for (const memory::Piece& piece : shards[i].pieces())
      if (const int64_t place = place_[tensors().index(*piece.parameter)]; place >= 0)
        matrices_[static_cast<size_t>(place)].shards.push_back(i);
  for (at::Tensor& moment : moments_) moment = zeros({total});
}

at::Tensor Galore::zeros(const std::vector<int64_t>& sizes) const {
  return at::zeros(sizes, tensors().zeros().options().dtype(type_));
}

const Galore::Matrix* Galore::matrix_of(const nn::Parameter& parameter) const {
  const int64_t place = place_[tensors().index(parameter)];
  return place < 0 ? nullptr : &matrices_[static_cast<size_t>(place)];
}

template <class Body>
void Galore::for_blocks(const memory::Resident& shard, const at::Tensor& buffer, const Body& body) const {
  for (const memory::Piece& piece : shard.pieces)
    if (const Matrix* matrix = matrix_of(*piece.parameter))
      for_matrix_blocks(piece, buffer, tensors().mesh().place(),
                        [&](const at::Tensor& block, int64_t row, int64_t column, bool counts) {
                          body(*matrix, block, row, column, counts);
                        });
}

void Galore::find_projections() {
  comm::Group& all = tensors().mesh().all();
  const auto ranks = static_cast<size_t>(all.size());
  for (size_t first = 0; first < matrices_.size(); first += ranks) {  // a matrix a rank at a time
    const size_t end = std::min(matrices_.size(), first + ranks);
    at::Tensor mine;
    for (size_t k = first; k < end; ++k) {
      at::Tensor whole = zeros(tensors().entries()[matrices_[k].tensor].spec.shape);
      for (const size_t i : matrices_[k].shards) {
        const memory::Lease shard = shards()[i].lease();
        for_blocks(*shard, shard->gradients,
                   [&](const Matrix& matrix, const at::Tensor& block, int64_t row, int64_t column, bool counts) {
                     if (counts && &matrix == &matrices_[k])
                       whole.narrow(0, row, block.size(0)).narrow(1, column, block.size(1)).copy_(block);
                   });
      }
      all.reduce(whole, static_cast<int>(k - first), comm::Reduce::Sum).wait();
      if (static_cast<size_t>(all.rank()) == k - first) mine = whole;
    }
    if (mine.defined()) {
      const Matrix& matrix = matrices_[first + static_cast<size_t>(all.rank())];
      at::Tensor(matrix.projection).copy_(leading_vectors(mine, matrix.from_left, config().rank));
    }
    for (size_t k = first; k < end; ++k) all.broadcast(matrices_[k].projection, static_cast<int>(k - first)).wait();
  }
}

at::Tensor Galore::projected() const {
  at::Tensor flat = at::zeros_like(moments_[0]);
  memory::for_leases(shards(), [&](size_t, memory::Resident& shard) {
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
  const at::Tensor low = projected();  // gradients, then directions
  ops::AdamStep s = adam_step(config(), step, learning_rate);
  ops::adam_direction_({low, low, {}, gradient_scale}, low, moments_[0], moments_[1], s);
  Directions directions(shards());
  memory::for_leases(shards(), [&](size_t i, memory::Resident& shard) {
    const at::Tensor up = directions.of(i, shard);
    for_blocks(shard, up, [&](const Matrix& matrix, at::Tensor block, int64_t row, int64_t column, bool) {
      const at::Tensor direction = matrix.low(low);
      block.copy_(
          matrix.from_left
              ? ops::matmul_nn(cut(matrix.projection, row, block.size(0)), direction.narrow(1, column, block.size(1)))
              : ops::matmul_nt(direction.narrow(0, row, block.size(0)), cut(matrix.projection, column, block.size(1))));
    });
    size_t p = 0;
    for_updates(config(), shard, step, gradient_scale, true, [&](const Run& run) {
      const memory::Piece& piece = shard.pieces[p];
      const auto states = others_.of(i, shard, p++);
      s.learning_rate = learning_rate * run.rate;
      s.weight_decay = run.weight_decay;
      if (states.empty())
        descend(shard, piece, up,
                {.rate = learning_rate, .weight_decay = config().weight_decay, .scale = config().projection_scale});
      else
        ops::adam_(run.update, states[0], states[1], s);
    });
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
