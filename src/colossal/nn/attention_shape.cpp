#include "colossal/nn/attention_shape.h"

#include "colossal/base/error.h"

namespace colossal::nn {

HeadSplit::HeadSplit(const AttentionShape& s, int64_t parts) {
  require(s.heads > 0 && s.kv_heads > 0 && s.head_dim > 0 && s.heads % s.kv_heads == 0, "model",
          "heads must be a positive multiple of kv_heads: got heads ", s.heads, ", kv_heads ", s.kv_heads);
  const int64_t group = s.heads / s.kv_heads;
  if (parts > s.kv_heads && parts % s.kv_heads == 0 && s.heads % parts == 0) {
    q = {s.heads * s.head_dim, s.head_dim};
    kv = {s.kv_heads * s.head_dim, s.head_dim, true};
    heads_local = s.heads / parts;
    kv_heads_local = 1;
    kv_copies = parts / s.kv_heads;
  } else {
    q = {s.heads * s.head_dim, group * s.head_dim};
    kv = {s.kv_heads * s.head_dim, s.head_dim};
    kv_heads_local = (s.kv_heads + parts - 1) / parts;
    heads_local = kv_heads_local * group;
    kv_copies = 1;
  }
}

}  // namespace colossal::nn
