#include "colossal/optim/factored.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/ops/updates/factored.h"

namespace colossal::optim {
namespace {

constexpr double kRegularization = 1e-30;  // the first epsilon of the papers

}  // namespace

FactoredMoments::FactoredMoments(const LogicalTensors& tensors, std::string kind)
    : tensors_(tensors), kind_(std::move(kind)) {
  int64_t total = 0;
  for (const Entry& entry : tensors.entries()) {
    if (!is_matrix(entry)) continue;
    place_[entry.first] = total;
    total += static_cast<int64_t>(entry.count) * (entry.shape[0] + entry.shape[1]);
  }
  moments_ = at::zeros({total}, tensors.zeros().options());
}

at::Tensor FactoredMoments::rows_of(const at::Tensor& flat, const Entry& entry) const {
  const auto count = static_cast<int64_t>(entry.count);
  return flat.narrow(0, place_.at(entry.first), count * entry.shape[0]).view({count, entry.shape[0]});
}

at::Tensor FactoredMoments::columns_of(const at::Tensor& flat, const Entry& entry) const {
  const auto count = static_cast<int64_t>(entry.count);
  return flat.narrow(0, place_.at(entry.first) + count * entry.shape[0], count * entry.shape[1])
      .view({count, entry.shape[1]});
}

void FactoredMoments::begin(double scale, double decay, double epsilon) {
  sums_ = at::zeros_like(moments_);
  scale_ = scale;
  decay_ = decay;
  epsilon_ = epsilon;
}

void FactoredMoments::add(const std::vector<memory::Piece>& pieces, const at::Tensor& buffer) {
  for (const memory::Piece& piece : pieces) {
    const Entry& entry = tensors_.entry(*piece.parameter);
    if (!is_matrix(entry)) continue;
    const at::Tensor rows = rows_of(sums_, entry), columns = columns_of(sums_, entry);
    for (const LogicalTensors::Block& block : tensors_.blocks(piece)) {
      if (!block.counts) continue;
      const auto matrix = static_cast<int64_t>(block.tensor - entry.first);
      ops::add_square_sums(block.of(buffer), rows.select(0, matrix).narrow(0, block.start[0], block.size[0]),
                           columns.select(0, matrix).narrow(0, block.start[1], block.size[1]));
    }
  }
}

void FactoredMoments::update() {
  sums_.mul_(scale_ * scale_);
  tensors_.mesh().all().all_reduce(sums_, comm::Reduce::Sum).wait();
  moments_.mul_(decay_);
  for (const Entry& entry : tensors_.entries()) {
    if (!is_matrix(entry)) continue;
    const auto n = static_cast<double>(entry.shape[0]), m = static_cast<double>(entry.shape[1]);
    rows_of(moments_, entry).add_(rows_of(sums_, entry) / m + epsilon_, 1 - decay_);
    columns_of(moments_, entry).add_(columns_of(sums_, entry) / n + epsilon_, 1 - decay_);
  }
  sums_.reset();
}

void FactoredMoments::divide(const std::vector<memory::Piece>& pieces, const at::Tensor& from, double scale,
                             const at::Tensor& to, at::Tensor& squares) const {
  const auto type = to.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  for (const memory::Piece& piece : pieces) {
    const Entry& entry = tensors_.entry(*piece.parameter);
    if (!is_matrix(entry)) continue;
    const at::Tensor all_rows = rows_of(moments_, entry), all_columns = columns_of(moments_, entry);
    for (const LogicalTensors::Part& part : tensors_.parts(piece)) {
      const auto matrix = static_cast<int64_t>(part.tensor - entry.first);
      const at::Tensor rows = all_rows.select(0, matrix);
      const at::Tensor of_rows = (rows / rows.mean()).rsqrt_().mul_(scale).to(type),
                       of_columns = all_columns.select(0, matrix).rsqrt().to(type);
      for (const LogicalTensors::Block& block : tensors_.blocks(part.piece)) {
        const at::Tensor sum =
            ops::scale_rows_columns(block.of(from), of_rows.narrow(0, block.start[0], block.size[0]),
                                    of_columns.narrow(0, block.start[1], block.size[1]), block.of(to));
        if (block.counts) squares.select(0, static_cast<int64_t>(part.tensor)).add_(sum);
      }
    }
  }
}

void FactoredMoments::add_to(std::vector<StateTensor>& tensors) const {
  for (const Entry& entry : tensors_.entries()) {
    if (!is_matrix(entry)) continue;
    const auto add = [&](const char* kind, const at::Tensor& means) {
      const std::vector<int64_t> shape = entry.shape_of_state({means.size(1)});
      tensors.push_back({concat(kind_, kind, entry.name), means.view(shape), tensor::ShardSpec::whole(shape), {}});
    };
    add("_rows.", rows_of(moments_, entry));
    add("_columns.", columns_of(moments_, entry));
  }
}

SecondMoments::SecondMoments(const std::vector<memory::Shard>& shards, const LogicalTensors& tensors)
    : tensors_(tensors),
      matrices_(tensors, "factored"),
      others_(shards, {"exp_avg_sq"}, [&](const nn::Parameter& p) { return !matrices_.is_matrix(p); }) {}

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
      tensors_.add_squares({piece}, to, squares);
    }
}

void SecondMoments::add_to(std::vector<StateTensor>& tensors, const std::vector<memory::Shard>& shards) const {
  matrices_.add_to(tensors);
  others_.add_to(tensors, shards);
}

}  // namespace colossal::optim
