#include "colossal/parallel/tensor/gathered_product.h"

#include <ATen/ATen.h>

#include "colossal/ops/products/matmul.h"

namespace colossal::parallel {
namespace {

/// A collective along dimension 0 and its result, which is ready after wait().
struct Pending {
  at::Tensor result;
  comm::Work work;
  at::Tensor input;  // kept alive until the transfer is done
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

class GatheredProduct final : public nn::Product {
 public:
  GatheredProduct(comm::Group& input, comm::Group& weight, comm::Group& output, bool keep_gathered)
      : input_(input), weight_(weight), output_(output), keep_gathered_(keep_gathered) {}

  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    Pending xs = gather(x, input_), weights = gather(weight, weight_);
    const at::Tensor whole_x = xs.wait(), whole_weight = weights.wait();
    if (saved) *saved = keep_gathered_ ? Saved{whole_x, whole_weight, out} : Saved{x, weight, out};
    const at::Tensor rows = whole_weight.narrow(0, 0, out);
    if (output_.size() > 1) {
      at::Tensor y = scatter(ops::matmul_nt(whole_x, rows), output_).wait();
      return bias.defined() ? y.add_(bias) : y;
    }
    if (bias.defined()) return ops::matmul_nt(whole_x, rows, bias);
    // Aligned rows, because `out` may be a rank's shard of a vocabulary: it is seldom even, and odd rows are slower.
    at::Tensor y = ops::empty_rows(whole_x.size(0), out, x.options());
    ops::matmul_nt_(y, whole_x, rows, 0);
    return y;
  }

  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const override {
    const auto whole = [&](const at::Tensor& t, comm::Group& group, bool wanted) {
      return wanted && !keep_gathered_ ? gather(t, group) : Pending{t, {}, {}};
    };
    Pending dys = gather(dy, output_);
    Pending weights = whole(saved.weight, weight_, wanted.x), xs = whole(saved.x, input_, wanted.weight);
    const at::Tensor whole_dy = dys.wait();
    Pending dx;
    Gradients d;
    if (wanted.x) dx = scatter(ops::matmul_nn(whole_dy, weights.wait().narrow(0, 0, saved.out)), input_);
    if (wanted.weight) {
      const at::Tensor whole_x = xs.wait();
      d.weight = weight_.size() == 1 ? ops::matmul_tn(whole_dy, whole_x, wanted.sum)
                                     : wanted.with(scatter(padded(ops::matmul_tn(whole_dy, whole_x)), weight_).wait());
    }
    if (wanted.x) d.x = dx.wait();
    return d;
  }

  // The terms of y that `output` sums are products of other inputs.
  at::Tensor sum_over_inputs(at::Tensor part) const override {
    if (output_.size() > 1) output_.all_reduce(part, comm::Reduce::Sum).wait();
    return part;
  }

 private:
  /// Returns `gradient` with the rows after `out` that equal shards may need; they are zero.
  at::Tensor padded(const at::Tensor& gradient) const {
    const int64_t behind = (weight_.size() - gradient.size(0) % weight_.size()) % weight_.size();
    return behind == 0 ? gradient : at::constant_pad_nd(gradient, {0, 0, 0, behind});
  }

  comm::Group &input_, &weight_, &output_;
  bool keep_gathered_;
};

}  // namespace

std::shared_ptr<const nn::Product> gathered_product(comm::Group& input, comm::Group& weight, comm::Group& output,
                                                    bool keep_gathered) {
  return std::make_shared<GatheredProduct>(input, weight, output, keep_gathered);
}

}  // namespace colossal::parallel
