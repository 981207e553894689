#include "colossal/ops/packed_attention.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/ops/attention_mask.h"

namespace colossal::ops {
namespace {

constexpr int64_t kLargestHead = 256, kHeadStep = 8;  // of LibTorch's kernel

/// Where sequences begin among the tokens of all rows, and where the last one ends: int32 [sequences + 1], there.
struct Sequences {
  at::Tensor borders;
  int64_t longest;
};

Sequences rows_of(const at::Tensor& x) {
  const int64_t rows = x.size(0), length = x.size(2);
  const auto options = x.options().dtype(at::kInt).requires_grad(false);
  return {at::arange(0, (rows + 1) * length, std::max<int64_t>(length, 1), options), length};
}

Sequences documents_of(const at::Tensor& documents, const at::Tensor& q) {
  const std::vector<int32_t> borders = *document_borders(documents);
  int64_t longest = 0;
  for (size_t i = 1; i < borders.size(); ++i) longest = std::max<int64_t>(longest, borders[i] - borders[i - 1]);
  return {brought_to(q, at::tensor(borders, at::kInt)), longest};
}

// [B, N, S, D] -> [B S, N, D]: a view where heads lie as projections give them.
at::Tensor tokens_of(const at::Tensor& heads) {
  const at::Tensor tokens = heads.transpose(1, 2).flatten(0, 1);
  return tokens.stride(2) == 1 ? tokens : tokens.contiguous();
}

}  // namespace

bool is_packable(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  const bool is_narrow = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  if (q.is_cpu() || q.is_meta() || !is_narrow || q.scalar_type() != k.scalar_type()) return false;
  if (q.size(3) % kHeadStep != 0 || q.size(3) > kLargestHead || q.numel() == 0 || k.numel() == 0) return false;
  if (mask.alibi.defined() || mask.soft_cap != 0 || !mask.lengths.empty() || !mask.queries.empty()) return false;
  if (!mask.documents.defined()) return true;
  return mask.documents.is_cpu() && q.size(2) == k.size(2) && document_borders(mask.documents).has_value();
}

at::Tensor packed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask,
                            double scale) {
  const bool has_documents = mask.documents.defined();
  const Sequences queries = has_documents ? documents_of(mask.documents, q) : rows_of(q);
  const Sequences keys = has_documents ? queries : rows_of(k);
  // The kernel counts from the last key, as we do, and a negative reach is none.
  const int64_t reach = mask.window > 0 ? reach_of(mask) : -1, ahead = mask.causal ? 0 : reach;
  const at::Tensor out = std::get<0>(at::_flash_attention_forward(
      tokens_of(q), tokens_of(k), tokens_of(v), queries.borders, keys.borders, queries.longest, keys.longest,
      /*dropout_p=*/0, mask.causal, /*return_debug_mask=*/false, scale, reach, ahead));
  return out.unflatten(0, {q.size(0), q.size(2)}).transpose(1, 2);
}

}  // namespace colossal::ops
