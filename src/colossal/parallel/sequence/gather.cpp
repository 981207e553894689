// Gathers keys and values of all ranks once per layer. Each rank then computes its own queries against all keys that
// they may see. This is the simplest mode, and as good as any other for document masks.
//
// Communication: forward one all_gather of k and v together, (N-1)/N * 2 B S h_kv elements per rank (h_kv = Nkv D).
//                Backward one reduce_scatter of as many in fp32 (fp64 for fp64), because gradients of all ranks are
//                summed before they are rounded. If tokens do not divide, each rank's part is padded to the longest.
// Memory:        the gathered keys and values of each layer, 2 B S h_kv, its own queries and the result, and a number
//                per query and head, until backward; there as many gradients in fp32, twice, for one layer.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "colossal/comm/group.h"
#include "colossal/nn/tokens.h"
#include "colossal/ops/attention/partial.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/sequence/modes.h"
#include "colossal/parallel/sequence/runs.h"

namespace colossal::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor by_heads(const at::Tensor& x) { return x.transpose(1, 2); }  // its own inverse

/// State of one attention of a rank's queries, saved for backward.
struct GatherPass : torch::CustomClassHolder {
  GatherPass(comm::Group& group, const nn::SequenceCut& cut, SequenceMask mask)
      : group(group), tokens(cut, group.size()), mask(std::move(mask)) {}

  /// Converts k and v [B, S_own, Nkv, D] of this rank to [2, B, S, Nkv, D] of all ranks, in the order of the sequence.
  at::Tensor gathered(const at::Tensor& k, const at::Tensor& v) const {
    const at::Tensor own = tokens.padded(at::stack({k, v}), 2).unsqueeze(0);
    if (group.size() == 1) return own[0];
    std::vector<int64_t> sizes = own.sizes().vec();
    sizes.front() = group.size();
    at::Tensor all = at::empty(sizes, own.options());
    group.all_gather(all, own).wait();
    return in_order(all.unbind(), 2, tokens.runs);
  }
  /// Takes this rank's contributions to the gradients of all keys and values, [B, S, Nkv, D] each. Returns the sums
  /// over the ranks for its own tokens, [2, B, S_own, Nkv, D].
  at::Tensor scattered(const at::Tensor& dk, const at::Tensor& dv) const {
    const at::Tensor parts =
        at::zeros({group.size(), 2, dk.size(0), tokens.longest, dk.size(2), dk.size(3)}, dk.options());
    for (int rank = 0; rank < group.size(); ++rank)
      for (int64_t first = 0; const ops::PositionRun& run : tokens.runs[rank]) {
        for (const int64_t which : {0, 1})
          parts[rank][which].narrow(1, first, run.size).copy_((which == 0 ? dk : dv).narrow(1, run.first, run.size));
        first += run.size;
      }
    at::Tensor own = parts[0];
    if (group.size() > 1) {
      own = at::empty_like(own);
      group.reduce_scatter(own, parts, comm::Reduce::Sum).wait();
    }
    return own.narrow(2, 0, size_of(tokens.runs[group.rank()]));
  }
  ops::AttentionMask between() const { return mask.between(tokens.runs[group.rank()], {{0, tokens.all}}); }

  comm::Group& group;
  TokensOfRanks tokens;
  SequenceMask mask;
};

struct GatherAttention : torch::autograd::Function<GatherAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const c10::intrusive_ptr<GatherPass>& pass) {
    const at::Tensor all = pass->gathered(k, v);
    const auto whole = partial_attention(by_heads(q), by_heads(all[0]), by_heads(all[1]), pass->between());
    const at::Tensor out = by_heads(whole.out).to(q.scalar_type());
    context->save_for_backward({q, all, out, whole.log_sums});
    context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto capsule = context->saved_data["pass"].toCapsule();
    const auto& pass = *static_cast<const GatherPass*>(capsule.get());
    const at::Tensor &q = saved[0], &all = saved[1], &log_sums = saved[3];
    const ops::PartialAttention whole{by_heads(saved[2].to(log_sums.scalar_type())), log_sums};
    const auto d = partial_attention_backward(by_heads(gradients[0]), by_heads(q), by_heads(all[0]), by_heads(all[1]),
                                              pass.between(), whole);
    const at::Tensor own = pass.scattered(by_heads(d.k), by_heads(d.v)).to(all.scalar_type());
    return {by_heads(d.q).to(q.scalar_type()), own[0], own[1], at::Tensor()};
  }
};

class GatherExchange final : public SequenceExchange {
 public:
  explicit GatherExchange(comm::Group& group) : group_(group) {}

  at::Tensor attend(const SequenceHeads& heads, const nn::SequenceCut& cut, const SequenceMask& mask) const override {
    // A view would keep the keys and values that were projected with the queries alive until backward.
    return GatherAttention::apply(heads.q.contiguous(), heads.k, heads.v,
                                  c10::make_intrusive<GatherPass>(group_, cut, mask));
  }

 private:
  comm::Group& group_;
};

}  // namespace

std::shared_ptr<const SequenceExchange> SequenceGather::exchange(comm::Mesh& mesh, const SequenceConfig&) {
  return std::make_shared<GatherExchange>(mesh.channel("sequence", "attention"));
}

}  // namespace colossal::parallel
