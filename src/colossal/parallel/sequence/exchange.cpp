#include "colossal/parallel/sequence/exchange.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/tokens.h"
#include "colossal/parallel/sequence/modes.h"
#include "colossal/parallel/sequence/runs.h"

namespace colossal::parallel {
namespace {

/// Attention for sequences of which a rank has only a part.
class SplitAttention final : public nn::Attention {
 public:
  SplitAttention(std::shared_ptr<const SequenceExchange> exchange, int64_t layer, int64_t heads,
                 const nn::AttentionOptions& options)
      : exchange_(std::move(exchange)), layer_(layer), heads_(heads), options_(options) {}

  nn::Inside forward(const nn::Heads& heads, const nn::ForwardContext& step) override {
    nn::AttentionCache* cache = nn::cache_of(step);
    require(!cache || (cache->lengths().empty() && !step.documents.defined()), "parallel",
            "with tokens split by parallel.sequence a cache must be filled by one prompt of one document: got ",
            step.documents.defined() ? "documents" : "a cache that holds tokens",
            "; continue with layers that have whole sequences (DistributedModel::decoding_model)");
    const nn::Sequences& sequences = nn::sequences_of(step);
    require(sequences.lengths.size() <= 1, "parallel",
            "with tokens split by parallel.sequence a row must be one sequence: got ", sequences.lengths.size(),
            "; separate them by documents (nn::ForwardContext::documents)");
    require(step.cut != nullptr, "parallel",
            "a step must have a cut, the tokens of each rank: got none; Layout::with_cut() makes it");
    if (options_.alibi && !slopes_.defined()) slopes_ = nn::alibi_slopes_of(heads, heads_, options_);
    const SequenceMask mask{options_, slopes_, heads.tokens.rows_of(step.documents), step.known_documents,
                            heads.tokens.batch};
    // append() refuses a full cache before anything is sent.
    if (cache) cache->append(layer_, heads.k, heads.v, step);
    return {exchange_->attend({heads.q, heads.k, heads.v}, *step.cut, mask).flatten(2)};
  }

 private:
  std::shared_ptr<const SequenceExchange> exchange_;
  int64_t layer_, heads_;
  nn::AttentionOptions options_;
  at::Tensor slopes_;  // slopes of this rank's heads, made when the heads are known
};

}  // namespace

ops::AttentionMask SequenceMask::between(const std::vector<ops::PositionRun>& queries,
                                         const std::vector<ops::PositionRun>& keys) const {
  ops::AttentionMask mask = nn::mask_of(options, slopes);
  mask.queries = queries, mask.keys = keys;
  if (!documents.defined()) return mask;
  mask.documents = tokens_at(documents, 1, keys);
  mask.query_documents = tokens_at(documents, 1, queries);
  return mask;
}

TokensOfRanks::TokensOfRanks(const nn::SequenceCut& cut, int64_t ranks) {
  for (int64_t rank = 0; rank < ranks; ++rank) {
    runs.push_back(runs_of(cut, rank, ranks));
    longest = std::max(longest, size_of(runs.back()));
    all += size_of(runs.back());
  }
}

at::Tensor TokensOfRanks::padded(const at::Tensor& own, int64_t dim) const {
  const int64_t behind = longest - own.size(dim);
  if (behind == 0) return own;
  std::vector<int64_t> padding(2 * (own.dim() - dim), 0);  // padding in front and at the end, of the last dimension
                                                           // first
  padding.back() = behind;
  return at::constant_pad_nd(own, padding);
}

nn::SequenceCut sequence_cut(const SequenceConfig& config, int64_t tokens, const at::Tensor& documents,
                             const AttentionLayers& layers, int64_t shares) {
  // Neighbours that exchange heads see each other's tokens in any case, so the groups of neighbours are balanced.
  const int64_t ranks = config.size / config.ulysses, together = config.ulysses * shares;
  const bool is_known = documents.defined() && documents.is_cpu() && documents.size(1) == tokens;
  if (is_known) return balanced(documents, layers, ranks, together);
  const bool has_window = std::any_of(layers.begin(), layers.end(), [](const auto& layer) { return layer.window > 0; });
  return has_window ? balanced(at::zeros({1, tokens}, at::kLong), layers, ranks, together)
                    : zigzag(tokens, ranks, together);
}

Layout with_sequence(Layout layout, const SequenceConfig& config) {
  if (config.size == 1) return layout;
  const int64_t shares = layout.mesh->coordinates().size(layout.outside.sequence);
  const std::vector<comm::Mesh::Axis> axes = sequence_axes(config);
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis)
    for (Split* split : {&layout.outside, &layout.inside}) split->sequence.insert(split->sequence.begin(), axis->name);
  if (switches_axes(config)) return SequenceDsp::layout(std::move(layout), config);
  if (is_axial(config)) return SequenceAxial::layout(std::move(layout), config);
  std::shared_ptr<const SequenceExchange> exchange =
      with_sequence_mode(config, [&](auto mode) { return mode.exchange(*layout.mesh, config); });
  const int64_t parts = layout.mesh->coordinates().size(layout.inside.columns);
  const auto layers = std::make_shared<AttentionLayers>();  // attention layers requested so far
  layout.attention = [config, exchange, parts, layers](int64_t layer, const nn::AttentionShape& shape,
                                                       const nn::AttentionOptions& options) {
    check_heads(config, nn::HeadSplit(shape, parts).heads_local);
    layers->push_back(options);
    return std::make_unique<SplitAttention>(exchange, layer, shape.heads, options);
  };
  layout.cut = [config, shares, layers](int64_t tokens, const nn::ForwardContext& step) {
    return sequence_cut(config, tokens, step.documents, *layers, shares);
  };
  return layout;
}

}  // namespace colossal::parallel
