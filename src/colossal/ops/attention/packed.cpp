#include "colossal/ops/attention/packed.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "colossal/ops/attention/document_runs.h"
#include "colossal/ops/attention/flash.h"
#include "colossal/ops/attention/mask.h"

namespace colossal::ops {
namespace {

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

}  // namespace

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

}  // namespace colossal::ops
