#include "colossal/optim/factored.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/ops/updates/factored.h"

namespace colossal::optim {
namespace {

constexpr double kRegularization = 1e-30;  // the first epsilon of the papers

}  // namespace

void for_matrix_blocks(const memory::Piece& piece, const at::Tensor& buffer, const tensor::MeshCoordinates& coordinates,
                       const std::function<void(at::Tensor block, int64_t row, int64_t column, bool counts)>& body) {
  const auto shape = piece.parameter->spec.local_shape(coordinates);
  const at::Tensor flat = of_piece(buffer, piece);
  for (const tensor::LocalBox& block : tensor::local_boxes(piece.parameter->spec, coordinates, piece.part))
    body(tensor::at_local_box(flat, shape, piece.part, block), block.start[0], block.start[1], block.primary);
}

FactoredMoments::FactoredMoments(const LogicalTensors& tensors, std::string kind)
    : tensors_(tensors), kind_(std::move(kind)) {
  int64_t total = 0;
  for (const LogicalTensors::Entry& entry : tensors.entries()) {
    const auto& shape = entry.spec.shape;
    place_.push_back(shape.size() == 2 ? total : -1);
    if (shape.size() == 2) total += shape[0] + shape[1];
  }
  moments_ = at::zeros({total}, tensors.zeros().options());
  for (size_t i = 0; i < place_.size(); ++i) {
    if (place_[i] < 0) continue;
    const auto& shape = tensors.entries()[i].spec.shape;
    matrices_.push_back(
        {i, moments_.narrow(0, place_[i], shape[0]), moments_.narrow(0, place_[i] + shape[0], shape[1])});
  }
}

void FactoredMoments::begin(double scale, double decay, double epsilon) {
  sums_ = at::zeros_like(moments_);
  scale_ = scale;
  decay_ = decay;
  epsilon_ = epsilon;
}

void FactoredMoments::add(const std::vector<memory::Piece>& pieces, const at::Tensor& buffer) {
  for (const memory::Piece& piece : pieces) {
    if (!is_matrix(*piece.parameter)) continue;
    const int64_t rows = place_[tensors_.index(*piece.parameter)], columns = rows + piece.parameter->spec.shape[0];
    for_matrix_blocks(piece, buffer, tensors_.mesh().coordinates(),
                      [&](const at::Tensor& block, int64_t row, int64_t column, bool counts) {
                        if (!counts) return;
                        ops::add_square_sums(block, sums_.narrow(0, rows + row, block.size(0)),
                                             sums_.narrow(0, columns + column, block.size(1)));
                      });
  }
}

void FactoredMoments::update() {
  sums_.mul_(scale_ * scale_);
  tensors_.mesh().all().all_reduce(sums_, comm::Reduce::Sum).wait();
  moments_.mul_(decay_);
  for (const Matrix& matrix : matrices_) {
    const int64_t n = matrix.rows.numel(), m = matrix.columns.numel(), at = place_[matrix.tensor];
    at::Tensor(matrix.rows).add_(sums_.narrow(0, at, n) / static_cast<double>(m) + epsilon_, 1 - decay_);
    at::Tensor(matrix.columns).add_(sums_.narrow(0, at + n, m) / static_cast<double>(n) + epsilon_, 1 - decay_);
  }
  sums_.reset();
}

void FactoredMoments::divide(const std::vector<memory::Piece>& pieces, const at::Tensor& from, double scale,
                             const at::Tensor& to, at::Tensor& squares) const {
  const tensor::MeshCoordinates coordinates = tensors_.mesh().coordinates();
  for (const memory::Piece& piece : pieces) {
    if (!is_matrix(*piece.parameter)) continue;
    const size_t tensor = tensors_.index(*piece.parameter);
    const int64_t n = piece.parameter->spec.shape[0], m = piece.parameter->spec.shape[1], at = place_[tensor];
    const auto type = to.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor rows = moments_.narrow(0, at, n);
    const at::Tensor of_rows = (rows / rows.mean()).rsqrt_().mul_(scale).to(type),
                     of_columns = moments_.narrow(0, at + n, m).rsqrt().to(type);
    const auto shape = piece.parameter->spec.local_shape(coordinates);
    for (const tensor::LocalBox& block : tensor::local_boxes(piece.parameter->spec, coordinates, piece.part)) {
      const auto in = [&](const at::Tensor& buffer) {
        return tensor::at_local_box(of_piece(buffer, piece), shape, piece.part, block);
      };
      const at::Tensor sum = ops::scale_rows_columns(in(from), of_rows.narrow(0, block.start[0], block.size[0]),
                                                     of_columns.narrow(0, block.start[1], block.size[1]), in(to));
      if (block.primary) squares.select(0, static_cast<int64_t>(tensor)).add_(sum);
    }
  }
}

void FactoredMoments::add_to(std::vector<StateTensor>& tensors) const {
  for (const Matrix& matrix : matrices_) {
    const std::string& name = tensors_.entries()[matrix.tensor].name;
    tensors.push_back(
        {concat(kind_, "_rows.", name), matrix.rows, tensor::ShardSpec::whole(matrix.rows.sizes().vec()), {}});
    tensors.push_back(
        {concat(kind_, "_columns.", name), matrix.columns, tensor::ShardSpec::whole(matrix.columns.sizes().vec()), {}});
  }
}

SecondMoments::SecondMoments(const std::vector<memory::Shard>& shards, const LogicalTensors& tensors)
    : tensors_(tensors),
      matrices_(tensors, "factored"),
      others_(shards, {"exp_avg_sq"}, [](const nn::Parameter& p) { return !FactoredMoments::is_matrix(p); }) {}

void SecondMoments::begin(double scale, double decay) {
  matrices_.begin(scale, decay, kRegularization);
  scale_ = scale;
  decay_ = decay;
}

void SecondMoments::add(size_t index, const memory::Resident& shard, const at::Tensor& buffer) {
  matrices_.add(shard.pieces, buffer);
  for (size_t p = 0; p < shard.pieces.size(); ++p)
    for (at::Tensor moment : others_.of(index, shard, p)) {
      const at::Tensor g = of_piece(buffer, shard.pieces[p]).to(moment.scalar_type()) * scale_;
      moment.lerp_(g.square() + kRegularization, 1 - decay_);
    }
}

void SecondMoments::divide(size_t index, const memory::Resident& shard, const at::Tensor& from, double scale,
                           const at::Tensor& to, at::Tensor& squares) const {
  matrices_.divide(shard.pieces, from, scale, to, squares);
  for (size_t p = 0; p < shard.pieces.size(); ++p)
    for (const at::Tensor& moment : others_.of(index, shard, p)) {
      const memory::Piece& piece = shard.pieces[p];
      of_piece(to, piece).copy_(of_piece(from, piece) * moment.rsqrt() * scale);
      squares.select(0, static_cast<int64_t>(tensors_.index(*piece.parameter)))
          .add_(memory::counted_squares(to, piece, tensors_.mesh().coordinates()));
    }
}

void SecondMoments::add_to(std::vector<StateTensor>& tensors, const std::vector<memory::Shard>& shards) const {
  matrices_.add_to(tensors);
  others_.add_to(tensors, shards);
}

}  // namespace colossal::optim
