// Keys and values go round a ring of ranks, each of which merges what its queries have of the part that it holds with
// what they had of those before. While a part is used the next one is on its way. Backward goes round once more, and
// the gradients of keys and values with it, until they are where they belong.
//
// Communication: N ranks, each with b S/N tokens of h_kv features of keys: forward N - 1 messages of k and v together,
//                2 (N-1)/N bS h_kv; backward these again, and N of the gradients of both, 2 bS h_kv, in fp32 (fp64 for
//                fp64). Where tokens do not divide, each part is padded to the longest. With sequence.node of these
//                messages O - 1, O - 1 and O go between the O nodes: DoubleRing.
// Memory:        q, k, v and the result of each layer, and a number a query and head, until backward; two parts of keys
//                and values, and in backward two of their gradients, at a time.
// See:           Liu et al., arXiv:2310.01889; the cut in zigzag makes causal steps equally long on all ranks.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <limits>

#include "colossal/ops/partial_attention.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/sequence/modes.h"
#include "colossal/parallel/sequence/rings.h"
#include "colossal/parallel/sequence/runs.h"

namespace colossal::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// One attention: who has which tokens, and what of them may be seen. Saved for backward.
struct RingPass : torch::CustomClassHolder {
  RingPass(const DoubleRing& ring, const nn::SequenceCut& cut, SequenceMask mask) : ring(ring), mask(std::move(mask)) {
    for (int rank = 0; rank < ring.size(); ++rank) {
      runs.push_back(runs_of(cut, rank, ring.size()));
      longest = std::max(longest, size_of(runs.back()));
    }
  }
  /// Keys and values [B, S_own, Nkv, D] as they travel: [2, B, longest, Nkv, D].
  at::Tensor packed(const at::Tensor& k, const at::Tensor& v) const {
    const at::Tensor both = at::stack({k, v});
    return longest == k.size(1) ? both : at::constant_pad_nd(both, {0, 0, 0, 0, 0, longest - k.size(1)});
  }
  /// body(queries, keys, mask) of each run of this rank's queries with each run of the keys that `source` has: where
  /// they stand among the tokens of either. Pairs that see nothing of one another then cost nothing.
  template <class Body>
  void for_pairs(int source, const Body& body) const {
    for (int64_t key = 0; const ops::PositionRun& keys : runs[source]) {
      for (int64_t query = 0; const ops::PositionRun& queries : runs[ring.rank()]) {
        body(nn::Range{query, queries.size}, nn::Range{key, keys.size}, mask.between({queries}, keys));
        query += queries.size;
      }
      key += keys.size;
    }
  }

  DoubleRing ring;
  SequenceMask mask;
  std::vector<std::vector<ops::PositionRun>> runs;
  int64_t longest = 0;
};

at::Tensor run_of(const at::Tensor& x, const nn::Range& run) { return x.narrow(2, run.first, run.size); }

ops::PartialAttention run_of(const ops::PartialAttention& whole, const nn::Range& run) {
  return {run_of(whole.out, run), run_of(whole.log_sums, run)};
}

ops::PartialAttention nothing_seen(const at::Tensor& q) {
  const auto wide = q.options().requires_grad(false).dtype(q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  return {at::zeros({q.size(0), q.size(2), q.size(1), q.size(3)}, wide).transpose(1, 2),
          at::full({q.size(0), q.size(1), q.size(2)}, -std::numeric_limits<double>::infinity(), wide)};
}

ops::PartialAttention ring_forward(const RingPass& pass, const at::Tensor& q, const at::Tensor& own) {
  const ops::PartialAttention whole = nothing_seen(q);
  pass.ring.for_parts(own, [&](const at::Tensor& part, int source) {
    const at::Tensor k = part[0].transpose(1, 2), v = part[1].transpose(1, 2);
    pass.for_pairs(source, [&](const nn::Range& queries, const nn::Range& keys, const ops::AttentionMask& mask) {
      ops::PartialAttention sum = run_of(whole, queries);
      merge(sum, partial_attention(run_of(q, queries), run_of(k, keys), run_of(v, keys), mask));
    });
  });
  return whole;
}

struct RingGradients {
  at::Tensor q, part;  ///< of the queries by heads, and of this rank's keys and values as they travel
};

RingGradients ring_backward(const RingPass& pass, const at::Tensor& dout, const at::Tensor& q, const at::Tensor& own,
                            const ops::PartialAttention& whole) {
  RingGradients d{at::zeros_like(whole.out), {}};
  const auto of_part = [&](const at::Tensor& part, int source) {
    const at::Tensor of_source = at::zeros(part.sizes(), whole.out.options());
    const auto by_head = [](const at::Tensor& both, int64_t i) { return both[i].transpose(1, 2); };
    pass.for_pairs(source, [&](const nn::Range& queries, const nn::Range& keys, const ops::AttentionMask& mask) {
      const auto of_pair =
          partial_attention_backward(run_of(dout, queries), run_of(q, queries), run_of(by_head(part, 0), keys),
                                     run_of(by_head(part, 1), keys), mask, run_of(whole, queries));
      if (!of_pair.q.defined()) return;
      run_of(d.q, queries).add_(of_pair.q);
      run_of(by_head(of_source, 0), keys).add_(of_pair.k);
      run_of(by_head(of_source, 1), keys).add_(of_pair.v);
    });
    return of_source;
  };
  d.part = pass.ring.sums_of_parts(own, whole.out.scalar_type(), of_part);
  return d;
}

struct RingAttention : torch::autograd::Function<RingAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const c10::intrusive_ptr<RingPass>& pass) {
    const auto whole = ring_forward(*pass, q.transpose(1, 2), pass->packed(k, v));
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
    const RingGradients d =
        ring_backward(pass, gradients[0].transpose(1, 2), q.transpose(1, 2), pass.packed(k, v), whole);
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
