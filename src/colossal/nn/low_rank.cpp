#include "colossal/nn/low_rank.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/nn/direct_product.h"
#include "colossal/nn/frozen_product.h"
#include "colossal/nn/low_rank_convolution.h"
#include "colossal/nn/low_rank_experts.h"
#include "colossal/nn/low_rank_matrices.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/products/matmul.h"

namespace colossal::nn {
namespace {

constexpr std::string_view kAdapter = ".adapter_";

/// The factors of rows by which magnitudes scale W + s B A, and the norms by which they are divided.
struct RowScales {
  at::Tensor factor, norm;
};

/// `squares`: of the rows of W and of W + s B A on this rank, [2, rows].
RowScales row_scales(const Product& product, const LowRankMatrices& matrices, const at::Tensor& squares) {
  const at::Tensor norms = product.sum_over_inputs(squares).sqrt_();
  // A row of zeros, such as padding, stays one. Before the first step both norms are equal, and the factor is 1.
  at::Tensor norm = norms[1].clone();
  norm.masked_fill_(norm.eq(0), 1);
  const at::Tensor factor =
      (norms[0] + matrices.magnitudes(norm.size(0), norm.scalar_type())).div_(norm).masked_fill_(norms[1].eq(0), 1);
  return {factor, norm};
}

at::Tensor row_squares(const at::Tensor& rows) { return rows.to(ops::wide_type(rows)).square().sum(1); }

class DirectLowRank final : public DirectWrapper {
 public:
  DirectLowRank(std::shared_ptr<const DirectProduct> inner, LowRankMatrices matrices)
      : DirectWrapper(std::move(inner)), m_(std::move(matrices)) {}

  std::vector<Parameter*> parameters() const override { return m_.parameters(inner().parameters()); }
  std::vector<int64_t> first_outputs() const override { return m_.first_outputs(inner().first_outputs()); }

  at::Tensor local_y(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    at::Tensor y = inner().local_y(x, weight, bias, out, saved);
    // dA and dB are computed from x itself, so a product inside need not keep x in another form as well.
    if (saved && saved->takes_given_x) saved->x = x;
    const at::Tensor places = m_.places(x);
    const bool by_row = inner().multiplies_by_row(saved != nullptr);
    m_.add_widened(y, m_.narrowed(m_.dropped(x, places), by_row), by_row);
    Kept kept{places};
    if (m_.has_magnitudes()) {
      const RowScales scales = scales_of(weight, y, out);
      // A factor of 1 leaves y as it is, to the bit, although y contains the bias.
      const at::Tensor product = bias.defined() ? y - bias : saved ? y.clone() : y;
      kept = {places, saved ? product : at::Tensor(), scales.factor, scales.norm};
      y.add_(product * (scales.factor - 1));
    }
    if (saved && keeps()) saved->own.insert(saved->own.end(), kept.begin(), kept.end());
    return y;
  }
  /// The norms of magnitudes are those of the weight.
  bool reads_weight(bool has_gradients) const override {
    return m_.has_magnitudes() || inner().reads_weight(has_gradients);
  }
  at::Tensor local_dx(const at::Tensor& dy, const Saved& saved) const override {
    const Kept kept = kept_of(saved);
    const at::Tensor scaled = scaled_dy(dy, kept);
    const at::Tensor dx = inner().local_dx(scaled, inside(saved)), narrow = m_.narrowed_gradient(scaled);
    if (!kept[kPlaces].defined()) return m_.widened_gradient(narrow, dx);
    return at::Tensor(dx).add_(m_.dropped(m_.widened_gradient(narrow, {}), kept[kPlaces]));
  }
  void local_gradients(const at::Tensor& dy, const Saved& saved, const Wanted& wanted, Gradients& d) const override {
    const Kept kept = kept_of(saved);
    const at::Tensor scaled = scaled_dy(dy, kept);
    inner().local_gradients(scaled, inside(saved), wanted, d);
    if (!wanted.own) return;
    const at::Tensor x = m_.dropped(saved.x, kept[kPlaces]), narrow_x = m_.narrowed(x, false),
                     of_a = ops::matmul_tn(m_.narrowed_gradient(scaled), x);
    m_.append(d.own, [&](const LowRankPiece& piece, int64_t first) {
      LowRankMatrices::OfPiece own{
          of_a.narrow(0, first, piece.rank()),
          ops::matmul_tn(scaled.narrow(1, piece.row, piece.count), narrow_x.narrow(1, first, piece.rank())),
          {}};
      if (!piece.m) return own;
      const at::Tensor products = dy.narrow(1, piece.row, piece.count) * kept[kY].narrow(1, piece.row, piece.count);
      own.m = products.sum(0, false, ops::wide_type(dy))
                  .div_(kept[kNorm].narrow(0, piece.row, piece.count))
                  .to(piece.m->value.scalar_type());
      return own;
    });
  }

