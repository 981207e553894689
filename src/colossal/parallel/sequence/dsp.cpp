// Dynamic sequence parallelism: ranks split one axis of a hidden state, and exchange it for the other where a block
// attends over the split one. Elements are moved bit for bit.
//
// Communication: see nn::AxisSwitch. Attention itself sends nothing.
#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/comm/collectives.h"
#include "colossal/comm/group.h"
#include "colossal/nn/axis_switch.h"
#include "colossal/nn/tokens.h"
#include "colossal/parallel/sequence/modes.h"
#include "colossal/parallel/tensor/layout.h"

namespace colossal::parallel {
namespace {

class GroupAxisSwitch final : public nn::AxisSwitch {
 public:
  explicit GroupAxisSwitch(comm::Group& ranks) : ranks_(ranks) {}

  at::Tensor forward(const at::Tensor& x, const nn::Axis& from, const nn::Axis& to) const override {
    for (const nn::Axis& axis : {from, to}) check_axis(ranks_.size(), axis.size, axis.name);
    const std::vector<int64_t> held = nn::near_even_cut(from.size, ranks_.size()).lengths,
                               taken = nn::near_even_cut(to.size, ranks_.size()).lengths;
    const int64_t own = held[ranks_.rank()], next = taken[ranks_.rank()];
    require(x.size(from.dim) == own && x.size(to.dim) == to.size, "parallel", "a state to switch must have ", own,
            " of ", from.size, " ", from.name, " and all ", to.size, " ", to.name, " in dimensions ", from.dim, " and ",
            to.dim, ": got ", x.sizes(), "; switch it back first");
    std::vector<at::Tensor> parts;
    std::vector<int64_t> sent, received, sizes = x.sizes().vec();
    for (const at::Tensor& part : x.split_with_sizes(taken, to.dim)) {
      parts.push_back(part.flatten());
      sent.push_back(part.numel());
    }
    const int64_t each = x.numel() / (own * to.size) * next;  // elements of one index of `from` that this rank gets
    for (const int64_t size : held) received.push_back(size * each);
    const auto arrived = comm::all_to_all(at::cat(parts), received, sent, ranks_).split_with_sizes(received);
    sizes[to.dim] = next;
    parts.clear();
    for (size_t rank = 0; rank < arrived.size(); ++rank) {
      sizes[from.dim] = held[rank];
      parts.push_back(arrived[rank].view(sizes));
    }
    return at::cat(parts, from.dim);
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
