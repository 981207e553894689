// Which tokens of a row each rank of parallel.sequence holds.
//
//   const nn::SequenceCut cut = zigzag(10, 2);                         // 0-2 and 8-9, 3-7
//   const std::vector<ops::PositionRun> own = runs_of(cut, 0, 2);      // {0, 3}, {8, 2}
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/nn/attention.h"
#include "colossal/nn/tokens.h"
#include "colossal/ops/attention.h"

namespace colossal::parallel {

/// A row of `tokens` in 2 `ranks` runs, of which rank r holds number r from either end: under a causal mask all ranks
/// then have the same number of pairs of a query and a key, where the runs are equal; they differ by one token at most.
/// Each run is cut further in `shares` pieces, of which each of as many neighbours has one: neighbours together hold
/// what one rank would. Runs without tokens are left out. Rank r s of the cut is share s of rank r.
/// Source: Brandon et al., arXiv:2311.09431, and Zhu, ring-flash-attention (zigzag).
/// Errors ("parallel"): fewer tokens than ranks * shares.
nn::SequenceCut zigzag(int64_t tokens, int64_t ranks, int64_t shares = 1);

/// The attention of each layer of a model: whether it is causal, and its window, say which keys a query sees.
using AttentionLayers = std::vector<nn::AttentionOptions>;

/// The pairs of a query and a key that each rank of `cut` computes in all `layers` together, where a query sees the
/// tokens of its own document that the layer lets it see: documents int64 [B, S] of the host, a run of each row each.
/// Cost: O(B S) for each kind of layer.
std::vector<double> pairs_of(const nn::SequenceCut& cut, const at::Tensor& documents, const AttentionLayers& layers);

/// zigzag() of the documents' row, unless that gives a rank more than kUneven times the mean of pairs_of(): then pieces
/// of equal lengths, in as few as bring it below that, are dealt out by their pairs, each rank as many. Planned from
/// the documents and the layers alone, so on every rank alike. Each rank has as many tokens whatever the documents are.
nn::SequenceCut balanced(const at::Tensor& documents, const AttentionLayers& layers, int64_t ranks, int64_t shares = 1);
constexpr double kUneven = 1.02;

/// What neighbours number `part` of the ranks of `cut` in `parts` equal groups hold together, in the order of the
/// sequence; runs that touch are one.
std::vector<ops::PositionRun> runs_of(const nn::SequenceCut& cut, int64_t part, int64_t parts);
/// The same of `share` in rows of `tokens`.
std::vector<ops::PositionRun> runs_of(const nn::Share& share, int64_t tokens);

/// Where the tokens of `part` stand among those of `whole`, runs that hold them all.
std::vector<ops::PositionRun> places_in(const std::vector<ops::PositionRun>& whole,
                                        const std::vector<ops::PositionRun>& part);

/// Tokens in them.
int64_t size_of(const std::vector<ops::PositionRun>& runs);

/// Those tokens of `whole`, along dimension `dim`: a view where they are one run.
at::Tensor tokens_at(const at::Tensor& whole, int64_t dim, const std::vector<ops::PositionRun>& runs);

/// What the ranks of a group hold, each tokens_at() its own runs along dimension `dim` in the order of `of_rank`, put
/// in the order of the sequence, whose tokens they all hold together.
at::Tensor in_order(const std::vector<at::Tensor>& of_ranks, int64_t dim,
                    const std::vector<std::vector<ops::PositionRun>>& runs);

}  // namespace colossal::parallel
