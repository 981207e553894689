#include "colossal/parallel/sequence/decoding.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "colossal/base/error.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/ops/attention/paged.h"
#include "colossal/ops/attention/partial.h"
#include "colossal/ops/dispatch.h"
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

namespace {

/// The run [first, first + size) of the keys that a rank keeps, with their positions.
struct SeenKeys {
  int64_t first, size;
  nn::KeyPositions positions;
};

/// Returns the keys of `all` whose positions are in [from, to].
std::vector<SeenKeys> seen_keys(const std::vector<nn::KeyPositions>& all, int64_t from, int64_t to) {
  std::vector<SeenKeys> seen;
  int64_t before = 0;  // number of keys in the series before this one
  for (const nn::KeyPositions& series : all) {
    // Returns the number of keys of the series that precede a position.
    const auto below = [&](int64_t position) {
      return std::clamp<int64_t>((position - series.first + series.stride - 1) / series.stride, 0, series.size);
    };
    const int64_t skipped = below(from), size = below(to + 1) - skipped;
    if (size > 0)
      seen.push_back({before + skipped, size, {series.first + skipped * series.stride, size, series.stride}});
    before += series.size;
  }
  return seen;
}

/// Attention for steps whose keys and values are split over ranks.
class SpreadAttention final : public nn::Attention {
 public:
  SpreadAttention(comm::Group& ranks, int64_t layer, const nn::AttentionShape& shape,
                  const nn::AttentionOptions& options)
      : ranks_(ranks),
        whole_(nn::whole_attention(layer, shape, options)),
        layer_(layer),
        heads_(shape.heads),
        options_(options) {}

  nn::Inside forward(const nn::Heads& heads, const nn::ForwardContext& step) override {
    nn::AttentionCache* cache = nn::cache_of(step);
    if (!cache) return whole_->forward(heads, step);
    require(options_.causal && !step.documents.defined(), "parallel",
            "with a cache shared by parallel.sequence attention must be causal and over one document: got ",
            options_.causal ? "documents" : "bidirectional attention");
    if (options_.alibi && !slopes_.defined()) slopes_ = nn::alibi_slopes_of(heads, heads_, options_);
    const int64_t before = cache->lengths().empty() ? 0 : cache->lengths().front();
    const nn::KeysValues held = cache->append(layer_, heads.k, heads.v, step);
    require(held.part.has_value(), "parallel",
            "ranks of parallel.sequence must share a cache: got a cache of whole sequences; use the one that "
            "DistributedModel::make_cache returns");
    if (held.paged.pages) {
      const ops::PagedMask mask{options_.scale, options_.window, slopes_, options_.soft_cap};
      const ops::PartialAttention own = ops::partial_paged_attention(
          heads.q[0], *held.paged.pages, *held.paged.sequences, nn::sequences_of(step).in(heads.q.size(1)), mask);
      return {merged(packed(own)).to(heads.q.scalar_type()).flatten(1).unsqueeze(0)};
    }
    // Handles each query separately. There is only one, except for a prompt with fewer tokens than ranks.
    std::vector<at::Tensor> found;
    for (int64_t i = 0; i < heads.q.size(1); ++i)
      found.push_back(packed(own_part(heads.q.narrow(1, i, 1).transpose(1, 2), held, before + i)));
    return {merged(at::cat(found, 2)).transpose(1, 2).to(heads.q.scalar_type()).flatten(2)};
  }

 private:
  /// Returns the attention of a query [B, N, 1, D] at `position` to the keys that this rank keeps.
  ops::PartialAttention own_part(const at::Tensor& q, const nn::KeysValues& held, int64_t position) const {
    const int64_t from = options_.window > 0 ? position - options_.window + 1 : 0;
    std::vector<SeenKeys> seen = seen_keys(*held.part, from, position);
    // Visible keys are adjacent, and without biases their positions do not matter, so one run suffices.
    if (!slopes_.defined() && seen.size() > 1) {
      for (size_t i = 1; i < seen.size(); ++i) seen.front().size += seen[i].size;
      seen.resize(1);
    }
    ops::PartialAttention all;
    for (const SeenKeys& keys : seen) merge(all, of_keys(q, held, keys, position));
    if (all.out.defined()) return all;
    const at::Tensor none = q.to(ops::wide_type(q));
    return {at::zeros_like(none), at::full_like(none.select(-1, 0), -std::numeric_limits<double>::infinity())};
  }

