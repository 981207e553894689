#include "colossal/nn/axis_switch.h"

#include "colossal/nn/attention_shape.h"
#include "colossal/nn/linear_layers.h"

namespace colossal::nn {
namespace {

/// Attention that does not ask which tokens of the batch its heads are of.
class AxisAttention final : public Attention {
 public:
  AxisAttention(const AttentionShape& shape, const AttentionOptions& options)
      : whole_(whole_attention(0, shape, options)) {}

  Inside forward(const Heads& heads, const ForwardContext& step) override {
    Heads own = heads;
    own.tokens = {};
    return whole_->forward(own, step);
  }

 private:
  std::unique_ptr<Attention> whole_;
};

}  // namespace

at::Tensor AxisSwitch::forward(const at::Tensor& x, const Axis&, const Axis&) const { return x; }

Share AxisSwitch::share(int64_t) const { return {}; }

std::unique_ptr<Attention> axis_attention(const AttentionShape& shape, const AttentionOptions& options) {
  return std::make_unique<AxisAttention>(shape, options);
}

}  // namespace colossal::nn
