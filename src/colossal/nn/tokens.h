// The tokens of a batch that a rank holds: a part of the rows and, in each row, some runs of the sequence.
//
//   const Tokens tokens{.batch = {4, {1}}, .sequence = {4, {0, 3}}};  // of 8 rows 2 and 3, of 12 tokens 0-2 and 9-11
//   const at::Tensor own = tokens.of(ids);                            // ids [8, 12] -> [2, 6]
//
// Runs have equal lengths, unless the caller plans the lengths for a batch:
//
//   const SequenceCut cut{.lengths = {3, 3, 2, 2}, .held = {{0, 3}, {1, 2}}};  // of 10 tokens: 0-2 and 8-9, 3-7
//   const Tokens tokens{.sequence = cut.share(1, 2)};                          // what the second of two ranks holds
//
// A rank need not be given the whole batch: with cut.given = {1, 2}, rank 1 takes its tokens 3-7 from ids [8, 5].
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace colossal::nn {

/// Indices [first, first + size).
struct Range {
  int64_t first, size;
  bool operator==(const Range&) const = default;
};

/// The part that a rank holds of a dimension split into `runs` runs: the runs with the indices `held`, in this order.
struct Share {
  int64_t runs = 1;
  std::vector<int64_t> held{0};
  std::vector<int64_t> lengths{};  ///< lengths of the runs; empty = all equal, for any size of the dimension
  std::vector<int64_t> given{};    ///< runs that this rank was given; see SequenceCut::given

  bool operator==(const Share&) const = default;
  bool is_all() const { return runs == 1; }
  /// Returns true if this rank holds the first run, so that the first element of its part is the first of the
  /// dimension.
  bool has_first() const { return held.front() == 0; }
  /// Returns the index ranges held of a dimension of `size`. `what` names the dimension in messages.
  /// Errors ("parallel"): a size that is not divisible by `runs`, or that is not the sum of `lengths`.
  std::vector<Range> ranges(int64_t size, const char* what) const;
  /// Returns the held runs of dimension `dim` of `whole`, which has all runs or those of `given`. The result is a view
  /// if one run is held or if `given` equals `held`; a copy if several runs are.
  /// Errors ("parallel"): the errors of ranges(); a run that is held but was not given.
  at::Tensor of(const at::Tensor& whole, int64_t dim, const char* what) const;
  /// Returns the size of the whole dimension, if `own` is the size of this rank's part.
  int64_t whole_size(int64_t own) const;
};

/// Returns the share of run `index` of a dimension of `size` that is split into `runs` runs, whose lengths differ by at
/// most one; the first ones are the longer ones.
Share near_even_share(int64_t size, int64_t runs, int64_t index);

/// How the sequence of a batch is split over ranks: into runs of any lengths, each held by one rank. Every rank has the
/// whole plan, so no rank has to ask another what it holds.
struct SequenceCut {
  std::vector<int64_t> lengths;            ///< lengths of the runs, in the order of the sequence
  std::vector<std::vector<int64_t>> held;  ///< indices of the runs of each rank, by rank
  /// Indices, ascending, of the runs that ids, labels and positions of the batch have on this rank; empty = all of
  /// them. `documents` always has all tokens
  std::vector<int64_t> given{};

  /// Returns the number of tokens of a row, over all ranks.
  int64_t tokens() const;
  /// Divides the ranks into `parts` equal groups of neighbours and returns what the ranks of group `part` hold
  /// together, in the order of the sequence. With as many parts as ranks, this is what rank `part` holds.
  /// Errors ("parallel"): parts that do not divide the ranks; a rank without a run; a run held by no rank or by
  /// several.
  Share share(int64_t part, int64_t parts) const;
};

/// Returns the cut of a sequence over `ranks`, of which each holds one run; their lengths differ by at most one.
SequenceCut near_even_cut(int64_t tokens, int64_t ranks);
/// Returns the cut of one sequence after another, of which each rank holds what it holds of both. Both cuts are for the
/// same number of ranks.
SequenceCut joined(const SequenceCut& first, const SequenceCut& second);

struct Tokens {
  Share batch, sequence;

  bool operator==(const Tokens&) const = default;
  /// Returns this rank's tokens of `whole`, [B, S, ...] -> [B_local, S_local, ...]. An undefined tensor stays
  /// undefined.
  at::Tensor of(const at::Tensor& whole) const;
  /// Returns this rank's rows of `whole`, [B, ...] -> [B_local, ...].
  at::Tensor rows_of(const at::Tensor& whole) const;
};

}  // namespace colossal::nn
