#include "colossal/nn/low_rank_matrices.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/nn/canonical.h"
#include "colossal/nn/running_step.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/ops/products/prepacked_matrix.h"
#include "colossal/tensor/read_scope.h"

namespace colossal::nn {
namespace {

/// Returns a tensor of `rows` rows with those of `part` from `first` on, and zeros elsewhere.
at::Tensor padded_rows(const at::Tensor& part, int64_t first, int64_t rows) {
  if (part.size(0) == rows) return part;
  std::vector<int64_t> sizes = part.sizes().vec();
  sizes[0] = rows;
  at::Tensor whole = at::zeros(sizes, part.options());
  whole.narrow(0, first, part.size(0)).copy_(part);
  return whole;
}

/// Returns x mt, each row by itself.
at::Tensor product_by_row(const at::Tensor& x, const at::Tensor& matrix) {
  const tensor::ReadScope read({matrix});
  return ops::PrepackedMatrix::product(x, matrix);
}

/// TokenPlaces and the seed of the mask as integers: seed, first row, sequence, then each run.
at::Tensor kept_places(uint64_t seed, const TokenPlaces& places) {
  at::Tensor kept = at::empty({3 + 2 * static_cast<int64_t>(places.runs.size())}, at::kLong);
  auto* out = kept.mutable_data_ptr<int64_t>();
  *out++ = static_cast<int64_t>(seed), *out++ = places.first_row, *out++ = places.sequence;
  for (const Range& run : places.runs) *out++ = run.first, *out++ = run.size;
  return kept;
}

std::pair<uint64_t, TokenPlaces> read_places(const at::Tensor& kept) {
  const auto* in = kept.const_data_ptr<int64_t>();
  TokenPlaces places;
  places.first_row = in[1], places.sequence = in[2];
  for (int64_t i = 3; i < kept.numel(); i += 2) places.runs.push_back({in[i], in[i + 1]});
  return {static_cast<uint64_t>(in[0]), places};
}

}  // namespace

at::Tensor LowRankPiece::rows_of_a() const {
  const at::Tensor value = a.value.detach();
  return value.dim() == 2 ? value : value.permute({0, 2, 3, 1}).flatten(1);
}

at::Tensor LowRankPiece::as_a(const at::Tensor& rows) const {
  if (a.value.dim() == 2) return rows;
  return rows.view({rows.size(0), a.value.size(2), a.value.size(3), -1}).permute({0, 3, 1, 2}).contiguous();
}

LowRankMatrices::LowRankMatrices(std::vector<LowRankPiece> pieces, const LowRank& options, uint64_t site,
                                 const tensor::MeshCoordinates& coordinates)
    : pieces_(std::move(pieces)), options_(options), site_(site), features_(pieces_.front().a.spec.shape[1]) {
  for (const tensor::LocalBox& box : pieces_.front().a.spec.local_boxes(coordinates))
    runs_.push_back({{box.start[1], box.size[1]}, box.local_start[1]});
}

std::vector<Parameter*> LowRankMatrices::parameters(std::vector<Parameter*> inside) const {
  for (const LowRankPiece& piece : pieces_) {
    inside.insert(inside.end(), {&piece.a, &piece.b});
    if (piece.m) inside.push_back(piece.m);
  }
  return inside;
}

std::vector<int64_t> LowRankMatrices::first_outputs(std::vector<int64_t> inside) const {
  for (const LowRankPiece& piece : pieces_) {
    inside.insert(inside.end(), {-1, piece.first_output});
    if (piece.m) inside.push_back(piece.first_output);
  }
  return inside;
}

at::Tensor LowRankMatrices::a() const {
  if (pieces_.size() == 1) return pieces_.front().rows_of_a();
  std::vector<at::Tensor> all;
  for (const LowRankPiece& piece : pieces_) all.push_back(piece.rows_of_a());
  return at::cat(all);
}

at::Tensor LowRankMatrices::b_of(const LowRankPiece& piece) const {
  return piece.b.value.detach().narrow(0, piece.own, piece.count);
}

at::Tensor LowRankMatrices::narrowed(const at::Tensor& x, bool by_row) const {
  at::Tensor narrow = by_row ? product_by_row(x, a()) : ops::matmul_nt(x, a());
  int64_t first = 0;
  for (const LowRankPiece& piece : pieces_) {
    narrow.narrow(1, first, piece.rank()).mul_(piece.scale);
    first += piece.rank();
  }
  return narrow;
}

void LowRankMatrices::add_widened(at::Tensor& y, const at::Tensor& narrow, bool by_row) const {
  int64_t first = 0;
  for (const LowRankPiece& piece : pieces_) {
    at::Tensor outputs = y.narrow(1, piece.row, piece.count);
    const at::Tensor own = narrow.narrow(1, first, piece.rank());
    if (by_row)
      outputs.add_(product_by_row(own, b_of(piece)));
    else
      ops::matmul_nt_(outputs, own, b_of(piece), 1);
    first += piece.rank();
  }
}

at::Tensor LowRankMatrices::narrowed_gradient(const at::Tensor& dy) const {
  std::vector<at::Tensor> all;
  for (const LowRankPiece& piece : pieces_)
    all.push_back(ops::matmul_nn(dy.narrow(1, piece.row, piece.count), b_of(piece)).mul_(piece.scale));
  return all.size() == 1 ? all.front() : at::cat(all, 1);
}

at::Tensor LowRankMatrices::widened_gradient(const at::Tensor& narrow, at::Tensor sum) const {
  if (!sum.defined()) return ops::matmul_nn(narrow, a());
  ops::matmul_nt_(sum, narrow, a().t(), 1);
  return sum;
}

void LowRankMatrices::add_to(at::Tensor& weight) const {
  for (const LowRankPiece& piece : pieces_) {
    at::Tensor rows = weight.narrow(0, piece.row, piece.count);
    ops::matmul_nt_(rows, b_of(piece) * piece.scale, piece.rows_of_a().t(), 1);
  }
}

at::Tensor LowRankMatrices::magnitudes(int64_t rows, at::ScalarType dtype) const {
  at::Tensor all = at::zeros({rows}, pieces_.front().a.value.options().requires_grad(false).dtype(dtype));
  for (const LowRankPiece& piece : pieces_)
    all.narrow(0, piece.row, piece.count).copy_(piece.m->value.detach().narrow(0, piece.own, piece.count));
  return all;
}

// ||W + s B A||^2 of a row is w w + 2 s b (A wt) + s^2 (b A) (b A)t, so no matrix of the size of W is made.
at::Tensor LowRankMatrices::squares(const at::Tensor& squares,
                                    const std::function<at::Tensor(const at::Tensor& a)>& dot) const {
  const at::ScalarType type = squares.scalar_type();
  const at::Tensor all = a(), dots = dot(all).to(type);
  at::Tensor sum = squares.clone();
  int64_t first = 0;
  for (const LowRankPiece& piece : pieces_) {
    const at::Tensor own = all.narrow(0, first, piece.rank()).to(type), b = b_of(piece).to(type);
    const at::Tensor along = dots.narrow(0, first, piece.rank()).narrow(1, piece.row, piece.count).t();
    first += piece.rank();
    const at::Tensor added =
        along * (2 * piece.scale) + ops::matmul_nn(b, ops::matmul_nt(own, own)) * (piece.scale * piece.scale);
    sum.narrow(0, piece.row, piece.count).add_((b * added).sum(1));
  }
  return sum.clamp_min_(0);
}

void LowRankMatrices::append(std::vector<at::Tensor>& own,
                             const std::function<OfPiece(const LowRankPiece&, int64_t first)>& of) const {
  int64_t first = 0;
  for (const LowRankPiece& piece : pieces_) {
    const OfPiece d = of(piece, first);
    first += piece.rank();
    own.push_back(piece.as_a(d.a));
    own.push_back(padded_rows(d.b, piece.own, piece.b.value.size(0)));
    if (piece.m) own.push_back(padded_rows(d.m, piece.own, piece.m->value.size(0)));
  }
}

at::Tensor LowRankMatrices::places(const at::Tensor& x) const {
  if (!has_dropout()) return {};
  const RunningStep* running = RunningStep::current();
  require(running != nullptr && (!running->step.training || running->step.batch), "adapter", "dropout before ",
          pieces_.front().a.name, " must know the tokens of x: got ", running ? "a step without a batch" : "no step",
          "; call the block of a model (models::make_model), or set adapter.dropout = 0");
  if (!running->step.training || is_canonical(running->step)) return {};
  const Tokens tokens = running->tokens(running->step);
  const int64_t rows = running->step.batch->rows() / tokens.batch.runs * static_cast<int64_t>(tokens.batch.held.size());
  require(rows > 0 && x.size(0) % rows == 0, "adapter", "x before ", pieces_.front().a.name,
          " must have equally many tokens of each row of the batch for dropout: got ", x.size(0), " of ", rows,
          " rows; set adapter.dropout = 0");
  return kept_places(derive_seed(running->step.dropout_seed, site_),
                     TokenPlaces(running->step, tokens, rows, x.size(0) / rows));
}

at::Tensor LowRankMatrices::dropped(const at::Tensor& x, const at::Tensor& places) const {
  if (!places.defined()) return x;
  const auto [seed, where] = read_places(places);
  int64_t in_row = 0;
  for (const Range& run : where.runs) in_row += run.size;
  const at::Tensor rows = x.reshape({-1, in_row, x.size(1)});
  if (runs_.size() == 1 && runs_.front().logical.size == x.size(1))
    return nn::dropped(rows, options_.dropout, seed, where, runs_.front().logical, features_).flatten(0, 1);
  at::Tensor y = rows.clone();  // inputs outside of the runs are padding, which A multiplies by zeros
  for (const Run& run : runs_) {
    const at::Tensor own = rows.narrow(2, run.local, run.logical.size).contiguous();
    y.narrow(2, run.local, run.logical.size)
        .copy_(nn::dropped(own, options_.dropout, seed, where, run.logical, features_));
  }
  return y.flatten(0, 1);
}

}  // namespace colossal::nn
