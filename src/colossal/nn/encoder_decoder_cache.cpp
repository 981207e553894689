#include "colossal/nn/encoder_decoder_cache.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"

namespace colossal::nn {

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
