// 3D: a cube of l^3 ranks; x, W and y are each cut over all of them. x is gathered along one axis, W along another, and
// y reduced and scattered along the third; the next layer finds its features where this one's went, so the directions
// swap the axes and come in pairs.
//
// Communication: forward (l-1) (S_x + S_W + S_y) / l^3 a rank; backward the same with gathered blocks kept, otherwise
//                S_x and S_W once more.
// Memory: backward keeps the blocks [S_x + S_W] / l^3, or with keep_gathered the gathered ones, / l^2.
#include <ATen/ATen.h>

#include "colossal/ops/matmul.h"
#include "colossal/parallel/tensor/layout.h"
#include "colossal/parallel/tensor/modes.h"

namespace colossal::parallel {
namespace {

/// A collective along dimension 0 and its result, which is there after wait().
struct Pending {
  at::Tensor result;
  comm::Work work;
  at::Tensor input;  // lives as long as the transfer
  at::Tensor wait() {
    work.wait();
    input.reset();
    return result;
  }
};

Pending gather(const at::Tensor& x, comm::Group& group) {
  if (group.size() == 1) return {x, {}, {}};
  Pending p{at::empty({x.size(0) * group.size(), x.size(1)}, x.options()), {}, x.contiguous()};
  p.work = group.all_gather(p.result, p.input);
  return p;
}

Pending scatter(const at::Tensor& x, comm::Group& group) {
  if (group.size() == 1) return {x, {}, {}};
  Pending p{at::empty({x.size(0) / group.size(), x.size(1)}, x.options()), {}, x.contiguous()};
  p.work = group.reduce_scatter(p.result, p.input, comm::Reduce::Sum);
  return p;
}

class CubeProduct final : public nn::Product {
 public:
  /// `input`: along which x is cut in rows and y in columns; `output`: the other way round; `weight`: the pieces of W
  /// and the outermost rows.
  CubeProduct(comm::Group& input, comm::Group& weight, comm::Group& output, bool keep_gathered)
      : input_(input), weight_(weight), output_(output), keep_gathered_(keep_gathered) {}

  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    Pending xs = gather(x, input_), weights = gather(weight, weight_);
    const at::Tensor whole_x = xs.wait(), whole_weight = weights.wait();
    if (saved) *saved = keep_gathered_ ? Saved{whole_x, whole_weight, out} : Saved{x, weight, out};
    at::Tensor y = scatter(ops::matmul_nt(whole_x, whole_weight.narrow(0, 0, out)), output_).wait();
    return bias.defined() ? y.add_(bias) : y;
  }

  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const override {
    const auto whole = [&](const at::Tensor& t, comm::Group& group, bool wanted) {
      return wanted && !keep_gathered_ ? gather(t, group) : Pending{t, {}, {}};
    };
    Pending dys = gather(dy, output_);
    Pending weights = whole(saved.weight, weight_, wanted.x), xs = whole(saved.x, input_, wanted.weight);
    const at::Tensor whole_dy = dys.wait();
    Pending dx, dweight;
    if (wanted.x) dx = scatter(ops::matmul_nn(whole_dy, weights.wait().narrow(0, 0, saved.out)), input_);
    if (wanted.weight) dweight = scatter(padded(ops::matmul_tn(whole_dy, xs.wait())), weight_);
    return {wanted.x ? dx.wait() : at::Tensor(), wanted.weight ? wanted.with(dweight.wait()) : at::Tensor()};
  }

 private:
  /// The gradient of the rows behind `out` that equal pieces may need is zero.
  at::Tensor padded(const at::Tensor& gradient) const {
    const int64_t behind = (weight_.size() - gradient.size(0) % weight_.size()) % weight_.size();
    return behind == 0 ? gradient : at::constant_pad_nd(gradient, {0, 0, 0, behind});
  }

  comm::Group &input_, &weight_, &output_;
  bool keep_gathered_;
};

}  // namespace

// Rank (i, j, k) has mesh indices weight i, input j, output k. Outside it holds rows i*l + j and features k; inside
// rows i*l + k and features j.
Layout Mode3d::layout(comm::Mesh& mesh, const TensorConfig& config) {
  const bool keep_gathered = config.keep_gathered;
  comm::Group &input = mesh.group("input"), &weight = mesh.group("weight"), &output = mesh.group("output");
  Layout layout{.mesh = &mesh};
  layout.outside = outside(config);
  layout.inside = {.batch = {"weight", "output"}, .columns = {"input"}};
  layout.expand = {{.out = {"input"}, .out_shards = {"weight"}, .in = {"output"}},
                   std::make_shared<CubeProduct>(input, weight, output, keep_gathered)};
  layout.contract = {{.out = {"output"}, .out_shards = {"weight"}, .in = {"input"}},
                     std::make_shared<CubeProduct>(output, weight, input, keep_gathered)};
  layout.embedding = layout.expand.weight;
  return layout;
}

}  // namespace colossal::parallel
