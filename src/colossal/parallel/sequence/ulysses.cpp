// Ranks exchange tokens for heads. Each rank then has all tokens of some heads, for which attention needs no other
// ranks, and returns the other ranks' tokens. Elements are moved bit for bit.
//
// Communication: N ranks, each with b S/N tokens of h features and h_kv of keys: forward one all_to_all of q, k and v
//                together, (N-1)/N^2 bS (h + 2 h_kv), and one of the result, (N-1)/N^2 bS h; backward the same. With
//                fewer kv heads than ranks, each kv head of a rank is sent to all ranks whose query heads read it, as
//                if there were that many more; the returned gradients are summed in fp32.
// Memory:        the exchanged q, k, v and result of each layer, as large as before the exchange, until backward.
#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/comm/collectives.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/tokens.h"
#include "colossal/ops/dispatch.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/sequence/modes.h"
#include "colossal/parallel/sequence/runs.h"

namespace colossal::parallel {
namespace {

using Runs = std::vector<ops::PositionRun>;

/// Attention for ranks that have all tokens.
class WholeRows final : public SequenceExchange {
 public:
  at::Tensor attend(const SequenceHeads& heads, const nn::SequenceCut&, const SequenceMask& mask) const override {
    ops::AttentionMask whole = nn::mask_of(mask.options, mask.slopes);
    whole.documents = mask.documents;
    if (mask.known_documents) whole.runs = mask.known_documents->runs({.batch = mask.rows}, heads.q.device());
    return ops::attention(heads.q.transpose(1, 2), heads.k.transpose(1, 2), heads.v.transpose(1, 2), whole)
        .transpose(1, 2);
  }
};

/// The query heads that a rank computes, and the key-value heads that these read.
struct HeadsOfRank {
  HeadsOfRank(int64_t rank, int64_t ranks, int64_t heads, int64_t kv_heads)
      : first(rank * (heads / ranks)),
        count(heads / ranks),
        group(heads / kv_heads),
        kv_first(first / group),
        kv_count((first + count - 1) / group + 1 - kv_first) {}

  /// Returns k or v [.., kv_count, D] in the form that attention takes: the same number of query heads for each kv
  /// head.
  at::Tensor for_queries(const at::Tensor& x) const {
    if ((count % group == 0 && first % group == 0) || kv_count == 1) return x;
    const auto heads = x.split(1, 2);  // one split, because its backward fills no zeros
    std::vector<at::Tensor> read;
    for (int64_t kv = kv_first; kv < kv_first + kv_count; ++kv) {
      const int64_t readers = std::min(first + count, (kv + 1) * group) - std::max(first, kv * group);
      read.push_back(heads[kv - kv_first].expand({-1, -1, readers, -1}));  // the backward of expand is one sum
    }
    return at::cat(read, 2);
  }
  int64_t first, count, group, kv_first, kv_count;
};

class UlyssesExchange final : public SequenceExchange {
 public:
  UlyssesExchange(comm::Group& group, int64_t index, int64_t parts, std::shared_ptr<const SequenceExchange> inner)
      : group_(group), index_(index), parts_(parts), inner_(std::move(inner)) {}

  at::Tensor attend(const SequenceHeads& heads, const nn::SequenceCut& cut, const SequenceMask& mask) const override {
    if (group_.size() == 1) return inner_->attend(heads, cut, mask);
    const int64_t ranks = group_.size(), count = heads.q.size(2), kv_count = heads.k.size(2);
    std::vector<Runs> runs;
    std::vector<HeadsOfRank> of;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      runs.push_back(runs_of(cut, index_ * ranks + rank, parts_ * ranks));
      of.emplace_back(rank, ranks, count, kv_count);
    }
    const HeadsOfRank& here = of[group_.rank()];
    SequenceHeads exchanged = to_heads(heads, runs, of);
    exchanged.k = here.for_queries(exchanged.k), exchanged.v = here.for_queries(exchanged.v);
    SequenceMask own = mask;
    if (mask.slopes.defined()) own.slopes = mask.slopes.narrow(0, here.first, here.count);
    return to_tokens(inner_->attend(exchanged, cut, own), runs, runs_of(cut, index_, parts_));
  }

