#include "colossal/ops/attention/partial_flash.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "colossal/ops/attention/mask.h"
#include "colossal/ops/device/operators.h"
#include "colossal/ops/dispatch.h"

namespace colossal::ops {
namespace {

constexpr int64_t kMaxPartHead = 256, kPartHeadStep = 8;  // limits of LibTorch's kernel

/// Number of leading keys that the kernel gets, and how many positions each query sees to either side. The kernel
/// aligns the last query to the last key. -1 = no limit.
struct PartWindow {
  int64_t keys, left, right;
};

/// Returns nullopt if the kernel cannot express the mask, or if a query would see no key.
std::optional<PartWindow> part_window(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  if (mask.queries.size() != 1 || mask.keys.size() > 1) return {};
  const int64_t first_key = mask.keys.empty() ? 0 : mask.keys.front().first;
  const int64_t queries = q.size(2), first = mask.queries.front().first - first_key, last = first + queries - 1;
  // With a causal mask, keys after the last query are left out, so that the mask ends at or after the last key.
  const int64_t keys = mask.causal ? std::min(k.size(2), last + 1) : k.size(2), ahead = last - (keys - 1);
  PartWindow window{keys, -1, -1};
  if (mask.causal) {
    if (first < 0) return {};
    window.right = ahead;
  }
  if (mask.window > 0) {
    const int64_t reach = reach_of(mask);
    // the last query sees no key; a negative `left` would mean no limit to the kernel
    if (last - reach > keys - 1 || reach - ahead < 0) return {};
    window.left = reach - ahead;
    if (!mask.causal) {
      if (first + reach < 0) return {};
      window.right = reach + ahead;
      if (window.right < 0) return {};
    }
  }
  if (window.left >= keys + queries) window.left = -1;
  if (window.right >= keys + queries) window.right = -1;
  return window;
}

// Returns heads [B, N, S, D] as [B, S, N, D] with dense features.
at::Tensor part_by_token(const at::Tensor& heads) {
  const at::Tensor tokens = heads.transpose(1, 2);
  return tokens.stride(3) == 1 ? tokens : tokens.contiguous();
}

}  // namespace

bool takes_partial_flash_attention(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  const bool is_narrow = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  if (!is_for_accelerator(q) || !is_narrow || q.scalar_type() != k.scalar_type()) return false;
  if (q.size(3) % kPartHeadStep != 0 || q.size(3) > kMaxPartHead || q.numel() == 0 || k.numel() == 0) return false;
  if (mask.alibi.defined() || mask.soft_cap != 0 || mask.documents.defined()) return false;
  return part_window(q, k, mask) && runs(DeviceOperator::FlashAttention, q.device());
}

PartialAttention partial_flash_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                         const AttentionMask& mask) {
  const PartWindow window = *part_window(q, k, mask);
  const at::Tensor queries = part_by_token(q), keys = part_by_token(k.narrow(2, 0, window.keys)),
                   values = part_by_token(v.narrow(2, 0, window.keys));
  if (q.is_meta()) {  // LibTorch has no kernel of the operator there
    const at::Tensor shape = at::empty(queries.sizes(), q.options());
    return {shape.transpose(1, 2).to(at::kFloat),
            at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat))};
  }
  const auto [out, log_sums, seeds, unused, debug] = at::_flash_attention_forward(
      queries, keys, values, {}, {}, q.size(2), window.keys, /*dropout_p=*/0, /*is_causal=*/false,
      /*return_debug_mask=*/false, scale_of(q, mask), window.left, window.right);
  return {out.transpose(1, 2).to(at::kFloat), log_sums.to(at::kFloat)};
}

AttentionGradients partial_flash_attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                                    const at::Tensor& v, const AttentionMask& mask,
                                                    const PartialAttention& whole) {
  const PartWindow window = *part_window(q, k, mask);
  // the kernel's log_sum of a query that sees no key
  constexpr double kBlind = std::numeric_limits<double>::infinity();
  const at::Tensor log_sums = whole.log_sums.masked_fill(whole.log_sums.eq(-kBlind), kBlind).contiguous();
  const at::Tensor none = at::zeros({2}, q.options().dtype(at::kLong)), no_borders;
  const at::Tensor gradient = part_by_token(dout.to(q.scalar_type())), queries = part_by_token(q),
                   keys = part_by_token(k.narrow(2, 0, window.keys)),
                   values = part_by_token(v.narrow(2, 0, window.keys)),
                   out = part_by_token(whole.out.to(q.scalar_type()));
  const auto gradients = [&]() -> std::tuple<at::Tensor, at::Tensor, at::Tensor> {
    if (q.is_meta())  // LibTorch has no kernel of the operator there
      return {at::empty(queries.sizes(), q.options()), at::empty(keys.sizes(), k.options()),
              at::empty(values.sizes(), v.options())};
    return at::_flash_attention_backward(gradient, queries, keys, values, out, log_sums, no_borders, no_borders,
                                         q.size(2), window.keys, /*dropout_p=*/0, /*is_causal=*/false, none, none,
                                         scale_of(q, mask), window.left, window.right);
  };
  const auto [dq, dk, dv] = gradients();
  const auto of_all = [&](const at::Tensor& d) {  // keys that were left out get zero gradients
    return at::constant_pad_nd(d.transpose(1, 2).to(at::kFloat), {0, 0, 0, k.size(2) - window.keys});
  };
  return {dq.transpose(1, 2).to(at::kFloat), of_all(dk), of_all(dv)};
}

}  // namespace colossal::ops
