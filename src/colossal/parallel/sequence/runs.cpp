#include "colossal/parallel/sequence/runs.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/tokens.h"

namespace colossal::parallel {
namespace {

/// Splits `size` into `parts` whose sizes differ by one at most, larger ones first.
std::vector<int64_t> nearly_equal(int64_t size, int64_t parts) {
  std::vector<int64_t> sizes(parts, size / parts);
  for (int64_t i = 0; i < size % parts; ++i) ++sizes[i];
  return sizes;
}

/// Returns the number of keys that token `i` of a document of `size` tokens sees (ops::AttentionMask). A window that
/// is not causal extends to both sides.
int64_t keys_seen(int64_t i, int64_t size, bool causal, int64_t window) {
  if (causal) return window > 0 ? std::min(i + 1, window) : i + 1;
  return window > 0 ? std::min(i, window) + 1 + std::min(size - 1 - i, window) : size;
}

/// Returns cumulated pairs: element [i] is the number of pairs of all queries at positions before i, in all rows and
/// layers.
std::vector<double> summed_pairs(const at::Tensor& documents, const AttentionLayers& layers) {
  std::map<std::pair<bool, int64_t>, double> kinds;  // number of layers of each kind
  for (const nn::AttentionOptions& layer : layers) ++kinds[{layer.causal, layer.window}];
  const at::Tensor ids = documents.contiguous();
  const int64_t rows = ids.size(0), tokens = ids.size(1);
  std::vector<double> sums(tokens + 1, 0);
  for (int64_t row = 0; row < rows; ++row) {
    const auto* own = ids.const_data_ptr<int64_t>() + row * tokens;
    for (int64_t first = 0, end = 0; first < tokens; first = end) {
      while (end < tokens && own[end] == own[first]) ++end;
      for (const auto& [kind, count] : kinds)
        for (int64_t i = 0; i < end - first; ++i)
          sums[first + i + 1] += count * static_cast<double>(keys_seen(i, end - first, kind.first, kind.second));
    }
  }
  for (int64_t i = 0; i < tokens; ++i) sums[i + 1] += sums[i];
  return sums;
}

std::vector<double> pairs_by(const nn::SequenceCut& cut, const std::vector<double>& sums) {
  std::vector<int64_t> first{0};
  for (const int64_t length : cut.lengths) first.push_back(first.back() + length);
  std::vector<double> pairs;
  for (const std::vector<int64_t>& held : cut.held) {
    pairs.push_back(0);
    for (const int64_t run : held) pairs.back() += sums[first[run + 1]] - sums[first[run]];
  }
  return pairs;
}

/// Returns the largest load of a rank over the mean. `shares` neighbours count as one, because they exchange their
/// tokens.
double unevenness(const std::vector<double>& pairs, int64_t shares) {
  double most = 0, sum = 0;
  for (size_t i = 0; i < pairs.size(); i += shares) {
    const double own = std::accumulate(pairs.begin() + i, pairs.begin() + i + shares, 0.0);
    most = std::max(most, own), sum += own;
  }
  return sum == 0 ? 1 : most * static_cast<double>(pairs.size()) / static_cast<double>(shares) / sum;
}

/// Assigns `each` pieces of `length` tokens to each rank. It takes groups of as many pieces as there are ranks, those
/// with the most pairs first. Within a group, pieces with more pairs go to ranks with fewer pairs so far. The tokens
/// left at the end of the row are assigned in order, so that each rank gets its number in `counts`.
nn::SequenceCut dealt_by_pairs(const std::vector<double>& sums, const std::vector<int64_t>& counts, int64_t shares,
                               int64_t each, int64_t length) {
  const int64_t ranks = static_cast<int64_t>(counts.size()) / shares, pieces = ranks * each;
  std::vector<int64_t> rest = counts;
  for (int64_t& left : rest) left -= each * length / shares;
  std::vector<double> loads(ranks);
  for (int64_t i = 0, first = pieces * length; i < ranks * shares; first += rest[i++])
    loads[i / shares] += sums[first + rest[i]] - sums[first];
  const auto pairs = [&](int64_t piece) { return sums[(piece + 1) * length] - sums[piece * length]; };
  std::vector<int64_t> order(pieces), takers(ranks), owner(pieces);
  std::iota(order.begin(), order.end(), int64_t{0});
  std::iota(takers.begin(), takers.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return pairs(a) > pairs(b); });
  for (int64_t i = 0; i < pieces; i += ranks) {
    std::stable_sort(takers.begin(), takers.end(), [&](int64_t a, int64_t b) { return loads[a] < loads[b]; });
    for (int64_t j = 0; j < ranks; ++j) {
      owner[order[i + j]] = takers[j];
      loads[takers[j]] += pairs(order[i + j]);
    }
  }
  nn::SequenceCut cut{.held = std::vector<std::vector<int64_t>>(ranks * shares)};
  const auto deal = [&](int64_t to, int64_t size) {
    if (size == 0) return;
    cut.held[to].push_back(static_cast<int64_t>(cut.lengths.size()));
    cut.lengths.push_back(size);
  };
  for (int64_t piece = 0; piece < pieces; ++piece)
    for (int64_t share = 0; share < shares; ++share) deal(owner[piece] * shares + share, length / shares);
  for (int64_t i = 0; i < ranks * shares; ++i) deal(i, rest[i]);
  return cut;
}

// Shorter pieces would cost more in kernel calls than they gain in balance.
constexpr int64_t kMinPiece = 16, kMaxPieces = 64;

}  // namespace

