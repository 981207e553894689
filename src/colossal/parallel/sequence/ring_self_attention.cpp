// Ring self-attention as published: keys circulate once to make whole rows of scores for a rank's queries, then values
// circulate for the result. Scores are kept, so memory grows with the square of the row. Mode "ring" avoids this; the
// present mode exists for comparison.
//
// Communication: N ranks, each with b S/N tokens of h_kv features of keys: forward N - 1 messages of k and as many
//                of v, 2 (N-1)/N bS h_kv. Backward these again, and a reduce_scatter of both gradients, in fp32,
//                2 (N-1)/N bS h_kv each: 6 (N-1)/N forward and backward. The paper sums whole gradients on all ranks,
//                which sends 2 (N-1)/N more, 8 (N-1)/N.
// Memory:        weights [b N, S/N, S] of each layer until backward, in fp32 (fp64 for fp64).
// See:           Li et al., arXiv:2105.13120, whose gradients are those of the sum over ranks, not of its mean.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "colossal/nn/tokens.h"
#include "colossal/ops/attention/mask.h"
#include "colossal/ops/dispatch.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/sequence/modes.h"
#include "colossal/parallel/sequence/rings.h"
#include "colossal/parallel/sequence/runs.h"
#include "colossal/tensor/flops.h"

namespace colossal::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// State of one attention of a rank's queries, saved for backward.
struct RowPass : torch::CustomClassHolder {
  RowPass(const DoubleRing& ring, comm::Group& group, const nn::SequenceCut& cut, SequenceMask mask)
      : ring(ring), group(group), mask(std::move(mask)), tokens(cut, ring.size()) {}
  /// Calls body(x, rank) for each rank in the order of arrival; x is that rank's k or v by heads [B, Nkv, S_rank, D].
  /// `own` is [B, S_own, Nkv, D].
  template <class Body>
  void for_parts(const at::Tensor& own, const Body& body) const {
    ring.for_parts(tokens.padded(own, 1).contiguous(), [&](const at::Tensor& part, int source) {
      body(part.narrow(1, 0, size_of(tokens.runs[source])).transpose(1, 2), source);
    });
  }
  /// Returns the scores of the queries with the keys of `source`, minus infinity where the mask forbids a pair.
  /// `operations` is the number per pair and feature.
  at::Tensor scores(const at::Tensor& q, const at::Tensor& k, int source, double operations) const {
    const ops::AttentionMask between = mask.between(tokens.runs[ring.rank()], tokens.runs[source]);
    tensor::announce_flops(operations * static_cast<double>(q.size(1) * q.size(3)) *
                               static_cast<double>(ops::visible_pairs(q, k, between)),
                           {tensor::Operation::Kind::Attention, q.scalar_type()});
    return ops::attention_scores(q, k, between);
  }
  /// Returns the columns of the keys of `source` in rows of scores, in which parts follow one another in the order of
  /// arrival.
  at::Tensor columns(const at::Tensor& rows, int source) const {
    int64_t first = 0;
    for (int index = 0; ring.source(index) != source; ++index) first += size_of(tokens.runs[ring.source(index)]);
    return rows.narrow(-1, first, size_of(tokens.runs[source]));
  }
  DoubleRing ring;
  comm::Group& group;
  SequenceMask mask;
  TokensOfRanks tokens;
};

at::Tensor widened(const at::Tensor& x) { return x.to(ops::wide_type(x)); }

/// Repeats each key-value head for every query head that reads it.
at::Tensor repeated(const at::Tensor& kv, const at::Tensor& q) {
  return widened(kv).repeat_interleave(q.size(1) / kv.size(1), 1);
}

/// Sums over the query heads that read each head of `like`.
at::Tensor summed(const at::Tensor& of_queries, const at::Tensor& like) {
  return of_queries.unflatten(1, {like.size(1), -1}).sum(2);
}

