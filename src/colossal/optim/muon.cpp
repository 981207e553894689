#include "colossal/optim/muon.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "colossal/ops/matmul.h"

namespace colossal::optim {
namespace {

constexpr int kIterations = 5;
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr double kLeastNorm = 1e-7;

at::TensorOptions exchange_options(const std::vector<memory::Shard>& shards) {
  const at::TensorOptions options = shards.empty() ? at::TensorOptions() : shards[0].options();
  return options.dtype(options.dtype() == at::kDouble ? at::kDouble : at::kFloat);
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

}  // namespace

at::Tensor newton_schulz(const at::Tensor& x) {
  const bool is_tall = x.size(0) > x.size(1);
  at::Tensor y = (is_tall ? x.t() : x).contiguous();
  y = y / at::linalg_vector_norm(y).clamp_min(kLeastNorm);
  for (int i = 0; i < kIterations; ++i) {
    const at::Tensor a = ops::matmul_nt(y, y);
    const at::Tensor polynomial = ops::matmul_nn(a, a).mul_(kC).add_(a, kB);
    y = ops::matmul_nn(polynomial, y).add_(y, kA);
  }
  return is_tall ? y.t() : y;
}

Muon::Muon(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical)
    : TensorwiseOptimizer(config, shards, logical),
      stage_(tensors().mesh().all_but("pipeline")),
      options_(exchange_options(shards)),
      momentum_(shards, {"momentum"}, [](const nn::Parameter& p) { return p.hidden_matrix; }),
      others_(shards, {"exp_avg", "exp_avg_sq"}, [](const nn::Parameter& p) { return !p.hidden_matrix; }) {
  const int stage = tensors().mesh().index("pipeline");
  std::vector<std::vector<size_t>> holders(tensors().entries().size());
  for (size_t i = 0; i < shards.size(); ++i)
    for (const memory::Piece& piece : shards[i].pieces()) holders[tensors().index(*piece.parameter)].push_back(i);
  for (size_t tensor = 0; tensor < tensors().entries().size(); ++tensor) {
    const auto& [name, spec, is_matrix] = tensors().entries()[tensor];
    const auto& stages = spec.stages;
    if (!is_matrix || (!stages.empty() && std::find(stages.begin(), stages.end(), stage) == stages.end())) continue;
    int64_t row = 0;
    for (const tensor::Segment& segment : spec.splits[0].segments) {
      matrices_.push_back({tensor, row, segment.size, holders[tensor]});
      row += segment.size;
    }
  }
  const auto cost = [&](const Matrix& m) { return cost_of(m.rows, columns_of(shape_of(m))); };
  std::stable_sort(matrices_.begin(), matrices_.end(),
                   [&](const Matrix& a, const Matrix& b) { return cost(a) > cost(b); });
}

std::vector<int64_t> Muon::shape_of(const Matrix& matrix) const {
  std::vector<int64_t> shape = tensors().entries()[matrix.tensor].spec.shape;
  shape[0] = matrix.rows;
  return shape;
}

template <class Body>
void Muon::for_blocks(const Matrix& matrix, const memory::Resident& shard, const at::Tensor& buffer,
                      const at::Tensor& whole, const Body& body) const {
  const tensor::Place& place = tensors().mesh().place();
  for (const memory::Piece& piece : shard.pieces) {
    if (tensors().index(*piece.parameter) != matrix.tensor) continue;
    tensor::ShardSpec spec = piece.parameter->spec;
    // A stage that lies on two ranks of a pipeline is put together on each of them, of what each holds.
    if (!spec.stages.empty()) spec.stages = {place.index("pipeline")};
    const auto shape = spec.local_shape(place);
    for (const tensor::Block& block : tensor::blocks(spec, place, piece.part)) {
      const int64_t row = block.start[0] - matrix.first_row;  // blocks lie inside one segment
      if (row < 0 || row >= matrix.rows) continue;
      at::Tensor same = whole.narrow(0, row, block.size[0]);
      for (size_t d = 1; d < block.size.size(); ++d)
        same = same.narrow(static_cast<int64_t>(d), block.start[d], block.size[d]);
      body(tensor::at_block(of_piece(buffer, piece), shape, piece.part, block), same, block.primary);
    }
  }
}

/// What this rank counts of a matrix, zeros elsewhere: added up over the ranks of a stage, the whole.
at::Tensor Muon::collected(const Matrix& matrix, Directions& directions) const {
  at::Tensor whole = at::zeros(shape_of(matrix), options_);
  for (const size_t i : matrix.shards) {
    const memory::Lease shard = shards()[i].lease();
    for_blocks(matrix, *shard, directions.of(i, *shard), whole,
               [](const at::Tensor& mine, at::Tensor same, bool counts) {
                 if (counts) same.copy_(mine);
               });
  }
  return whole;
}

void Muon::hand_out(const Matrix& matrix, const at::Tensor& whole, Directions& directions) const {
  for (const size_t i : matrix.shards) {
    const memory::Lease shard = shards()[i].lease();
    for_blocks(matrix, *shard, directions.of(i, *shard), whole,
               [](at::Tensor mine, const at::Tensor& same, bool) { mine.copy_(same); });
  }
}

void Muon::orthogonalize(Directions& directions) const {
  const auto ranks = static_cast<size_t>(stage_.size()), mine = static_cast<size_t>(stage_.rank());
  for (size_t first = 0; first < matrices_.size(); first += ranks) {  // a matrix a rank at a time
    const size_t end = std::min(matrices_.size(), first + ranks);
    at::Tensor orthogonal;  // the one of this rank
    for (size_t k = first; k < end; ++k) {
      at::Tensor whole = collected(matrices_[k], directions);
      if (ranks > 1) stage_.reduce(whole, static_cast<int>(k - first), comm::Reduce::Sum).wait();
      if (k - first == mine) orthogonal = whole;
    }
    if (orthogonal.defined()) {
      const at::Tensor matrix = orthogonal.flatten(1);
      const double scale = scale_of(config(), matrix.size(0), matrix.size(1));
      orthogonal = newton_schulz(matrix).mul(scale).contiguous().view(orthogonal.sizes());
    }
    for (size_t k = first; k < end; ++k) {
      at::Tensor whole = k - first == mine ? orthogonal : at::empty(shape_of(matrices_[k]), options_);
      if (ranks > 1) stage_.broadcast(whole, static_cast<int>(k - first)).wait();
      hand_out(matrices_[k], whole, directions);
    }
  }
}

void Muon::step(int64_t step, double learning_rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  const double keep = config().betas[0];
  Directions directions(shards());
  memory::for_leases(shards(), [&](size_t i, memory::Resident& shard) {
    const at::Tensor to = directions.of(i, shard);
    for (size_t p = 0; p < shard.pieces.size(); ++p)
      for (at::Tensor momentum : momentum_.of(i, shard, p)) {
        const at::Tensor g = of_piece(shard.gradients, shard.pieces[p]).to(momentum.scalar_type()) * gradient_scale;
        momentum.lerp_(g, 1 - keep);
        of_piece(to, shard.pieces[p]).copy_(at::lerp(g, momentum, keep));
      }
  });
  orthogonalize(directions);
  ops::AdamStep s{.learning_rate = learning_rate,
                  .beta1 = config().betas[1],
                  .beta2 = config().betas[2],
                  .epsilon = config().epsilon,
                  .step = step};
  memory::for_leases(shards(), [&](size_t i, memory::Resident& shard) {
    size_t p = 0;
    for_updates(config(), shard, step, gradient_scale, true, [&](const Run& run) {
      const memory::Piece& piece = shard.pieces[p];
      const auto states = others_.of(i, shard, p++);
      s.learning_rate = learning_rate * run.rate;
      s.weight_decay = run.weight_decay;
      if (states.empty())
        descend(shard, piece, directions.of(i, shard), {.rate = learning_rate, .weight_decay = config().weight_decay});
      else
        ops::adam_(run.update, states[0], states[1], s);
    });
  });
}

void Muon::add_to(std::vector<StateTensor>& state) const {
  momentum_.add_to(state, shards());
  others_.add_to(state, shards());
}

}  // namespace colossal::optim