std::vector<double> pairs_of(const nn::SequenceCut& cut, const at::Tensor& documents, const AttentionLayers& layers) {
  return pairs_by(cut, summed_pairs(documents, layers));
}

nn::SequenceCut balanced(const at::Tensor& documents, const AttentionLayers& layers, int64_t ranks, int64_t shares) {
  const int64_t tokens = documents.size(1);
  const std::vector<double> sums = summed_pairs(documents, layers);
  nn::SequenceCut best = zigzag(tokens, ranks, shares);
  std::vector<int64_t> counts;
  for (int64_t i = 0; i < ranks * shares; ++i) counts.push_back(size_of(runs_of(best, i, ranks * shares)));
  double least = unevenness(pairs_by(best, sums), shares);
  for (int64_t each = 2; least > kUneven && each <= kMaxPieces; each *= 2) {
    const int64_t length = tokens / (ranks * each) / shares * shares;
    if (length < kMinPiece) break;
    nn::SequenceCut cut = dealt_by_pairs(sums, counts, shares, each, length);
    const double uneven = unevenness(pairs_by(cut, sums), shares);
    if (uneven < least) best = std::move(cut), least = uneven;
  }
  return best;
}

nn::SequenceCut zigzag(int64_t tokens, int64_t ranks, int64_t shares) {
  require(tokens >= ranks * shares, "parallel", "each of the ", ranks * shares,
          " ranks that split a row must have a token of it: got ", tokens,
          "; raise data.sequence, or use fewer ranks (parallel.sequence)");
  const std::vector<int64_t> ends = nearly_equal(tokens, 2 * ranks);
  nn::SequenceCut cut{.held = std::vector<std::vector<int64_t>>(ranks * shares)};
  for (int64_t run = 0; run < 2 * ranks; ++run) {
    const int64_t rank = std::min(run, 2 * ranks - 1 - run);
    // In the second run of a rank the last shares get the longer pieces, so that a share that got no tokens in the
    // first run gets some.
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
  int64_t tokens = 0;
  for (const int64_t length : cut.lengths) tokens += length;
  return runs_of(cut.share(part, parts), tokens);
}

std::vector<ops::PositionRun> runs_of(const nn::Share& share, int64_t tokens) {
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
