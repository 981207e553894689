#include "colossal/models/fused_heads.h"

#include "colossal/nn/attention_shape.h"

namespace colossal::models {

std::vector<nn::ExternalRows> heads_in_groups(const std::string& tensor, const nn::AttentionShape& s) {
  if (s.kv_heads == 1) return {tensor};  // already in our order, q, k, v
  const int64_t q = s.heads / s.kv_heads * s.head_dim, group = q + 2 * s.head_dim;
  std::vector<nn::ExternalRows> rows;
  for (int64_t i = 0; i < s.kv_heads; ++i) rows.emplace_back(tensor, i * group, q);
  for (const int64_t behind : {q, q + s.head_dim})
    for (int64_t i = 0; i < s.kv_heads; ++i) rows.emplace_back(tensor, i * group + behind, s.head_dim);
  return rows;
}

std::vector<nn::ExternalRows> heads_of_pairs(const std::string& tensor, int64_t heads, int64_t size, int64_t turned) {
  std::vector<nn::ExternalRows> rows;
  for (int64_t head = 0; head < heads; ++head) {
    for (const int64_t of_pair : {0, 1}) rows.emplace_back(tensor, head * size + of_pair, turned / 2, 2);
    if (turned < size) rows.emplace_back(tensor, head * size + turned, size - turned);
  }
  return rows;
}

}  // namespace colossal::models
