// 2D and 2.5D: every matrix tiled over a q x q grid of ranks, multiplied panel by panel (SUMMA). Rank (i, j) has mesh
// indices row i and column j, and holds rows i and features j of activations, and of a weight [out, in] the tile (out
// j, in i). With an axis "depth" there are d such grids, each with its part of the batch and a copy of the weights.
//
// Communication, an element counted as (q-1)/q sent: each of y, dx and dW moves every panel of x (or dx) along the
// grid's rows, and every panel of W (or dW) along its columns, once: 3 (q-1) (S_x/d + S_W) / q^2 per rank; S_y never
// moves.
// Overlap: panel t+1 is in transit while panel t is multiplied.
#include <ATen/ATen.h>

#include "colossal/ops/dispatch.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/parallel/tensor/layout.h"
#include "colossal/parallel/tensor/modes.h"
#include "colossal/parallel/tensor/panels.h"

namespace colossal::parallel {
namespace {

class Summa final : public nn::Product {
 public:
  explicit Summa(comm::Mesh& mesh) : along_row_(mesh.group("column")), along_column_(mesh.group("row")) {}

  // y(i, j) = sum over t of x(i, t) W(j, t)t: x from the owner in this row of the grid, W from the one in this column.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    if (saved) *saved = {x, weight, out};
    Panels xs(along_row_, x), weights(along_column_, weight);
    at::Tensor y = at::empty({x.size(0), out}, x.options().dtype(ops::wide_type(x)));
    for (int t = 0; t < side(); ++t) {
      const at::Tensor &panel = xs.take(t), &tile = weights.take(t);
      ops::matmul_nt_(y, panel, tile, t == 0 ? 0 : 1);
    }
    if (bias.defined()) y.add_(bias);
    return y.to(x.scalar_type());
  }

  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const override {
    return {wanted.x ? input_gradient(dy, saved) : at::Tensor(),
            wanted.weight ? wanted.with(weight_gradient(dy, saved)) : at::Tensor()};
  }

  // The ranks of a column of the grid hold the same outputs of W, each with its inputs.
  at::Tensor sum_over_inputs(at::Tensor part) const override {
    along_column_.all_reduce(part, comm::Reduce::Sum).wait();
    return part;
  }

 private:
  int side() const { return along_row_.size(); }

  // dx(i, t) = sum over j of dy(i, j) W(j, t): every rank of the row has one term.
  at::Tensor input_gradient(const at::Tensor& dy, const Saved& saved) const {
    Panels weights(along_column_, saved.weight);
    Sums sums(along_row_);
    for (int t = 0; t < side(); ++t) sums.give(t, ops::matmul_nn(dy, weights.take(t)));
    return sums.own();
  }

  // dW(j, t) = sum over i of dy(i, j)t x(i, t): every rank of the column has one term.
  at::Tensor weight_gradient(const at::Tensor& dy, const Saved& saved) const {
    Panels xs(along_row_, saved.x);
    Sums sums(along_column_);
    for (int t = 0; t < side(); ++t) sums.give(t, ops::matmul_tn(dy, xs.take(t)));
    return sums.own();
  }

  comm::Group &along_row_, &along_column_;
};

}  // namespace

Layout Mode2d::layout(comm::Mesh& mesh, const TensorConfig& config) {
  Layout layout{.mesh = &mesh};
  layout.outside = layout.inside = outside(config);
  layout.expand = layout.contract = {{.out = {"column"}, .in = {"row"}}, std::make_shared<Summa>(mesh)};
  layout.embedding = {.out = {"row"}, .in = {"column"}};
  layout.vector_shards = {"row"};
  return layout;
}

Layout Mode2_5d::layout(comm::Mesh& mesh, const TensorConfig& config) {
  Layout layout = Mode2d::layout(mesh, config);
  layout.outside = layout.inside = outside(config);
  if (config.depth > 1) layout.weight_copies = {"depth"};
  return layout;
}

}  // namespace colossal::parallel