struct RowAttention : torch::autograd::Function<RowAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const c10::intrusive_ptr<RowPass>& pass) {
    const at::Tensor queries = widened(q).transpose(1, 2);
    std::vector<at::Tensor> parts;
    pass->for_parts(k, [&](const at::Tensor& keys, int source) {
      parts.push_back(pass->scores(queries, widened(keys), source, 4));
    });
    const at::Tensor weights = at::cat(parts, -1).softmax(-1);
    at::Tensor out = at::zeros_like(queries);
    pass->for_parts(v, [&](const at::Tensor& values, int source) {
      out.add_(at::matmul(pass->columns(weights, source), repeated(values, queries)));
    });
    context->save_for_backward({q, k, v, weights});
    context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    return out.transpose(1, 2).to(q.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto capsule = context->saved_data["pass"].toCapsule();
    const auto& pass = *static_cast<const RowPass*>(capsule.get());
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &weights = saved[3];
    const at::Tensor queries = widened(q).transpose(1, 2), dout = widened(gradients[0]).transpose(1, 2);
    // Gradients of all keys and values, separately for each rank: [ranks, 2, B, longest, Nkv, D].
    const at::Tensor d =
        at::zeros({pass.ring.size(), 2, k.size(0), pass.tokens.longest, k.size(2), k.size(3)}, dout.options());
    const auto of = [&](int source, int64_t which, const at::Tensor& gradient) {
      d[source][which].narrow(1, 0, gradient.size(2)).copy_(gradient.transpose(1, 2));
    };
    std::vector<at::Tensor> parts;  // gradients of weights
    pass.for_parts(v, [&](const at::Tensor& values, int source) {
      parts.push_back(at::matmul(dout, repeated(values, queries).transpose(2, 3)));
      of(source, 1, summed(at::matmul(pass.columns(weights, source).transpose(2, 3), dout), values));
    });
    const at::Tensor dweights = at::cat(parts, -1);
    const at::Tensor dscores = weights * (dweights - (dweights * weights).sum(-1, /*keepdim=*/true));
    at::Tensor dq = at::zeros_like(queries);
    pass.for_parts(k, [&](const at::Tensor& keys, int source) {
      const at::AutoGradMode with_gradients(true);
      const variable_list leaves{queries.detach().requires_grad_(), widened(keys).detach().requires_grad_()};
      const auto of_part = torch::autograd::grad({pass.scores(leaves[0], leaves[1], source, 8)}, leaves,
                                                 {pass.columns(dscores, source)});
      const at::NoGradGuard no_grad;
      dq.add_(of_part[0]);
      of(source, 0, of_part[1]);
    });
    at::Tensor own = at::empty(d.sizes().slice(1), d.options());
    pass.group.reduce_scatter(own, d, comm::Reduce::Sum).wait();
    const auto gradient = [&](int64_t which) { return own[which].narrow(1, 0, k.size(1)).to(k.scalar_type()); };
    return {dq.transpose(1, 2).to(q.scalar_type()), gradient(0), gradient(1), at::Tensor()};
  }
};

class RowExchange final : public SequenceExchange {
 public:
  RowExchange(const DoubleRing& ring, comm::Group& group) : ring_(ring), group_(group) {}
  at::Tensor attend(const SequenceHeads& heads, const nn::SequenceCut& cut, const SequenceMask& mask) const override {
    return RowAttention::apply(heads.q, heads.k, heads.v, c10::make_intrusive<RowPass>(ring_, group_, cut, mask));
  }

 private:
  DoubleRing ring_;
  comm::Group& group_;
};

}  // namespace

std::shared_ptr<const SequenceExchange> SequenceSelfAttention::exchange(comm::Mesh& mesh, const SequenceConfig&) {
  return std::make_shared<RowExchange>(DoubleRing{ring_along(mesh, "sequence"), {}},
                                       mesh.channel("sequence", "attention"));
}

}  // namespace colossal::parallel