 private:
  /// The tensors that this wrapper keeps, after those of the product inside.
  enum : size_t { kPlaces, kY, kFactor, kNorm, kKept };
  using Kept = std::array<at::Tensor, kKept>;

  bool keeps() const { return m_.has_magnitudes() || m_.has_dropout(); }
  Kept kept_of(const Saved& saved) const {
    Kept kept;
    if (keeps()) std::copy(saved.own.end() - kKept, saved.own.end(), kept.begin());
    return kept;
  }
  Saved inside(Saved saved) const {
    if (keeps()) saved.own.resize(saved.own.size() - kKept);
    return saved;
  }
  static at::Tensor scaled_dy(const at::Tensor& dy, const Kept& kept) {
    return kept[kFactor].defined() ? dy.clone().mul_(kept[kFactor]) : dy;
  }

  RowScales scales_of(const at::Tensor& weight, const at::Tensor& like, int64_t out) const {
    if (has_backward()) {
      std::vector<at::Tensor> squares, dots;
      const at::Tensor a = m_.a();
      const int64_t slice = std::max(kRows, kElements / a.size(1));
      for (int64_t first = 0; first < out; first += slice) {
        const at::Tensor rows = inner().local_rows(weight, first, std::min(slice, out - first));
        squares.push_back(row_squares(rows));
        dots.push_back(ops::matmul_nt(a, rows));
      }
      const at::Tensor of_w = at::cat(squares);
      const at::Tensor sums = m_.squares(of_w, [&](const at::Tensor&) { return at::cat(dots, 1); });
      return row_scales(inner(), m_, at::stack({of_w, sums}));
    }
    // Nothing trains, so the scales do not change. The weight may exist in packed form only: rows of the identity give
    // its columns.
    if (!fixed_.factor.defined()) {
      const auto columns = [&](const at::Tensor& x) { return inner().local_y(x, weight, {}, out, nullptr); };
      const int64_t in = m_.a().size(1);
      at::Tensor squares = at::zeros({out}, like.options().dtype(ops::wide_type(like)));
      for (int64_t first = 0; first < in; first += kColumns) {
        at::Tensor units = at::zeros({std::min(kColumns, in - first), in}, like.options());
        units.diagonal(first).fill_(1);
        squares.add_(row_squares(columns(units).t()));
      }
      fixed_ = row_scales(inner(), m_, at::stack({squares, m_.squares(squares, columns)}));
    }
    return fixed_;
  }

  static constexpr int64_t kColumns = 256;  // of the weight that are multiplied at a time
  // of the weight that are read at a time, because it may be decoded for that: so many rows, or more if they are short
  static constexpr int64_t kRows = 128, kElements = int64_t{1} << 20;
  LowRankMatrices m_;
  mutable RowScales fixed_;  // around a product without backward
};

class GatheredLowRank final : public Product {
 public:
  GatheredLowRank(std::shared_ptr<const Product> inner, LowRankMatrices matrices)
      : inner_(std::move(inner)), m_(std::move(matrices)) {}

