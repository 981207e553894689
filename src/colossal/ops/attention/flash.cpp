#include "colossal/ops/attention/flash.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "colossal/ops/attention/mask.h"
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

// Returns heads [B, N, S, D] as [B S, N, D]. The result is a view if the heads are stored as [B, S, N, D] without gaps
// between rows, as projections return them; otherwise a copy.
at::Tensor tokens_of(const at::Tensor& heads) {
  const at::Tensor tokens = heads.transpose(1, 2).flatten(0, 1);
  return tokens.stride(2) == 1 ? tokens : tokens.contiguous();
}

at::Tensor of_documents(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask,
                        double scale) {
  const DocumentRuns tokens = mask.runs ? *mask.runs : document_runs(mask.documents, q.device());
  const FlashWindow window = flash_window(mask);
  return std::get<0>(at::_flash_attention_forward(
      tokens_of(q), tokens_of(k), tokens_of(v), tokens.borders, tokens.borders, tokens.longest, tokens.longest,
      /*dropout_p=*/0, mask.causal, /*return_debug_mask=*/false, scale, window.left, window.right));
}

/// Tokens of all rows in one tensor [.., N, D]. It includes the storage between the end of a row and the start of the
/// next one, which attention ignores.
struct Rows {
  at::Tensor tokens;
  int64_t step;  // distance between the starts of two rows, in tokens
};

Rows rows_of(const at::Tensor& heads) {
  const int64_t rows = heads.size(0), length = heads.size(2), token = heads.stride(2);
  const bool is_cut = heads.stride(3) != 1 || token == 0 || heads.stride(0) % token != 0;
  const int64_t step = is_cut || rows == 1 ? length : heads.stride(0) / token;
  if (is_cut || step < length) return {tokens_of(heads), length};
  return {heads.as_strided({(rows - 1) * step + length, heads.size(1), heads.size(3)}, {token, heads.stride(1), 1},
                           heads.storage_offset()),
          step};
}

at::Tensor of_lengths(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask,
                      double scale) {
  Rows keys = rows_of(k), values = rows_of(v);
  if (keys.step != values.step) keys = {tokens_of(k), k.size(2)}, values = {tokens_of(v), v.size(2)};
  const int64_t rows = q.size(0), queries = q.size(2);
  // One copy to the device for three arrays: borders of queries, borders of keys, and number of valid keys of each row.
  std::vector<int32_t> numbers;
  const auto put = [&](int64_t number) { numbers.push_back(static_cast<int32_t>(number)); };
  for (int64_t row = 0; row <= rows; ++row) put(row * queries);
  for (int64_t row = 0; row < rows; ++row) put(row * keys.step);
  put(keys.tokens.size(0));
  for (const int64_t length : mask.lengths) put(length);
  const at::Tensor there = brought_to(q, at::tensor(numbers, at::kInt));
  const FlashWindow window = flash_window(mask);
  return std::get<0>(at::_flash_attention_forward(
      tokens_of(q), keys.tokens, values.tokens, there.narrow(0, 0, rows + 1), there.narrow(0, rows + 1, rows + 1),
      queries, *std::max_element(mask.lengths.begin(), mask.lengths.end()), /*dropout_p=*/0, mask.causal,
      /*return_debug_mask=*/false, scale, window.left, window.right, there.narrow(0, 2 * rows + 2, rows)));
}

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

}  // namespace

bool takes_flash_attention(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  const bool is_narrow = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  if (!is_for_accelerator(q) || !is_narrow || q.scalar_type() != k.scalar_type()) return false;
  if (q.size(3) % kHeadStep != 0 || q.size(3) > kMaxHead || q.numel() == 0 || k.numel() == 0) return false;
  if (mask.alibi.defined() || mask.soft_cap != 0 || !mask.queries.empty()) return false;
  return (!is_packed(mask) || is_packable(q, mask)) && runs(DeviceOperator::FlashAttention, q.device());
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

bool is_packable(const at::Tensor& q, const AttentionMask& mask) {
  if (!mask.lengths.empty()) return !mask.documents.defined() && !at::GradMode::is_enabled();
  if (!mask.documents.is_cpu() || q.size(2) != mask.documents.size(1)) return false;
  return mask.runs ? mask.runs->borders.defined() : document_borders(mask.documents).has_value();
}

at::Tensor packed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask,
                            double scale) {
  const at::Tensor out = mask.lengths.empty() ? of_documents(q, k, v, mask, scale) : of_lengths(q, k, v, mask, scale);
  return out.unflatten(0, {q.size(0), q.size(2)}).transpose(1, 2);
}

bool takes_partial_flash_attention(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  const bool is_narrow = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  if (!is_for_accelerator(q) || !is_narrow || q.scalar_type() != k.scalar_type()) return false;
  if (q.size(3) % kHeadStep != 0 || q.size(3) > kMaxHead || q.numel() == 0 || k.numel() == 0) return false;
  if (mask.alibi.defined() || mask.soft_cap != 0 || mask.documents.defined()) return false;
  return part_window(q, k, mask) && runs(DeviceOperator::FlashAttention, q.device());
}

PartialAttention partial_flash_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                         const AttentionMask& mask) {
  const PartWindow window = *part_window(q, k, mask);
  const at::Tensor queries = by_token(q), keys = by_token(k.narrow(2, 0, window.keys)),
                   values = by_token(v.narrow(2, 0, window.keys));
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
  const at::Tensor gradient = by_token(dout.to(q.scalar_type())), queries = by_token(q),
                   keys = by_token(k.narrow(2, 0, window.keys)), values = by_token(v.narrow(2, 0, window.keys)),
                   out = by_token(whole.out.to(q.scalar_type()));
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
