// The exchange through which the queries of a rank reach keys and values on other ranks. A mode of sequence
// parallelism is such an exchange; the attention layer is written once over it.
//
//   Layout layout = with_sequence(make_layout(tensor, mesh), sequence);   // what TensorLayers are made of
//   const nn::ForwardContext step = layout.with_cut(given, tokens);       // says which tokens each rank has
//
// A new mode is a type in modes.h and a file with its SequenceExchange, or with its nn::AxisSwitch for models whose
// hidden states have two axes.
#pragma once
#include <memory>

#include "colossal/nn/attention.h"
#include "colossal/nn/tokens.h"
#include "colossal/ops/attention/attention.h"
#include "colossal/parallel/sequence/config.h"
#include "colossal/parallel/sequence/runs.h"
#include "colossal/parallel/tensor/layout.h"

namespace colossal::nn {
class BatchDocuments;
}

namespace colossal::parallel {

/// The options of attention scores, for the heads of a rank.
struct SequenceMask {
  nn::AttentionOptions options;
  at::Tensor slopes;     ///< slopes of ALiBi, fp64 [N], or undefined
  at::Tensor documents;  ///< documents of all tokens of these rows, int64 [B, S]; undefined = one document per row
  /// nn::ForwardContext::known_documents, and the rows of them that `documents` holds; for attention to whole sequences
  std::shared_ptr<nn::BatchDocuments> known_documents{};
  nn::Share rows{};

  /// Returns the mask for the queries at the positions `queries` and the keys at `keys`, which must ascend.
  ops::AttentionMask between(const std::vector<ops::PositionRun>& queries,
                             const std::vector<ops::PositionRun>& keys) const;
};

/// The tokens of each rank of an exchange. Messages are padded to the largest number of tokens of a rank.
struct TokensOfRanks {
  TokensOfRanks(const nn::SequenceCut& cut, int64_t ranks);
  /// Returns `own` with zeros appended to its tokens, which are dimension `dim`.
  at::Tensor padded(const at::Tensor& own, int64_t dim) const;

  std::vector<std::vector<ops::PositionRun>> runs;
  int64_t longest = 0, all = 0;  ///< largest number of tokens of a rank, and number of all tokens
};

/// Queries, keys and values [B, S_own, N or Nkv, D] of the tokens of a rank.
struct SequenceHeads {
  at::Tensor q, k, v;
};

/// The exchange of one mode of sequence parallelism.
class SequenceExchange {
 public:
  virtual ~SequenceExchange() = default;
  /// Returns softmax(scores) v of the queries, [B, S_own, N, D]. Every query is compared with all keys of the sequence
  /// that `mask` allows. check_heads() must accept the heads. `cut` gives the tokens of each rank. Differentiable in
  /// q, k and v. Collective among the ranks of the mode.
  virtual at::Tensor attend(const SequenceHeads& heads, const nn::SequenceCut& cut, const SequenceMask& mask) const = 0;
};

/// Returns a Ulysses exchange among the ranks of `group`. Each rank receives all tokens of the group for its share of
/// the heads. It attends through `inner`, in which the group is number `index` of `parts`, and returns the other
/// ranks' tokens. The other of the `parts` equal groups of neighbours hold other tokens of the row.
std::shared_ptr<const SequenceExchange> ulysses_exchange(comm::Group& group, int64_t index, int64_t parts,
                                                         std::shared_ptr<const SequenceExchange> inner);

/// Returns ring attention along the ring_axes() of `config`, mode ring or usp (double_ring()). If the cut is for more
/// ranks, each rank along these axes holds the tokens that a group of neighbours holds together.
std::shared_ptr<const SequenceExchange> ring_exchange(comm::Mesh& mesh, const SequenceConfig& config);

/// Returns how `config` splits rows of `tokens`; `shares` ranks split the tokens of each of its ranks further, see
/// runs_of(). If the host knows the documents, the result is balanced() for them and `layers`. Otherwise, if a layer
/// has a window, it is balanced() for rows of one document: under a window a zigzag gives ranks different numbers of
/// pairs. Otherwise it is zigzag().
nn::SequenceCut sequence_cut(const SequenceConfig& config, int64_t tokens, const at::Tensor& documents,
                             const AttentionLayers& layers = {{}}, int64_t shares = 1);

/// Returns `layout` with the tokens of each row split over the axes of `config`, of its mesh, and with the mode's
/// attention and switch. Ranks that split tokens by tensor.sequence divide a rank's tokens further. A cut is planned
/// for the attention layers that the layout, or a copy of it, has made until then. A mode that switches axes cuts
/// tokens into one run a rank, whose lengths differ by at most one. If config.size is 1, returns `layout` unchanged.
Layout with_sequence(Layout layout, const SequenceConfig& config);

}  // namespace colossal::parallel