  std::vector<Parameter*> parameters() const override { return m_.parameters(inner_->parameters()); }
  std::vector<int64_t> first_outputs() const override { return m_.first_outputs(inner_->first_outputs()); }
  at::Tensor sum_over_inputs(at::Tensor part) const override { return inner_->sum_over_inputs(std::move(part)); }
  bool has_backward() const override { return inner_->has_backward(); }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    at::Tensor sum = weight_values(*inner_, weight).detach();
    const at::Tensor squares = m_.has_magnitudes() ? row_squares(sum) : at::Tensor();
    sum = sum_with(weight, sum);
    RowScales scales;
    if (m_.has_magnitudes()) {
      scales = row_scales(*inner_, m_, at::stack({squares, row_squares(sum)}));
      scale_rows(sum, scales.factor);
    }
    const at::Tensor y = inner_->forward(x, sum, bias, out, saved);
    if (!saved) return y;
    // W is kept anyway, so backward computes the sum again, unless the product kept another tensor, such as a gathered
    // one.
    const bool kept_sum = saved->weight.is_same(sum);
    saved->own.insert(saved->own.end(),
                      {kept_sum || m_.has_magnitudes() ? weight : at::Tensor(), scales.factor, scales.norm});
    if (kept_sum) saved->weight.reset();
    return y;
  }
  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const override {
    Saved given = saved;
    const at::Tensor weight = given.own.end()[-3], factor = given.own.end()[-2], norm = given.own.end()[-1];
    given.own.resize(given.own.size() - 3);
    if (!given.weight.defined() && weight.defined() && wanted.x) {
      given.weight = sum_with(weight);
      if (factor.defined()) scale_rows(given.weight, factor);
    }
    Gradients d = inner_->backward(dy, given, {wanted.x, wanted.weight || wanted.own, {}, wanted.own});
    if (wanted.own) {
      at::Tensor of_m;
      if (factor.defined()) {
        of_m = (d.weight * sum_with(weight)).sum(1, false, ops::wide_type(dy)).div_(norm).to(d.weight.scalar_type());
        scale_rows(d.weight, factor);
      }
      m_.append(d.own, [&](const LowRankPiece& piece, int64_t) {
        const at::Tensor rows = d.weight.narrow(0, piece.row, piece.count), a = piece.rows_of_a(),
                         b = piece.b.value.detach().narrow(0, piece.own, piece.count);
        return LowRankMatrices::OfPiece{ops::matmul_tn(b, rows).mul_(piece.scale),
                                        ops::matmul_nt(rows, a).mul_(piece.scale),
                                        piece.m ? of_m.narrow(0, piece.row, piece.count) : at::Tensor()};
      });
    }
    d.weight = wanted.weight ? wanted.with(d.weight) : at::Tensor();
    return d;
  }

 private:
  static void scale_rows(at::Tensor& weight, const at::Tensor& factor) { weight.mul_(factor.unsqueeze(1)); }
  /// `values`: those of the weight, in a tensor of their own if the weight has them in another form.
  at::Tensor sum_with(const at::Tensor& weight, const at::Tensor& values) const {
    at::Tensor sum = values.is_alias_of(weight) ? values.clone() : values;
    m_.add_to(sum);
    return sum;
  }
  at::Tensor sum_with(const at::Tensor& weight) const {
    return sum_with(weight, weight_values(*inner_, weight).detach());
  }

