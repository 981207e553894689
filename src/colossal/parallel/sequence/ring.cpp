// Keys and values circulate in a ring of ranks. Each rank merges the attention of its queries to the current part with
// the attention to earlier parts. The next part is sent during the computation. In backward the parts circulate again,
// together with the gradients of keys and values, until each gradient reaches its owner.
//
// Communication: N ranks, each with b S/N tokens of h_kv features of keys: forward N - 1 messages of k and v together,
//                2 (N-1)/N bS h_kv; backward these again, and N of the gradients of both, 2 bS h_kv, in fp32 (fp64 for
//                fp64). If tokens do not divide, each part is padded to the longest. With sequence.node, O - 1, O - 1
//                and O of these messages are sent between the O nodes: DoubleRing.
// Memory:        q, k, v and the result of each layer, and a number per query and head, until backward; two parts of
//                keys and values at a time. In backward also three gradients of parts in fp32 at a time: the one that
//                arrives, this rank's own, and the sum that it sends.
// See:           Liu et al., arXiv:2310.01889; the cut in zigzag makes causal steps equally long on all ranks.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "colossal/nn/tokens.h"
#include "colossal/ops/attention/partial.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/sequence/modes.h"
#include "colossal/parallel/sequence/rings.h"
#include "colossal/parallel/sequence/runs.h"

namespace colossal::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// State of one attention, saved for backward: the tokens of each rank, and the mask.
struct RingPass : torch::CustomClassHolder {
  RingPass(const DoubleRing& ring, const nn::SequenceCut& cut, SequenceMask mask)
      : ring(ring), mask(std::move(mask)), tokens(cut, ring.size()) {}
  /// Returns keys and values [B, S_own, Nkv, D] in the form of a message: [2, B, longest, Nkv, D].
  at::Tensor packed(const at::Tensor& k, const at::Tensor& v) const { return tokens.padded(at::stack({k, v}), 2); }
  /// Returns the mask between this rank's queries and the keys of `source`.
  ops::AttentionMask mask_of(int source) const { return mask.between(tokens.runs[ring.rank()], tokens.runs[source]); }
  /// Returns the keys (which = 0) or values (which = 1) of `source` in a message, by heads: [B, Nkv, S_source, D].
  at::Tensor heads_of(const at::Tensor& part, int source, int64_t which) const {
    return part[which].narrow(1, 0, size_of(tokens.runs[source])).transpose(1, 2);
  }

  DoubleRing ring;
  SequenceMask mask;
  TokensOfRanks tokens;
};

/// Runs forward; `q` is in the form that ops::partial_attention takes.
ops::PartialAttention ring_forward(const RingPass& pass, const at::Tensor& q, const at::Tensor& own) {
  ops::PartialAttention whole;
  // The first part is this rank's own tokens, whose queries and keys overlap.
  pass.ring.for_parts(own, [&](const at::Tensor& part, int source) {
    merge(whole,
          partial_attention(q, pass.heads_of(part, source, 0), pass.heads_of(part, source, 1), pass.mask_of(source)));
  });
  return whole;
}

struct RingGradients {
  at::Tensor q, part;  ///< gradients of the queries by heads, and of this rank's keys and values in message form
};

/// Runs backward; `q` and `dout` are in the form of ring_forward().
RingGradients ring_backward(const RingPass& pass, const at::Tensor& dout, const at::Tensor& q, const at::Tensor& own,
                            const ops::PartialAttention& whole) {
  RingGradients d;
  d.part = pass.ring.sums_of_parts(own, whole.out.scalar_type(), [&](const at::Tensor& part, int source) {
    const at::Tensor added = at::zeros(part.sizes(), whole.out.options());
    const auto of_part = partial_attention_backward(dout, q, pass.heads_of(part, source, 0),
                                                    pass.heads_of(part, source, 1), pass.mask_of(source), whole);
    if (!of_part.q.defined()) return added;
    d.q = d.q.defined() ? d.q.add_(of_part.q) : of_part.q;
    pass.heads_of(added, source, 0).copy_(of_part.k);
    pass.heads_of(added, source, 1).copy_(of_part.v);
    return added;
  });
  return d;
}

struct RingAttention : torch::autograd::Function<RingAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const c10::intrusive_ptr<RingPass>& pass) {
    const auto whole = ring_forward(*pass, ops::as_partial_operand(q).transpose(1, 2), pass->packed(k, v));
    const at::Tensor out = whole.out.transpose(1, 2).to(q.scalar_type());
    context->save_for_backward({q, k, v, out, whole.log_sums});
    context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto capsule = context->saved_data["pass"].toCapsule();
    const auto& pass = *static_cast<const RingPass*>(capsule.get());
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &log_sums = saved[4];
    const ops::PartialAttention whole{saved[3].to(log_sums.scalar_type()).transpose(1, 2), log_sums};
    const RingGradients d = ring_backward(pass, ops::as_partial_operand(gradients[0]).transpose(1, 2),
                                          ops::as_partial_operand(q).transpose(1, 2), pass.packed(k, v), whole);
    const auto own = [&](int64_t i) { return d.part[i].narrow(1, 0, k.size(1)).to(k.scalar_type()); };
    return {d.q.transpose(1, 2).to(q.scalar_type()), own(0), own(1), at::Tensor()};
  }
};

class RingExchange final : public SequenceExchange {
 public:
  explicit RingExchange(const DoubleRing& ring) : ring_(ring) {}
  at::Tensor attend(const SequenceHeads& heads, const nn::SequenceCut& cut, const SequenceMask& mask) const override {
    return RingAttention::apply(heads.q, heads.k, heads.v, c10::make_intrusive<RingPass>(ring_, cut, mask));
  }

 private:
  DoubleRing ring_;
};

}  // namespace

std::shared_ptr<const SequenceExchange> ring_exchange(comm::Mesh& mesh, const SequenceConfig& config) {
  return std::make_shared<RingExchange>(double_ring(mesh, config));
}

std::shared_ptr<const SequenceExchange> SequenceRing::exchange(comm::Mesh& mesh, const SequenceConfig& config) {
  return ring_exchange(mesh, config);
}

}  // namespace colossal::parallel
