#include "colossal/parallel/sequence/runs.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"

namespace colossal::parallel {
namespace {

/// `size` in `parts` whose sizes differ by one at most, larger ones first.
std::vector<int64_t> nearly_equal(int64_t size, int64_t parts) {
  std::vector<int64_t> sizes(parts, size / parts);
  for (int64_t i = 0; i < size % parts; ++i) ++sizes[i];
  return sizes;
}

}  // namespace

nn::SequenceCut zigzag(int64_t tokens, int64_t ranks, int64_t shares) {
  require(tokens >= ranks * shares, "parallel", "each of the ", ranks * shares,
          " ranks that split a row must have a token of it: got ", tokens,
          "; take longer rows (data.sequence), or fewer ranks (parallel.sequence)");
  const std::vector<int64_t> ends = nearly_equal(tokens, 2 * ranks);
  nn::SequenceCut cut{.held = std::vector<std::vector<int64_t>>(ranks * shares)};
  for (int64_t run = 0; run < 2 * ranks; ++run) {
    const int64_t rank = std::min(run, 2 * ranks - 1 - run);
    // Of the second run of a rank the last shares get the longer pieces, so that a share without tokens has some there.
    std::vector<int64_t> pieces = nearly_equal(ends[run], shares);
    if (run >= ranks) std::reverse(pieces.begin(), pieces.end());
    for (int64_t share = 0; share < shares; ++share) {
      if (pieces[share] == 0) continue;
      cut.held[rank * shares + share].push_back(static_cast<int64_t>(cut.lengths.size()));
      cut.lengths.push_back(pieces[share]);
    }
  }
  return cut;
}

std::vector<ops::PositionRun> runs_of(const nn::SequenceCut& cut, int64_t part, int64_t parts) {
  const nn::Share share = cut.share(part, parts);
  int64_t tokens = 0;
  for (const int64_t length : cut.lengths) tokens += length;
  if (share.is_all()) return {{0, tokens}};
  std::vector<ops::PositionRun> runs;
  for (const nn::Range& range : share.ranges(tokens, "sequence")) {
    if (!runs.empty() && runs.back().first + runs.back().size == range.first)
      runs.back().size += range.size;
    else
      runs.push_back({range.first, range.size});
  }
  return runs;
}

std::vector<ops::PositionRun> places_in(const std::vector<ops::PositionRun>& whole,
                                        const std::vector<ops::PositionRun>& part) {
  std::vector<ops::PositionRun> places;
  for (const ops::PositionRun& run : part) {
    int64_t before = 0;
    for (const ops::PositionRun& around : whole)
      before += std::clamp<int64_t>(run.first - around.first, 0, around.size);
    places.push_back({before, run.size});
  }
  return places;
}

int64_t size_of(const std::vector<ops::PositionRun>& runs) {
  int64_t size = 0;
  for (const ops::PositionRun& run : runs) size += run.size;
  return size;
}

at::Tensor tokens_at(const at::Tensor& whole, int64_t dim, const std::vector<ops::PositionRun>& runs) {
  if (!whole.defined()) return whole;
  std::vector<at::Tensor> parts;
  for (const ops::PositionRun& run : runs) parts.push_back(whole.narrow(dim, run.first, run.size));
  return parts.size() == 1 ? parts.front() : at::cat(parts, dim);
}

at::Tensor in_order(const std::vector<at::Tensor>& of_ranks, int64_t dim,
                    const std::vector<std::vector<ops::PositionRun>>& runs) {
  struct Part {
    int64_t first;
    at::Tensor tokens;
  };
  std::vector<Part> parts;
  for (size_t rank = 0; rank < runs.size(); ++rank)
    for (int64_t own = 0; const ops::PositionRun& run : runs[rank]) {
      parts.push_back({run.first, of_ranks[rank].narrow(dim, own, run.size)});
      own += run.size;
    }
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.first < b.first; });
  std::vector<at::Tensor> ordered;
  for (const Part& part : parts) ordered.push_back(part.tokens);
  return at::cat(ordered, dim);
}

}  // namespace colossal::parallel