  std::shared_ptr<const Product> inner_;
  LowRankMatrices m_;
};

/// The segments of a part, and the number of rows of the weight before it on this rank.
struct PartSegments {
  std::vector<tensor::Segment> segments;
  int64_t first_output;
};

PartSegments segments_of(const Parameter& weight, const LowRankPart& part, const tensor::MeshCoordinates& coordinates) {
  const tensor::DimSplit& split = weight.spec.splits[0];
  const auto room_of = [&](const std::vector<tensor::Segment>& segments) {
    const int64_t size = tensor::total_size(segments);
    return size == 0 ? 0 : tensor::ShardSpec::split({size}, 0, split.axes, segments).room(0, coordinates);
  };
  std::vector<tensor::Segment> before, own;
  int64_t at = 0;
  for (const tensor::Segment& segment : split.segments) {
    if (at < part.first) before.push_back(segment);
    if (at >= part.first && at + segment.size <= part.first + part.count) own.push_back(segment);
    at += segment.size;
  }
  const int64_t size = tensor::total_size(own);
  require(size == part.count && tensor::total_size(before) == part.first && size > 0, "adapter", "the part ", part.name,
          " of ", weight.name, " must be whole segments of its outputs: got outputs ", part.first, " to ",
          part.first + part.count - 1);
  return {std::move(own), room_of(before)};
}

/// Declares the matrices of a part.
LowRankPiece declare_piece(const Parameter& weight, const LowRankPart& part, Parameters& parameters,
                           const LowRank& options) {
  const PartSegments at = segments_of(weight, part, parameters.coordinates());
  std::vector<int64_t> sizes_of_a = weight.spec.shape;
  const int64_t in = sizes_of_a[1], rank = part.rank.value_or(options.rank);
  require(rank >= 1 && rank <= std::min(part.count, in), "adapter", "the rank of an adapter of ", weight.name,
          part.name.empty() ? "" : concat(" (", part.name, ")"), " must be between 1 and ", std::min(part.count, in),
          ", its smaller side: got ", rank);
  const tensor::DimSplit &outputs = weight.spec.splits[0], &inputs = weight.spec.splits[1];
  sizes_of_a[0] = rank;
  auto of_a = tensor::ShardSpec::whole(sizes_of_a);
  of_a.splits[1] = inputs;
  of_a.gradient_axes = weight.spec.gradient_axes;
  add_axes(of_a.gradient_axes, outputs.axes);
  add_axes(of_a.gradient_axes, outputs.shards);
  auto of_b = tensor::ShardSpec::split({part.count, rank}, 0, outputs.axes, at.segments);
  of_b.gradient_axes = weight.spec.gradient_axes;
  for (const auto* axes : {&inputs.axes, &inputs.shards, &outputs.shards}) add_axes(of_b.gradient_axes, *axes);
  auto of_m = tensor::ShardSpec::split({part.count}, 0, outputs.axes, at.segments);
  of_m.gradient_axes = of_b.gradient_axes;
  int64_t inputs_of_row = 1;
  for (size_t d = 1; d < sizes_of_a.size(); ++d) inputs_of_row *= sizes_of_a[d];
  const auto add = [&](char matrix, tensor::ShardSpec spec, Init init, bool decay) -> Parameter& {
    Parameter& added = parameters.add(low_rank_name_of(weight, matrix, part.name), std::move(spec), init, decay);
    added.hidden_matrix = added.spec.shape.size() == 2;
    added.is_shared = weight.is_shared;
    return added;
  };
  Parameter& a = add('a', std::move(of_a), Init::uniform(1 / std::sqrt(static_cast<double>(inputs_of_row))), true);
  Parameter& b = add('b', std::move(of_b), Init::zeros(), true);
  Parameter* m = options.magnitudes ? &add('m', std::move(of_m), Init::zeros(), false) : nullptr;
  // the part of B that belongs to the rows of the weight which this rank multiplies with
  const bool has_shard = !weight.between_blocks;
  const int64_t rows = has_shard ? weight.spec.local_shape(parameters.coordinates())[0]
                                 : weight.spec.room(0, parameters.coordinates()),
                first = has_shard ? parameters.coordinates().index(outputs.shards) * rows : 0,
                room = b.spec.room(0, parameters.coordinates());
  const int64_t from = std::clamp<int64_t>(first - at.first_output, 0, room),
                to = std::clamp<int64_t>(first + rows - at.first_output, 0, room);
  return {a,
          b,
          m,
          at.first_output,
          std::clamp<int64_t>(at.first_output - first, 0, rows),
          from,
          to - from,
          part.scale.value_or(options.scale)};
}

/// Checks the adapter of a convolution or of a layer between blocks, which is s B A alone.
void check_change(const Parameter& weight, const LowRank& options) {
  require(options.dropout == 0 && !options.magnitudes && options.parts.size() <= 1, "adapter", "the adapter of ",
          weight.name, ", a convolution or a layer between blocks, must have no dropout, magnitudes or several parts: ",
          "got one with dropout ", options.dropout, ", ", options.magnitudes ? "magnitudes" : "no magnitudes", " and ",
          std::max<size_t>(1, options.parts.size()), " part(s); leave them out");
}

void check_low_rank(const Product& product, const Parameter& weight, const LowRank& options) {
  const bool is_convolution = weight.spec.shape.size() == 4;
  if (is_convolution || weight.between_blocks) check_change(weight, options);
  if (is_convolution) return;
  require(weight.hidden_matrix || weight.between_blocks, "adapter", weight.name,
          " must be a matrix inside a block: the loss of a head multiplies with its weight alone; return `product` "
          "unless weight.hidden_matrix");
  require(weight.spec.shape.size() == 2, "adapter", weight.name, " must be a matrix: got ", weight.spec.shape.size(),
          " dimensions");
  require(options.dropout >= 0 && options.dropout < 1, "adapter", "the dropout of an adapter must be in [0, 1): got ",
          options.dropout, " for ", weight.name);
  require(
      options.dropout == 0 || dynamic_cast<const DirectProduct*>(&product), "adapter",
      "adapters with dropout must be around products of local blocks: ", weight.name,
      " is multiplied with gathered ones; set adapter.dropout = 0, or tensor.mode = 1d and tensor.sequence = false");
  require(!options.magnitudes || !weight.treatment.trains, "adapter", weight.name,
          " must be frozen to have magnitudes, which start as its norms: got one that trains; freeze it, or leave out "
          "LowRank::magnitudes");
  for (size_t i = 1; i < options.parts.size(); ++i)
    require(options.parts[i].first >= options.parts[i - 1].first + options.parts[i - 1].count, "adapter",
            "the parts of ", weight.name, " must follow each other: got ", options.parts[i].name, " before the end of ",
            options.parts[i - 1].name);
}

}  // namespace