 private:
  /// Returns for each rank the heads of k or v [B, S_own, Nkv, D] that it reads. A head that several ranks read gets
  /// gradients from all of them, which are summed in fp32 (fp64 for fp64).
  static std::vector<at::Tensor> for_ranks(const at::Tensor& x, const std::vector<HeadsOfRank>& of) {
    int64_t read = 0;
    for (const HeadsOfRank& rank : of) read += rank.kv_count;
    const auto heads = (read > x.size(2) ? x.to(ops::wide_type(x)) : x).split(1, 2);
    std::vector<at::Tensor> parts;
    for (const HeadsOfRank& rank : of) {
      const auto first = heads.begin() + rank.kv_first;
      parts.push_back(at::cat(std::vector<at::Tensor>(first, first + rank.kv_count), 2).to(x.scalar_type()));
    }
    return parts;
  }

  /// Converts all heads of this rank's tokens to this rank's heads of all tokens, in order.
  SequenceHeads to_heads(const SequenceHeads& heads, const std::vector<Runs>& runs,
                         const std::vector<HeadsOfRank>& of) const {
    std::vector<at::Tensor> parts;
    std::vector<int64_t> sent, received;
    const int64_t features = heads.q.size(0) * heads.q.size(3);  // elements per head and token, over all rows
    const HeadsOfRank& here = of[group_.rank()];
    const auto q = heads.q.split(here.count, 2);  // one split, because its backward fills no zeros
    const auto k = for_ranks(heads.k, of), v = for_ranks(heads.v, of);
    for (size_t rank = 0; rank < of.size(); ++rank) {
      for (const at::Tensor* x : {&q[rank], &k[rank], &v[rank]}) parts.push_back(x->flatten());
      sent.push_back(features * heads.q.size(1) * (of[rank].count + 2 * of[rank].kv_count));
      received.push_back(features * size_of(runs[rank]) * (here.count + 2 * here.kv_count));
    }
    const auto from = comm::all_to_all(at::cat(parts), received, sent, group_).split_with_sizes(received);
    std::vector<at::Tensor> of_q, of_k, of_v;
    for (size_t rank = 0; rank < of.size(); ++rank) {
      const int64_t tokens = size_of(runs[rank]), kv = features * tokens * here.kv_count;
      const auto three = from[rank].split_with_sizes({features * tokens * here.count, kv, kv});
      const auto shaped = [&](const at::Tensor& x, int64_t count) {
        return x.view({heads.q.size(0), tokens, count, heads.q.size(3)});
      };
      of_q.push_back(shaped(three[0], here.count));
      of_k.push_back(shaped(three[1], here.kv_count)), of_v.push_back(shaped(three[2], here.kv_count));
    }
    return {in_order(of_q, 1, runs), in_order(of_k, 1, runs), in_order(of_v, 1, runs)};
  }

  /// Converts back: this rank's heads of all tokens, whose positions are `whole`, to all heads of this rank's tokens.
  at::Tensor to_tokens(const at::Tensor& x, const std::vector<Runs>& runs, const Runs& whole) const {
    std::vector<at::Tensor> parts;
    std::vector<int64_t> sent;
    for (const Runs& of_rank : runs) {
      parts.push_back(tokens_at(x, 1, places_in(whole, of_rank)).flatten());
      sent.push_back(parts.back().numel());
    }
    const int64_t tokens = size_of(runs[group_.rank()]), own = x.size(0) * tokens * x.size(2) * x.size(3);
    const std::vector<int64_t> received(runs.size(), own);
    const at::Tensor all = comm::all_to_all(at::cat(parts), received, sent, group_);
    return all.view({group_.size(), x.size(0), tokens, x.size(2), x.size(3)}).permute({1, 2, 0, 3, 4}).flatten(2, 3);
  }

  comm::Group& group_;
  int64_t index_, parts_;
  std::shared_ptr<const SequenceExchange> inner_;
};

}  // namespace

std::shared_ptr<const SequenceExchange> ulysses_exchange(comm::Group& group, int64_t index, int64_t parts,
                                                         std::shared_ptr<const SequenceExchange> inner) {
  return std::make_shared<UlyssesExchange>(group, index, parts, std::move(inner));
}

std::shared_ptr<const SequenceExchange> SequenceUlysses::exchange(comm::Mesh& mesh, const SequenceConfig&) {
  return ulysses_exchange(mesh.channel("sequence", "attention"), 0, 1, std::make_shared<WholeRows>());
}

std::shared_ptr<const SequenceExchange> SequenceUsp::exchange(comm::Mesh& mesh, const SequenceConfig& config) {
  const std::vector<std::string> ring = ring_axes(config);
  return ulysses_exchange(mesh.channel("ulysses", "attention"), mesh.coordinates().index(ring),
                          mesh.coordinates().size(ring), ring_exchange(mesh, config));
}

}  // namespace colossal::parallel
