#include "colossal/optim/factored.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/ops/reduce.h"

namespace colossal::optim {
namespace {

constexpr double kRegularization = 1e-30;  // the papers' first epsilon

}  // namespace

void for_matrix_blocks(const memory::Piece& piece, const at::Tensor& buffer, const tensor::Place& place,
                       const std::function<void(at::Tensor block, int64_t row, int64_t column, bool counts)>& body) {
  const auto shape = piece.parameter->spec.local_shape(place);
  const at::Tensor flat = of_piece(buffer, piece);
  for (const tensor::Block& block : tensor::blocks(piece.parameter->spec, place, piece.part))
    body(tensor::at_block(flat, shape, piece.part, block), block.start[0], block.start[1], block.primary);
}

FactoredMoments::FactoredMoments(const LogicalTensors& tensors, std::string kind) : tensors_(tensors), kind_(std::move(kind)) {
  int64_t total = 0;
  for (const auto& [name, shape] : tensors.entries()) {
    place_.push_back(shape.size() == 2 ? total : -1);
    if (shape.size() == 2) total += shape[0] + shape[1];
  }
  moments_ = at::zeros({total}, at::kDouble);
  for (size_t i = 0; i < place_.size(); ++i) {
    if (place_[i] < 0) continue;
    const auto& shape = tensors.entries()[i].shape;
    matrices_.push_back({i, moments_.narrow(0, place_[i], shape[0]), moments_.narrow(0, place_[i] + shape[0], shape[1])});
  }
}

void FactoredMoments::update(const std::vector<memory::Shard>& shards, const std::vector<at::Tensor>& buffers, double decay, double epsilon) {
  at::Tensor sums = at::zeros_like(moments_);
  for (size_t i = 0; i < shards.size(); ++i)
    for (const memory::Piece& piece : shards[i].pieces) {
      if (!is_matrix(*piece.parameter)) continue;
      const int64_t rows = place_[tensors_.index(*piece.parameter)], columns = rows + piece.parameter->spec.shape[0];
      for_matrix_blocks(piece, buffers[i], tensors_.mesh().place(), [&](const at::Tensor& block, int64_t row, int64_t column, bool counts) {
        if (!counts) return;
        ops::add_square_sums(block, sums.narrow(0, rows + row, block.size(0)), sums.narrow(0, columns + column, block.size(1)));
      });
    }
  tensors_.mesh().all().all_reduce(sums, comm::Reduce::Sum).wait();
  moments_.mul_(decay);
  for (const Matrix& matrix : matrices_) {
    const int64_t n = matrix.rows.numel(), m = matrix.columns.numel(), at = place_[matrix.tensor];
    at::Tensor(matrix.rows).add_(sums.narrow(0, at, n) / static_cast<double>(m) + epsilon, 1 - decay);
    at::Tensor(matrix.columns).add_(sums.narrow(0, at + n, m) / static_cast<double>(n) + epsilon, 1 - decay);
  }
}

void FactoredMoments::divide(const std::vector<memory::Shard>& shards, const std::vector<at::Tensor>& buffers) const {
  for (size_t i = 0; i < shards.size(); ++i)
    for (const memory::Piece& piece : shards[i].pieces) {
      if (!is_matrix(*piece.parameter)) continue;
      const int64_t n = piece.parameter->spec.shape[0], m = piece.parameter->spec.shape[1], at = place_[tensors_.index(*piece.parameter)];
      const at::Tensor rows = moments_.narrow(0, at, n), type = buffers[i];
      const at::Tensor of_rows = (rows / rows.mean()).rsqrt_().to(type.scalar_type());
      const at::Tensor of_columns = moments_.narrow(0, at + n, m).rsqrt().to(type.scalar_type());
      for_matrix_blocks(piece, buffers[i], tensors_.mesh().place(), [&](at::Tensor block, int64_t row, int64_t column, bool) {
        block.mul_(of_rows.narrow(0, row, block.size(0)).unsqueeze(1)).mul_(of_columns.narrow(0, column, block.size(1)));
      });
    }
}

void FactoredMoments::add_to(std::vector<StateTensor>& tensors) const {
  for (const Matrix& matrix : matrices_) {
    const std::string& name = tensors_.entries()[matrix.tensor].name;
    tensors.push_back({concat(kind_, "_rows.", name), matrix.rows, tensor::ShardSpec::whole(matrix.rows.sizes().vec()), {}});
    tensors.push_back({concat(kind_, "_columns.", name), matrix.columns, tensor::ShardSpec::whole(matrix.columns.sizes().vec()), {}});
  }
}

SecondMoments::SecondMoments(const std::vector<memory::Shard>& shards, const LogicalTensors& tensors)
    : matrices_(tensors, "factored"), others_(shards, {"exp_avg_sq"}, [](const nn::Parameter& p) { return !FactoredMoments::is_matrix(p); }) {}

void SecondMoments::update(const std::vector<memory::Shard>& shards, const std::vector<at::Tensor>& buffers, double decay) {
  matrices_.update(shards, buffers, decay, kRegularization);
  for (size_t i = 0; i < shards.size(); ++i)
    for (size_t p = 0; p < shards[i].pieces.size(); ++p)
      for (at::Tensor moment : others_.of(i, p)) moment.lerp_(of_piece(buffers[i], shards[i].pieces[p]).square() + kRegularization, 1 - decay);
}

void SecondMoments::divide(const std::vector<memory::Shard>& shards, const std::vector<at::Tensor>& buffers) const {
  matrices_.divide(shards, buffers);
  for (size_t i = 0; i < shards.size(); ++i)
    for (size_t p = 0; p < shards[i].pieces.size(); ++p)
      for (const at::Tensor& moment : others_.of(i, p)) of_piece(buffers[i], shards[i].pieces[p]).mul_(moment.rsqrt());
}

void SecondMoments::add_to(std::vector<StateTensor>& tensors, const std::vector<memory::Shard>& shards) const {
  matrices_.add_to(tensors);
  others_.add_to(tensors, shards);
}

}  // namespace colossal::optim