std::shared_ptr<const Product> with_low_rank(std::shared_ptr<const Product> product, const Parameter& weight,
                                             Parameters& parameters, const LowRank& options) {
  if (weight.stack) return with_low_rank_of_expert(std::move(product), weight, parameters, options);
  std::vector<LowRankPart> parts = options.parts;
  if (parts.empty()) parts = {{.name = "", .first = 0, .count = weight.spec.shape[0]}};
  check_low_rank(*product, weight, options);
  std::vector<LowRankPiece> pieces;
  for (const LowRankPart& part : parts) pieces.push_back(declare_piece(weight, part, parameters, options));
  if (!weight.value.defined()) return product;
  auto direct = std::dynamic_pointer_cast<const DirectProduct>(product);
  if (direct && weight.spec.shape.size() == 4) {
    const LowRankPiece& piece = pieces.front();
    return std::make_shared<ConvolutionLowRank>(std::move(direct), piece.a, piece.b, piece.scale, piece.first_output);
  }
  LowRankMatrices matrices(std::move(pieces), options, derive_seed(0, concat(weight.own_name(), kAdapter)),
                           parameters.coordinates());
  if (direct) return std::make_shared<DirectLowRank>(std::move(direct), std::move(matrices));
  return std::make_shared<GatheredLowRank>(std::move(product), std::move(matrices));
}

std::string LowRankName::text() const { return concat(layer, kAdapter, matrix, part.empty() ? "" : ".", part); }

std::optional<LowRankName> low_rank_name(std::string_view parameter) {
  const size_t at = parameter.rfind(kAdapter), matrix = at + kAdapter.size();
  if (at == std::string_view::npos || matrix >= parameter.size()) return {};
  const std::string_view behind = parameter.substr(matrix + 1);
  const bool is_matrix = std::string_view("abm").find(parameter[matrix]) != std::string_view::npos;
  if (!is_matrix || (!behind.empty() && (behind[0] != '.' || behind.size() == 1))) return {};
  return LowRankName{std::string(parameter.substr(0, at)), parameter[matrix],
                     std::string(behind.empty() ? behind : behind.substr(1))};
}

bool is_low_rank(std::string_view parameter) { return low_rank_name(parameter).has_value(); }

}  // namespace colossal::nn
