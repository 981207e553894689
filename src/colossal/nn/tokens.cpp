#include "colossal/nn/tokens.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "colossal/base/error.h"

namespace colossal::nn {
namespace {

constexpr char kBatch[] = "batch", kSequence[] = "sequence";

}  // namespace

std::vector<Range> Share::ranges(int64_t size, const char* what) const {
  std::vector<Range> ranges;
  if (lengths.empty()) {
    require(size % runs == 0, "parallel", "the ", what, " must be divisible by the ", runs,
            " runs that it is split into: got ", size);
    for (const int64_t index : held) ranges.push_back({index * (size / runs), size / runs});
    return ranges;
  }
  const int64_t sum = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  require(size == sum, "parallel", "the ", what, " must be the ", sum, " that its runs add up to: got ", size,
          "; plan them for this batch");
  for (const int64_t index : held)
    ranges.push_back({std::accumulate(lengths.begin(), lengths.begin() + index, int64_t{0}), lengths.at(index)});
  return ranges;
}

SequenceCut near_even_cut(int64_t tokens, int64_t ranks) {
  SequenceCut cut;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    cut.lengths.push_back(tokens / ranks + (rank < tokens % ranks ? 1 : 0));
    cut.held.push_back({rank});
  }
  return cut;
}

Share near_even_share(int64_t size, int64_t runs, int64_t index) {
  Share share{runs, {index}};
  if (size % runs != 0) share.lengths = near_even_cut(size, runs).lengths;
  return share;
}

int64_t Share::whole_size(int64_t own) const {
  if (!lengths.empty()) return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  return own / static_cast<int64_t>(held.size()) * runs;
}

at::Tensor Share::of(const at::Tensor& whole, int64_t dim, const char* what) const {
  if (!whole.defined() || is_all()) return whole;
  Share among = *this;  // the runs that `whole` has
  if (!given.empty()) {
    among.given.clear(), among.held.clear(), among.lengths.clear();
    for (const int64_t run : given) among.lengths.push_back(lengths.at(run));
    for (const int64_t run : held) {
      const auto at = std::find(given.begin(), given.end(), run);
      require(at != given.end(), "parallel", "a rank must be given the runs that it holds: it holds run ", run,
              " of the ", what, " and was given runs ", at::IntArrayRef(given));
      among.held.push_back(at - given.begin());
    }
  }
  const std::vector<Range> all = among.ranges(whole.size(dim), what);
  if (!given.empty() && held == given) return whole;
  std::vector<at::Tensor> parts;
  for (const Range& range : all) parts.push_back(whole.narrow(dim, range.first, range.size));
  return parts.size() == 1 ? parts.front() : at::cat(parts, dim);
}

namespace {

[[noreturn]] void refuse_runs(const SequenceCut& cut) {
  std::vector<int64_t> all;
  for (const std::vector<int64_t>& held : cut.held) all.insert(all.end(), held.begin(), held.end());
  std::sort(all.begin(), all.end());
  throw Error("parallel",
              concat("each of the ", cut.lengths.size(),
                     " runs of a sequence must be held by exactly one rank: got indices ", at::IntArrayRef(all)));
}

}  // namespace

Share SequenceCut::share(int64_t part, int64_t parts) const {
  const auto ranks = static_cast<int64_t>(held.size()), runs = static_cast<int64_t>(lengths.size());
  require(parts > 0 && ranks % parts == 0, "parallel", "a split of the sequence over ", ranks,
          " ranks cannot be divided into ", parts, " parts; plan it for the ranks that split the sequence");
  // A plan of many ranks asks for the share of each, so this takes time proportional to the runs.
  std::vector<int64_t> own;
  std::vector<bool> is_held(static_cast<size_t>(runs), false);
  bool each_once = true;
  int64_t count = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    require(!held[rank].empty(), "parallel", "each rank must hold a run of the sequence: got none for rank ", rank,
            " of ", ranks, "; split it into more runs, or over fewer ranks");
    for (const int64_t run : held[rank]) {
      each_once = each_once && run >= 0 && run < runs && !is_held[static_cast<size_t>(run)];
      if (each_once) is_held[static_cast<size_t>(run)] = true;
    }
    count += static_cast<int64_t>(held[rank].size());
    if (rank / (ranks / parts) == part) own.insert(own.end(), held[rank].begin(), held[rank].end());
  }
  if (!each_once || count != runs) refuse_runs(*this);
  std::sort(own.begin(), own.end());
  if (parts == 1) return {};
  return {runs, own, lengths, given};
}

int64_t SequenceCut::tokens() const { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }

SequenceCut joined(const SequenceCut& first, const SequenceCut& second) {
  SequenceCut both{.lengths = first.lengths, .held = first.held};
  both.lengths.insert(both.lengths.end(), second.lengths.begin(), second.lengths.end());
  for (size_t rank = 0; rank < both.held.size(); ++rank)
    for (const int64_t run : second.held.at(rank))
      both.held[rank].push_back(static_cast<int64_t>(first.lengths.size()) + run);
  return both;
}

at::Tensor Tokens::of(const at::Tensor& whole) const { return sequence.of(rows_of(whole), 1, kSequence); }

at::Tensor Tokens::rows_of(const at::Tensor& whole) const { return batch.of(whole, 0, kBatch); }

}  // namespace colossal::nn
