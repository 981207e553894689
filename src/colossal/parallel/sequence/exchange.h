// How the queries of a rank meet the keys and values that other ranks hold: what a mode of parallel sequences is, and
// the attention layer that is written once over it.
//
//   Layout layout = with_sequence(make_layout(tensor, mesh), sequence);   // what TensorLayers are made of
//   const nn::Step step = layout.with_cut(given, tokens);                 // says which tokens each rank has
//
// A new mode is a type in modes.h and a file with its SequenceExchange.
#pragma once
#include <memory>

#include "colossal/nn/attention.h"
#include "colossal/ops/attention.h"
#include "colossal/parallel/sequence/config.h"
#include "colossal/parallel/sequence/runs.h"
#include "colossal/parallel/tensor/layout.h"

namespace colossal::nn {
class BatchDocuments;
}

namespace colossal::parallel {

/// How scores are made, of the heads that a rank has.
struct SequenceMask {
  nn::AttentionOptions options;
  at::Tensor slopes;     ///< of ALiBi, fp64 [N], or undefined
  at::Tensor documents;  ///< int64 [B, S]: of all tokens of these rows; undefined: one document a row
  /// nn::Step::known_documents, and the rows of them that `documents` are; for attention of whole sequences
  std::shared_ptr<nn::BatchDocuments> known_documents{};
  nn::Share rows{};

  /// Returns the mask of the queries at the positions `queries` and the keys at `keys`, which ascend.
  ops::AttentionMask between(const std::vector<ops::PositionRun>& queries,
                             const std::vector<ops::PositionRun>& keys) const;
};

/// Which tokens each of the ranks that meet has. What travels is padded to the most that one of them has.
struct TokensOfRanks {
  TokensOfRanks(const nn::SequenceCut& cut, int64_t ranks);
  /// `own` with zeros behind its tokens, which are dimension `dim`.
  at::Tensor padded(const at::Tensor& own, int64_t dim) const;

  std::vector<std::vector<ops::PositionRun>> runs;
  int64_t longest = 0, all = 0;  ///< tokens
};

/// Queries, keys and values [B, S_own, N or Nkv, D] of the tokens that a rank holds.
struct SequenceHeads {
  at::Tensor q, k, v;
};

class SequenceExchange {
 public:
  virtual ~SequenceExchange() = default;
  /// softmax(scores) v of the queries, [B, S_own, N, D], of heads that check_heads() lets pass, where every query meets
  /// the keys of all tokens that `mask` lets it see; `cut` says which rank holds which. Differentiable in q, k and v.
  /// Collective among the ranks of the mode.
  virtual at::Tensor attend(const SequenceHeads& heads, const nn::SequenceCut& cut, const SequenceMask& mask) const = 0;
};

/// Ulysses among the ranks of `group`: each gets the heads of a part of the others for all of their tokens, meets keys
/// by `inner` (of which they are rank `index` of `parts`) and gives the others' tokens back. Neighbours number `index`
/// of `parts` equal groups hold other tokens of the row than these.
std::shared_ptr<const SequenceExchange> ulysses_exchange(comm::Group& group, int64_t index, int64_t parts,
                                                         std::shared_ptr<const SequenceExchange> inner);

/// Ring attention along the ring_axes() of `config`, mode ring or usp (double_ring()). Each rank along them holds what
/// neighbours together hold in a cut for more.
std::shared_ptr<const SequenceExchange> ring_exchange(comm::Mesh& mesh, const SequenceConfig& config);

/// How `config` deals out rows of `tokens` where `shares` ranks split what one of its ranks has, see runs_of(): where
/// there are documents, known to the host, balanced() for them and `layers`; else for rows of one document where a
/// layer has a window, under which a zigzag gives ranks unlike numbers of pairs; else zigzag().
nn::SequenceCut sequence_cut(const SequenceConfig& config, int64_t tokens, const at::Tensor& documents,
                             const AttentionLayers& layers = {{}}, int64_t shares = 1);

/// `layout` with the tokens of each row dealt out over the axes of `config`, of its mesh, and attention by
/// the mode. Ranks that split tokens by tensor.sequence cut what a rank has further. Cuts are planned for the attention
/// layers that were asked of the layout, or of a copy of it, until then.
Layout with_sequence(Layout layout, const SequenceConfig& config);

}  // namespace colossal::parallel
