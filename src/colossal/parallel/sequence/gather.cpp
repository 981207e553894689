// Keys and values of all ranks, gathered once a layer: each rank then computes its own queries against all keys that
// they see. The simplest mode, and as good as any for masks of documents.
//
// Communication: forward one all_gather of k and v together, (N-1)/N * 2 B S h_kv elements a rank (h_kv = Nkv D);
//                backward one reduce_scatter of as many. Where tokens do not divide, each rank's part is padded to the
//                longest.
// Memory:        the gathered keys and values of each layer, 2 B S h_kv, until backward.
#include <ATen/ATen.h>

#include "colossal/comm/collectives.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/sequence/modes.h"
#include "colossal/parallel/sequence/runs.h"

namespace colossal::parallel {
namespace {

class GatherExchange final : public SequenceExchange {
 public:
  explicit GatherExchange(comm::Group& group) : group_(group) {}

  at::Tensor attend(const SequenceHeads& heads, const nn::SequenceCut& cut, const SequenceMask& mask) const override {
    std::vector<std::vector<ops::PositionRun>> runs;
    int64_t longest = 0, tokens = 0;
    for (int rank = 0; rank < group_.size(); ++rank) {
      runs.push_back(runs_of(cut, rank, group_.size()));
      longest = std::max(longest, size_of(runs.back()));
      tokens += size_of(runs.back());
    }
    const int64_t behind = longest - heads.k.size(1);
    at::Tensor own = at::stack({heads.k, heads.v});  // [2, B, S_own, Nkv, D]
    if (behind > 0) own = at::constant_pad_nd(own, {0, 0, 0, 0, 0, behind});
    const at::Tensor all = comm::all_gather(own.unsqueeze(0), 0, group_);
    const at::Tensor ordered = in_order(all.unbind(), 2, runs);
    const auto by_head = [](const at::Tensor& x) { return x.transpose(1, 2); };
    return by_head(ops::attention(by_head(heads.q), by_head(ordered[0]), by_head(ordered[1]),
                                  mask.between(runs[group_.rank()], {0, tokens})));
  }

 private:
  comm::Group& group_;
};

}  // namespace

std::shared_ptr<const SequenceExchange> SequenceGather::exchange(comm::Mesh& mesh, const SequenceConfig&) {
  return std::make_shared<GatherExchange>(mesh.channel("sequence", "attention"));
}

}  // namespace colossal::parallel
