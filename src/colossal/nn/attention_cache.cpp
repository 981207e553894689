#include "colossal/nn/attention_cache.h"

#include <algorithm>
#include <numeric>

#include "colossal/base/error.h"
#include "colossal/nn/forward_context.h"

namespace colossal::nn {

std::vector<int64_t> Sequences::in(int64_t tokens) const {
  if (lengths.empty()) return {tokens};
  const bool sound = std::all_of(lengths.begin(), lengths.end(), [](int64_t n) { return n >= 0; });
  const int64_t sum = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  require(sound && sum == tokens, "attention", "the lengths of a row's ", lengths.size(),
          " sequences must be 0 or more and add up to its ", tokens, " tokens: got ", sum);
  return lengths;
}

AttentionCache* cache_of(const ForwardContext& step) {
  const Decoding* decoding = step.parts.find<Decoding>();
  return decoding ? decoding->cache : nullptr;
}

const Sequences& sequences_of(const ForwardContext& step) {
  static const Sequences whole_rows{};
  const Sequences* sequences = step.parts.find<Sequences>();
  return sequences ? *sequences : whole_rows;
}

}  // namespace colossal::nn
