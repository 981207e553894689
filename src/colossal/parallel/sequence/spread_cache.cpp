#include "colossal/parallel/sequence/spread_cache.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "colossal/base/error.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"
#include "colossal/parallel/sequence/runs.h"

namespace colossal::parallel {
namespace {

/// Appends `position` to `all`, to the last series if it continues that series.
void add_position(std::vector<nn::KeyPositions>& all, int64_t position) {
  if (!all.empty()) {
    nn::KeyPositions& last = all.back();
    if (last.size == 1) last.stride = position - last.first;
    if (position == last.first + last.size * last.stride) {
      ++last.size;
      return;
    }
  }
  all.push_back({position, 1});
}

/// Returns those tokens of x [B, S, ...]: a view if they are adjacent.
at::Tensor chosen(const at::Tensor& x, const std::vector<int64_t>& tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  if (count == 0) return x.narrow(1, 0, 0);
  if (tokens.back() - tokens.front() + 1 == count) return x.narrow(1, tokens.front(), count);
  std::vector<at::Tensor> each;
  for (const int64_t token : tokens) each.push_back(x.narrow(1, token, 1));
  return at::cat(each, 1);
}

}  // namespace

SpreadTokens SpreadCache::after(const nn::ForwardContext& step, int64_t tokens, std::vector<int64_t>& kept) const {
  const nn::Sequences& sequences = nn::sequences_of(step);
  require(sequences.lengths.size() <= 1, "kv_cache", "with a cache shared by ranks a row must be one sequence: got ",
          sequences.lengths.size(), "; continue one prompt at a time, or without parallel.sequence");
  require(length() + tokens <= capacity_, "kv_cache", "the sequence must fit the cache: got ", length() + tokens,
          " tokens, capacity ", capacity_);
  SpreadTokens all = held_;
  const auto ranks = static_cast<int64_t>(all.counts.size());
  if (step.cut) {
    for (int64_t rank = 0; rank < ranks; ++rank) all.counts[rank] += size_of(runs_of(*step.cut, rank, ranks));
    for (const ops::PositionRun& run : runs_of(*step.cut, rank_, ranks))
      all.own.push_back({length() + run.first, run.size});
    kept.resize(all.counts[rank_] - held_.counts[rank_]);
    std::iota(kept.begin(), kept.end(), 0);
    return all;
  }
  for (int64_t token = 0; token < tokens; ++token) {
    const auto fewest = std::min_element(all.counts.begin(), all.counts.end());
    ++*fewest;
    if (fewest - all.counts.begin() != rank_) continue;
    add_position(all.own, length() + token);
    kept.push_back(token);
  }
  return all;
}

nn::KeysValues SpreadCache::append(int64_t layer, const at::Tensor& k, const at::Tensor& v,
                                   const nn::ForwardContext& step) {
  std::vector<int64_t> kept;
  const int64_t tokens =
      step.cut ? std::accumulate(step.cut->lengths.begin(), step.cut->lengths.end(), int64_t{0}) : k.size(1);
  SpreadTokens all = after(step, tokens, kept);
  const auto own = static_cast<int64_t>(kept.size()), ranks = static_cast<int64_t>(all.counts.size());
  require(!step.cut || k.size(1) == own, "kv_cache", "a step must have the ", own,
          " tokens that its cut assigns to this rank: got ", k.size(1));
  if (!own_) own_.emplace(std::max((capacity_ + ranks - 1) / ranks, own));
  nn::KeysValues held = own_->append(layer, chosen(k, kept), chosen(v, kept), {});
  held.part = std::move(all.own);
  return held;
}

void SpreadCache::advance(const nn::ForwardContext& step, int64_t tokens) {
  std::vector<int64_t> kept;
  held_ = after(step, tokens, kept);
  lengths_ = {length() + tokens};
  if (own_) own_->advance({}, static_cast<int64_t>(kept.size()));
}

}  // namespace colossal::parallel