  ops::PartialAttention of_keys(const at::Tensor& q, const nn::KeysValues& held, const SeenKeys& keys,
                                int64_t position) const {
    const auto those = [&](const at::Tensor& x) { return x.narrow(1, keys.first, keys.size).transpose(1, 2); };
    ops::AttentionMask mask = nn::mask_of(options_, {});
    mask.causal = false, mask.window = 0;  // the query sees all of these keys
    if (!slopes_.defined()) return partial_attention(q, those(held.k), those(held.v), mask);
    // The biases below assume adjacent keys, so the slope is scaled by the stride and the query's distance is a whole
    // number of strides.
    const nn::KeyPositions& at = keys.positions;
    const int64_t distance = position - at.first;
    mask.alibi = slopes_ * static_cast<double>(at.stride);
    mask.queries = {{distance / at.stride, 1}};
    ops::PartialAttention part = partial_attention(q, those(held.k), those(held.v), mask);
    // The remaining distance is the same for all keys, so it changes the sum but not the weights.
    part.log_sums.sub_(
        (slopes_ * static_cast<double>(distance % at.stride)).to(part.log_sums.scalar_type()).view({-1, 1}));
    return part;
  }

  /// Returns the tensor to send: [.., D + 1].
  static at::Tensor packed(const ops::PartialAttention& part) {
    return at::cat({part.out, part.log_sums.unsqueeze(-1)}, -1).contiguous();
  }

  /// Gathers the results of all ranks and merges them in the same order on every rank.
  at::Tensor merged(const at::Tensor& own) const {
    std::vector<int64_t> sizes = own.sizes().vec();
    sizes.insert(sizes.begin(), ranks_.size());
    at::Tensor all = at::empty(sizes, own.options());
    ranks_.all_gather(all, own).wait();
    ops::PartialAttention whole;
    for (const at::Tensor& part : all.unbind())
      merge(whole, {part.narrow(-1, 0, part.size(-1) - 1), part.select(-1, part.size(-1) - 1)});
    return whole.out;
  }

  comm::Group& ranks_;
  std::unique_ptr<nn::Attention> whole_;
  int64_t layer_, heads_;
  nn::AttentionOptions options_;
  at::Tensor slopes_;  // slopes of this rank's heads, made when the heads are known
};

}  // namespace

Layout with_spread_cache(Layout layout, const SequenceConfig& config) {
  if (config.size == 1) return layout;
  std::vector<std::string> names;
  for (const comm::Mesh::Axis& axis : sequence_axes(config)) names.push_back(axis.name);
  comm::Group& ranks = layout.mesh->group(names);
  layout.attention = [&ranks](int64_t layer, const nn::AttentionShape& shape, const nn::AttentionOptions& options) {
    return std::make_unique<SpreadAttention>(ranks, layer, shape, options);
  };
  return layout;
}

at::Tensor last_token(const Layout& layout, const at::Tensor& hidden, const nn::ForwardContext& step) {
  at::Tensor own = hidden.select(1, -1).contiguous();
  if (!step.cut) return own;
  comm::Group& ranks = layout.mesh->group(layout.outside.sequence);
  const auto last = static_cast<int64_t>(step.cut->lengths.size()) - 1;
  int holder = 0;
  for (int rank = 0; rank < ranks.size(); ++rank)
    if (step.cut->share(rank, ranks.size()).held.back() == last) holder = rank;
  ranks.broadcast(own, holder).wait();
  return own;
}

}  // namespace colossal::parallel
