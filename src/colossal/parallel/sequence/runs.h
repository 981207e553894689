// The tokens of a row that each rank of parallel.sequence holds.
//
//   const nn::SequenceCut cut = zigzag(10, 2);                         // 0-2 and 8-9, 3-7
//   const std::vector<ops::PositionRun> own = runs_of(cut, 0, 2);      // {0, 3}, {8, 2}
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/nn/attention.h"
#include "colossal/nn/tokens.h"
#include "colossal/ops/attention/attention.h"

namespace colossal::parallel {

/// Splits a row of `tokens` into 2 `ranks` runs, of which rank r holds number r from either end. Under a causal mask
/// all ranks then have the same number of pairs of a query and a key, if the runs are equal. Run lengths differ by one
/// token at most. Each run is split further into `shares` pieces, one for each of as many neighbours, which together
/// hold the tokens of one rank. Runs without tokens are omitted. Share s of rank r is number r * shares + s of the cut.
/// Source: Brandon et al., arXiv:2311.09431, and Zhu, ring-flash-attention (zigzag).
/// Errors ("parallel"): fewer tokens than ranks * shares.
nn::SequenceCut zigzag(int64_t tokens, int64_t ranks, int64_t shares = 1);

/// The attention options of each layer of a model: causality and window determine which keys a query sees.
using AttentionLayers = std::vector<nn::AttentionOptions>;

/// Returns the number of pairs of a query and a key that each rank of `cut` computes in all `layers` together. A query
/// sees the tokens of its own document that the layer allows. `documents` is int64 [B, S] on the host; each document
/// is a run of its row.
/// Cost: O(B S) for each kind of layer.
std::vector<double> pairs_of(const nn::SequenceCut& cut, const at::Tensor& documents, const AttentionLayers& layers);

/// Returns zigzag() for the documents' row, unless that gives a rank more than kUneven times the mean of pairs_of().
/// `shares` neighbours count as one rank here. Otherwise splits the row into 2, 4, ... 64 pieces of equal length per
/// rank, until the ratio is at most kUneven or pieces would have fewer than 16 tokens. Returns the cut with the
/// smallest ratio. Each rank gets the same number of pieces, chosen by their pairs. The plan depends only on the
/// documents and the layers, so it is the same on every rank. A rank's number of tokens does not depend on the
/// documents.
nn::SequenceCut balanced(const at::Tensor& documents, const AttentionLayers& layers, int64_t ranks, int64_t shares = 1);
constexpr double kUneven = 1.02;

/// Returns the tokens of `part` if the ranks of `cut` form `parts` equal groups of neighbours, in the order of the
/// sequence. Adjacent runs are joined.
std::vector<ops::PositionRun> runs_of(const nn::SequenceCut& cut, int64_t part, int64_t parts);
/// Returns the tokens of `share` in rows of `tokens`, in the same form.
std::vector<ops::PositionRun> runs_of(const nn::Share& share, int64_t tokens);

/// Returns the positions of the tokens of `part` within `whole`, whose runs must contain them all.
std::vector<ops::PositionRun> places_in(const std::vector<ops::PositionRun>& whole,
                                        const std::vector<ops::PositionRun>& part);

/// Returns the number of tokens in the runs.
int64_t size_of(const std::vector<ops::PositionRun>& runs);

/// Returns those tokens of `whole`, along dimension `dim`: a view if they are one run. Returns an undefined `whole` as
/// it is.
at::Tensor tokens_at(const at::Tensor& whole, int64_t dim, const std::vector<ops::PositionRun>& runs);

/// Joins the tokens of all ranks in the order of the sequence. of_ranks[r] has the tokens runs[r] along dimension
/// `dim`; together the ranks hold all tokens.
at::Tensor in_order(const std::vector<at::Tensor>& of_ranks, int64_t dim,
                    const std::vector<std::vector<ops::PositionRun>>& runs);

}  // namespace colossal::parallel
