// Which tokens of a batch a rank holds: a part of the rows, and of each row some runs of the sequence.
//
//   const Tokens tokens{.batch = {4, {1}}, .sequence = {4, {0, 3}}};  // of 8 rows 2 and 3, of 12 tokens 0-2 and 9-11
//   const at::Tensor own = tokens.of(ids);                            // ids [8, 12] -> [2, 6]
//
// Runs are equal, or as long as somebody says who has planned them for a batch:
//
//   const SequenceCut cut{.lengths = {3, 3, 2, 2}, .held = {{0, 3}, {1, 2}}};  // of 10 tokens: 0-2 and 8-9, 3-7
//   const Tokens tokens{.sequence = cut.share(1, 2)};                          // what the second of two ranks holds
//
// A rank need not have the whole batch: with cut.given = {1, 2} that one takes its tokens of ids [8, 5], of 3-7.
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

/// What a rank holds of a dimension that is cut in `runs` runs: those with the indices `held`, in this order.
struct Share {
  int64_t runs = 1;
  std::vector<int64_t> held{0};
  std::vector<int64_t> lengths{};  ///< of the runs; empty: all are equal, whatever the size of the dimension
  std::vector<int64_t> given{};    ///< SequenceCut::given

  bool operator==(const Share&) const = default;
  bool is_all() const { return runs == 1; }
  /// Whether what is first in the dimension is held, and so is first here.
  bool has_first() const { return held.front() == 0; }
  /// The runs held of a dimension of `size`. Errors ("parallel"): a size that does not divide by `runs`, or that is not
  /// the sum of `lengths`; `what` names the dimension in the message.
  std::vector<Range> ranges(int64_t size, const char* what) const;
  /// Those runs of dimension `dim` of `whole`, which has all runs or those of `given`: a view where one is held or
  /// nothing else is given, a copy where several are. Errors, beside those of ranges(): runs held that are not given.
  at::Tensor of(const at::Tensor& whole, int64_t dim, const char* what) const;
  /// The size of the dimension of which this rank holds `own`.
  int64_t whole_size(int64_t own) const;
};

/// How the sequence of a batch is dealt out to ranks: cut in runs of any lengths, each of which one rank holds. Every
/// rank has the whole of it, so nobody asks another what that one holds.
struct SequenceCut {
  std::vector<int64_t> lengths;            ///< of the runs, in the order of the sequence
  std::vector<std::vector<int64_t>> held;  ///< for each rank the indices of its runs
  /// The runs that ids, labels and positions of the batch have on this rank, ascending; empty: all of them. Documents
  /// always are those of all tokens
  std::vector<int64_t> given{};

  /// Tokens of a row, over all ranks.
  int64_t tokens() const;
  /// The ranks in `parts` equal runs of neighbours: what those of run `part` hold together, in the order of the
  /// sequence. With as many parts as ranks that is what rank `part` holds.
  /// Errors ("parallel"): parts that do not divide the ranks; a rank without a run; a run that nobody holds, or that
  ///                      several do.
  Share share(int64_t part, int64_t parts) const;
};

struct Tokens {
  Share batch, sequence;

  bool operator==(const Tokens&) const = default;
  /// This rank's tokens of `whole`, [B, S, ...] -> [B_local, S_local, ...]. Undefined stays undefined.
  at::Tensor of(const at::Tensor& whole) const;
  /// This rank's rows of `whole`, [B, ...] -> [B_local, ...].
  at::Tensor rows_of(const at::Tensor& whole) const;
};

}  // namespace colossal::nn
