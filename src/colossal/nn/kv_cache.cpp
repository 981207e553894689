#include "colossal/nn/kv_cache.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"

namespace colossal::nn {

// Returns the tokens of each sequence including the tokens of a step.
std::vector<int64_t> KvCache::after(const Sequences& sequences, int64_t tokens) const {
  std::vector<int64_t> all = sequences.in(tokens);
  require(lengths_.empty() || lengths_.size() == all.size(), "kv_cache", "every step must have the cache's ",
          lengths_.size(), " sequences, some with 0 tokens: got ", all.size());
  for (size_t i = 0; i < lengths_.size(); ++i) all[i] += lengths_[i];
  const int64_t longest = *std::max_element(all.begin(), all.end());
  require(longest <= capacity_, "kv_cache", "the sequence must fit the cache: got ", longest, " tokens, capacity ",
          capacity_);
  return all;
}

KeysValues KvCache::append(int64_t layer, const at::Tensor& k, const at::Tensor& v, const ForwardContext& step) {
  require(!step.cut, "kv_cache",
          "a step must have all tokens of each sequence: got some of them, of a sequence that is split over ranks; use "
          "the cache that DistributedModel::make_cache returns");
  const int64_t rows = k.size(0);
  const std::vector<int64_t> added = sequences_of(step).in(k.size(1)), all = after(sequences_of(step), k.size(1));
  const auto count = static_cast<int64_t>(all.size());
  if (layer >= static_cast<int64_t>(keys_.size())) keys_.resize(layer + 1), values_.resize(layer + 1);
  if (!keys_[layer].defined()) {
    const std::vector<int64_t> shape{rows * count, capacity_, k.size(2), k.size(3)};
    // Zero-filled, because masked values are multiplied by 0, and 0 * NaN would be NaN.
    keys_[layer] = at::zeros(shape, k.options().requires_grad(false));
    if (v.defined()) values_[layer] = at::zeros(shape, v.options().requires_grad(false));
  }
  require(keys_[layer].size(0) == rows * count, "kv_cache", "every step must have as many rows as the first, ",
          keys_[layer].size(0) / count, ": got ", rows);
  const auto put = [&](const at::Tensor& store, const at::Tensor& x) {
    const at::Tensor by_row = store.unflatten(0, {rows, count});
    for (int64_t i = 0, start = 0; i < count; start += added[i++])
      by_row.select(1, i).narrow(1, all[i] - added[i], added[i]).copy_(x.narrow(1, start, added[i]));
    return store.narrow(1, 0, *std::max_element(all.begin(), all.end()));
  };
  KeysValues held{put(keys_[layer], k), {}, {}};
  held.v = v.defined() ? put(values_[layer], v) : held.k;
  for (int64_t row = 0; row < rows; ++row) held.lengths.insert(held.lengths.end(), all.begin(), all.end());
  return held;
}

void KvCache::advance(const ForwardContext& step, int64_t tokens) { lengths_ = after(sequences_of(step), tokens); }

KeysValues EncoderDecoderCache::append(int64_t layer, const at::Tensor& k, const at::Tensor& v,
                                       const ForwardContext& step) {
  require(sequences_of(step).lengths.empty(), "kv_cache",
          "an encoder-decoder model decodes one sequence per row: got several; put each into a separate row or pass");
  if (layer >= static_cast<int64_t>(keys_.size())) keys_.resize(layer + 1), values_.resize(layer + 1);
  at::Tensor &keys = keys_[layer], &values = values_[layer];
  require(!keys.defined() || keys.size(0) == k.size(0), "kv_cache", "every step must have as many rows as the first, ",
          keys.defined() ? keys.size(0) : 0, ": got ", k.size(0));
  if (!keys.defined())
    keys = k, values = v;
  else if (k.size(1) > 0)
    keys = at::cat({keys, k}, 1), values = at::cat({values, v}, 1);
  return {keys, values, std::vector<int64_t>(static_cast<size_t>(keys.size(0)), keys.size(1))};
}

void EncoderDecoderCache::advance(const ForwardContext& step, int64_t tokens) {
  const SourceTokens* source = step.parts.find<SourceTokens>();
  require(source != nullptr, "kv_cache",
          "a step must set nn::SourceTokens, the number of source tokens in it (0 if the cache holds them "
          "already)");
  const int64_t held = (lengths_.empty() ? 0 : lengths_.front()) + tokens - source->count;
  require(held <= capacity_, "kv_cache", "the target must fit the cache: got ", held, " tokens, capacity ", capacity_);
  lengths_ = {held};
}

}  // namespace colossal::nn
