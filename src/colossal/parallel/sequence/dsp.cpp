// Dynamic sequence parallelism: ranks split one axis of a hidden state, and exchange it for the other where a block
// attends over the split one. Elements are moved bit for bit.
//
// Communication: see nn::AxisSwitch. Attention itself sends nothing.
#include "colossal/comm/group.h"
#include "colossal/nn/axis_switch.h"
#include "colossal/nn/tokens.h"
#include "colossal/parallel/sequence/modes.h"
#include "colossal/parallel/sequence/split_switch.h"
#include "colossal/parallel/tensor/layout.h"

namespace colossal::parallel {
namespace {

class GroupAxisSwitch final : public nn::AxisSwitch {
 public:
  explicit GroupAxisSwitch(comm::Group& ranks) : ranks_(ranks) {}

  at::Tensor forward(const at::Tensor& x, const nn::Axis& from, const nn::Axis& to) const override {
    for (const nn::Axis& axis : {from, to}) check_axis(ranks_.size(), axis.size, axis.name);
    return switched_split(x, from, to, ranks_);
  }

  nn::Share share(int64_t size) const override { return nn::near_even_share(size, ranks_.size(), ranks_.rank()); }

 private:
  comm::Group& ranks_;
};

}  // namespace

Layout SequenceDsp::layout(Layout layout, const SequenceConfig& config) {
  layout.axis_switch = std::make_shared<const GroupAxisSwitch>(layout.mesh->channel("sequence", "attention"));
  layout.attention = [](int64_t, const nn::AttentionShape& shape, const nn::AttentionOptions& options) {
    return nn::axis_attention(shape, options);
  };
  layout.cut = [ranks = config.size](int64_t tokens, const nn::ForwardContext&) {
    check_axis(ranks, tokens, "places");
    return nn::near_even_cut(tokens, ranks);
  };
  return layout;
}

}  // namespace colossal::parallel
