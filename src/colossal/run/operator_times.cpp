#include "colossal/run/operator_times.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "colossal/nn/linear.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/attention/attention.h"
#include "colossal/ops/norm.h"
#include "colossal/tensor/flops.h"
#include "colossal/tensor/moved_bytes.h"

namespace colossal::run {
namespace {

/// A training step of transformer blocks that are so small that kernels take no time: what remains is the time of
/// operators besides their kernels, in forward and backward, with the views between them that a recorded step leaves
/// out.
class TinyBlocks {
 public:
  explicit TinyBlocks(const at::TensorOptions& floats)
      : x_(at::ones({1, 2, kHidden}, floats)),
        scale_(at::ones({kHidden}, floats).requires_grad_()),
        in_(at::ones({3 * kHidden, kHidden}, floats).requires_grad_()),
        out_(at::ones({kHidden, kHidden}, floats).requires_grad_()),
        up_(at::ones({2 * kHidden, kHidden}, floats).requires_grad_()) {}

  void train() const {
    at::Tensor x = x_;
    for (int block = 0; block < kBlocks; ++block) {
      const auto heads = nn::linear(ops::rms_norm(x, scale_, kEpsilon), in_, {}).chunk(3, -1);
      const auto head = [&](int i) { return heads[i].reshape({1, 2, 2, kHidden / 2}).transpose(1, 2); };
      const at::Tensor seen = ops::attention(head(0), head(1), head(2), {}).transpose(1, 2).reshape({1, 2, kHidden});
      x = x + nn::linear(seen, out_, {});
      x = x + nn::linear(ops::swiglu(nn::linear(ops::rms_norm(x, scale_, kEpsilon), up_, {})), out_, {});
    }
    x.sum().backward();
  }

  /// Returns the number of operators that a recorded step has for train().
  double operators() const {
    const auto count = std::make_shared<std::atomic<int64_t>>(0);
    const tensor::OperationListener listener([count](double, const tensor::Operation&) { ++*count; });
    const tensor::ObservedOperators observed;
    train();
    return static_cast<double>(*count);
  }

 private:
  static constexpr int64_t kHidden = 8, kBlocks = 4;
  static constexpr double kEpsilon = 1e-5;
  const at::Tensor x_, scale_, in_, out_, up_;
};

}  // namespace

double operator_overhead(const at::TensorOptions& floats, double start, const SecondsOf& seconds) {
  const at::AutoGradMode grad(true);
  const TinyBlocks blocks(floats);
  blocks.train();  // later steps add to the gradients
  const double operators = blocks.operators();
  return std::max(0.0, seconds([&] { blocks.train(); }) / operators - start);
}

double attention_rate(const at::TensorOptions& floats, at::ScalarType dtype, int64_t tokens, const SecondsOf& seconds) {
  const at::AutoGradMode grad(true);
  const auto heads = [&] { return at::rand({1, tokens, 4, 64}, floats).to(dtype).transpose(1, 2).requires_grad_(); };
  const at::Tensor q = heads(), k = heads(), v = heads(), gradient = at::ones_like(q);
  const auto train = [&] { ops::attention(q, k, v, {}).backward(gradient); };
  double operations = 0;
  {
    const tensor::FlopCount count;
    train();
    operations = count.total();
  }
  return operations / seconds(train);
}

}  // namespace colossal::run
