#include "colossal/ops/attention/flash.h"

#include <ATen/ATen.h>

#include "colossal/ops/attention/mask.h"
#include "colossal/ops/attention/packed.h"
#include "colossal/ops/device/operators.h"
#include "colossal/ops/dispatch.h"

namespace colossal::ops {
namespace {

constexpr int64_t kMaxHead = 256, kHeadStep = 8;  // limits of LibTorch's kernel

bool is_packed(const AttentionMask& mask) { return mask.documents.defined() || !mask.lengths.empty(); }

// Returns heads [B, N, S, D] as [B, S, N, D] with dense features.
at::Tensor by_token(const at::Tensor& heads) {
  const at::Tensor tokens = heads.transpose(1, 2);
  return tokens.stride(3) == 1 ? tokens : tokens.contiguous();
}

}  // namespace

bool takes_flash_attention(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  const bool is_narrow = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  if (!is_for_accelerator(q) || !is_narrow || q.scalar_type() != k.scalar_type()) return false;
  if (q.size(3) % kHeadStep != 0 || q.size(3) > kMaxHead || q.numel() == 0 || k.numel() == 0) return false;
  if (mask.alibi.defined() || mask.soft_cap != 0 || !mask.queries.empty()) return false;
  return (!is_packed(mask) || is_packable(q, mask)) &&
         runs(DeviceOperator::FlashAttention, q.device());
}

FlashWindow flash_window(const AttentionMask& mask) {
  const int64_t reach = mask.window > 0 ? reach_of(mask) : -1;
  return {reach, mask.causal ? -1 : reach};
}

at::Tensor flash_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask,
                           double scale) {
  if (is_packed(mask)) return packed_attention(q, k, v, mask, scale);
  const FlashWindow window = flash_window(mask);
  return std::get<0>(at::_flash_attention_forward(by_token(q), by_token(k), by_token(v), {}, {}, q.size(2), k.size(2),
                                                  /*dropout_p=*/0, mask.causal, /*return_debug_mask=*/false, scale,
                                                  window.left, window.right))
      .transpose(1, 2);
}

}  // namespace colossal::ops
