// Keys and values go round a ring of ranks, each of which merges what its queries have of the part that it holds with
// what they had of those before. While a part is used the next one is on its way. Backward goes round once more, and
// the gradients of keys and values with it, until they are where they belong.
//
// Communication: N ranks, each with b S/N tokens of h_kv features of keys: forward N - 1 messages of k and v together,
//                2 (N-1)/N bS h_kv; backward these again, and N of the gradients of both, 2 bS h_kv, in fp32 (fp64 for
//                fp64). Where tokens do not divide, each part is padded to the longest.
// Memory:        q, k, v and the result of each layer, and a number a query and head, until backward; two parts of keys
//                and values, and in backward two of their gradients, at a time.
// See:           Liu et al., arXiv:2310.01889; the cut in zigzag makes causal steps equally long on all ranks.
#include "colossal/parallel/sequence/ring.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <limits>

#include "colossal/ops/partial_attention.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/sequence/modes.h"
#include "colossal/parallel/sequence/runs.h"

namespace colossal::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// One attention: who has which tokens, and what of them may be seen. Saved for backward.
struct RingPass : torch::CustomClassHolder {
  RingPass(const RingOfRanks& ring, const nn::SequenceCut& cut, SequenceMask mask) : ring(ring), mask(std::move(mask)) {
    for (int rank = 0; rank < ring.size; ++rank) {
      runs.push_back(runs_of(cut, rank, ring.size));
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
      for (int64_t query = 0; const ops::PositionRun& queries : runs[ring.rank]) {
        body(nn::Range{query, queries.size}, nn::Range{key, keys.size}, mask.between({queries}, keys));
        query += queries.size;
      }
      key += keys.size;
    }
  }

  RingOfRanks ring;
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

ops::PartialAttention ring_forward(const RingPass& pass, const at::Tensor& q, at::Tensor part) {
  const ops::PartialAttention whole = nothing_seen(q);
  for (int step = 0; step < pass.ring.size; ++step) {
    std::optional<Rotation> rotation;
    if (step + 1 < pass.ring.size) rotation.emplace(pass.ring, part);
    const at::Tensor k = part[0].transpose(1, 2), v = part[1].transpose(1, 2);
    pass.for_pairs(pass.ring.source(step),
                   [&](const nn::Range& queries, const nn::Range& keys, const ops::AttentionMask& mask) {
                     ops::PartialAttention sum = run_of(whole, queries);
                     merge(sum, partial_attention(run_of(q, queries), run_of(k, keys), run_of(v, keys), mask));
                   });
    if (rotation) part = rotation->wait();
  }
  return whole;
}

struct RingGradients {
  at::Tensor q, part;  ///< of the queries by heads, and of this rank's keys and values as they travel
};

/// The gradients of a part go to the next rank when this one has added its own to them. They follow the part itself: a
/// rank sends a part, then the gradients of it, then the next part.
RingGradients ring_backward(const RingPass& pass, const at::Tensor& dout, const at::Tensor& q, at::Tensor part,
                            const ops::PartialAttention& whole) {
  const RingOfRanks& ring = pass.ring;
  RingGradients d{at::zeros_like(whole.out), {}};
  const auto wide = whole.out.options();
  at::Tensor arriving, sum;
  comm::Work receiving, sending;
  for (int step = 0; step < ring.size; ++step) {
    if (step > 0) {
      arriving = at::empty(part.sizes(), wide);
      receiving = ring.receive(arriving);
    }
    std::optional<Rotation> rotation;
    if (step + 1 < ring.size) rotation.emplace(ring, part);
    const at::Tensor own = at::zeros(part.sizes(), wide);
    const auto by_head = [](const at::Tensor& both, int64_t i) { return both[i].transpose(1, 2); };
    pass.for_pairs(
        ring.source(step), [&](const nn::Range& queries, const nn::Range& keys, const ops::AttentionMask& mask) {
          const auto of_pair =
              partial_attention_backward(run_of(dout, queries), run_of(q, queries), run_of(by_head(part, 0), keys),
                                         run_of(by_head(part, 1), keys), mask, run_of(whole, queries));
          if (!of_pair.q.defined()) return;
          run_of(d.q, queries).add_(of_pair.q);
          run_of(by_head(own, 0), keys).add_(of_pair.k);
          run_of(by_head(own, 1), keys).add_(of_pair.v);
        });
    receiving.wait();
    sending.wait();  // of the sum before, which goes now
    sum = step > 0 ? own.add_(arriving) : own;
    if (ring.size > 1) sending = ring.send(sum);
    if (rotation) part = rotation->wait();
  }
  d.part = sum;
  if (ring.size == 1) return d;
  d.part = at::empty_like(sum);
  ring.receive(d.part).wait();
  sending.wait();
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
  explicit RingExchange(const RingOfRanks& ring) : ring_(ring) {}
  at::Tensor attend(const SequenceHeads& heads, const nn::SequenceCut& cut, const SequenceMask& mask) const override {
    return RingAttention::apply(heads.q, heads.k, heads.v, c10::make_intrusive<RingPass>(ring_, cut, mask));
  }

 private:
  RingOfRanks ring_;
};

}  // namespace

Rotation::Rotation(const RingOfRanks& ring, const at::Tensor& part) : sent_(part), received_(at::empty_like(part)) {
  sending_ = ring.send(sent_);
  receiving_ = ring.receive(received_);
}

RingOfRanks ring_along(comm::Mesh& mesh, const std::string& axis) {
  RingOfRanks ring{mesh.size(axis), mesh.index(axis)};
  // All ranks go by one order, in which both members of a pair come to it without waiting for others: those with an
  // even first rank, those with an odd one, and the pair that closes the ring.
  for (const int round : {0, 1, 2})
    for (int from = 0; ring.size > 1 && from < ring.size; ++from) {
      const int to = (from + 1) % ring.size;
      if (round != (to == 0 ? 2 : from % 2)) continue;
      if (from == ring.rank) ring.next = &mesh.one_way(axis, from, to);
      if (to == ring.rank) ring.previous = &mesh.one_way(axis, from, to);
    }
  return ring;
}

std::shared_ptr<const SequenceExchange> ring_exchange(comm::Mesh& mesh, const std::string& axis) {
  return std::make_shared<RingExchange>(ring_along(mesh, axis));
}

std::shared_ptr<const SequenceExchange> SequenceRing::exchange(comm::Mesh& mesh, const SequenceConfig&) {
  return ring_exchange(mesh, "sequence");
}

}  // namespace colossal::parallel
