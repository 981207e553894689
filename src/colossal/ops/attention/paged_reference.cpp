#include "colossal/ops/attention/paged_reference.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "colossal/base/error.h"
#include "colossal/ops/attention/paged_positions.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/products/row_codes.h"
#include "colossal/ops/soft_cap.h"

namespace colossal::ops {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

/// Returns values of the host as a tensor [n] on the device of the pages.
at::Tensor numbers_there(const std::vector<int64_t>& numbers, const Pages& pages) {
  return at::tensor(numbers, at::kLong).to(pages.v.device());
}

/// Sequences with equally many queries.
struct PagedGroup {
  std::vector<size_t> sequences;
  std::vector<int64_t> first;  ///< index of each sequence's first query among all queries
  int64_t queries = 0;
};

std::vector<PagedGroup> groups_of(const std::vector<int64_t>& lengths) {
  std::map<int64_t, PagedGroup> groups;
  int64_t first = 0;
  for (size_t i = 0; i < lengths.size(); first += lengths[i++]) {
    if (lengths[i] == 0) continue;
    PagedGroup& group = groups[lengths[i]];
    group.sequences.push_back(i), group.first.push_back(first);
    group.queries = lengths[i];
  }
  std::vector<PagedGroup> all;
  for (auto& [length, group] : groups) all.push_back(std::move(group));
  return all;
}

PagePositions positions_of(const Pages& pages, const PagedSequence& s) {
  return {pages.tokens(), s.first_page, s.page_stride};
}

/// Keys [S, N_kv, D, K] and values [S, N_kv, K, D] of a group, and the keys' positions [S, K]. K is the number of keys
/// in the pages of the longest sequence.
struct GatheredPages {
  GatheredPages(const Pages& pages, const std::vector<PagedSequence>& sequences, const PagedGroup& group,
                at::ScalarType wide) {
    const int64_t tokens = pages.tokens();
    const auto count = static_cast<int64_t>(group.sequences.size());
    int64_t most = 0;
    for (const size_t i : group.sequences) {
      const int64_t keys = positions_of(pages, sequences[i]).keys_before(sequences[i].held + group.queries);
      most = std::max(most, (keys + tokens - 1) / tokens);
    }
    std::vector<int64_t> table, places;
    for (const size_t i : group.sequences) {
      const PagePositions own = positions_of(pages, sequences[i]);
      for (int64_t p = 0; p < most; ++p)  // any page serves as padding, because its keys are masked
        table.push_back(p < static_cast<int64_t>(sequences[i].pages.size()) ? sequences[i].pages[p] : 0);
      for (int64_t key = 0; key < most * tokens; ++key) places.push_back(own.position_of(key));
    }
    const at::Tensor ids = numbers_there(table, pages);
    const auto gathered = [&](const at::Tensor& x) {
      return x.index_select(0, ids).unflatten(0, {count, most}).to(wide);
    };
    v = gathered(pages.v.narrow(3, 0, pages.size));
    if (pages.has_codes()) v.mul_(gathered(pages.v_scales).unsqueeze(4));
    k = pages.are_joint() ? v.transpose(3, 4) : gathered(pages.k);
    if (pages.k_scales.defined()) k.mul_(gathered(pages.k_scales).unsqueeze(3));
    k = k.permute({0, 2, 3, 1, 4}).flatten(3);
    v = v.permute({0, 2, 1, 3, 4}).flatten(2, 3);
    positions = numbers_there(places, pages).unflatten(0, {count, most * tokens});
  }
  at::Tensor k, v, positions;
};

/// Computes attention of a group's queries [S, N_kv, G, L, D] at positions [S, L].
PartialAttention attend(const at::Tensor& q, const at::Tensor& positions, const GatheredPages& keys,
                        const PagedMask& mask) {
  const int64_t kv_heads = q.size(1), group = q.size(2), length = q.size(3);
  const double scale = mask.scale == 0 ? 1 / std::sqrt(static_cast<double>(q.size(4))) : mask.scale;
  at::Tensor scores = soft_capped(at::matmul(q.flatten(2, 3) * scale, keys.k), mask.soft_cap)
                          .unflatten(2, {group, length});  // [S, N_kv, G, L, K]
  const at::Tensor distance =
      (positions.unsqueeze(-1) - keys.positions.unsqueeze(1)).unsqueeze(1).unsqueeze(1);  // [S, 1, 1, L, K]
  if (mask.alibi.defined())
    scores = scores - mask.alibi.to(scores.options()).view({kv_heads, group, 1, 1}) * distance.to(scores.scalar_type());
  at::Tensor hidden = distance.lt(0);
  if (mask.window > 0) hidden = hidden.logical_or(distance.ge(mask.window));
  scores = scores.masked_fill(hidden, kNothing);
  const at::Tensor log_sums = scores.logsumexp(-1);
  // If a query sees no key, log_sum is -infinity; subtracting 0 instead gives it weights of 0 and not NaN.
  const at::Tensor weights = (scores - log_sums.masked_fill(log_sums.eq(kNothing), 0).unsqueeze(-1)).exp();
  // Values after the last query are set to 0, because a weight of 0 times NaN is NaN.
  const at::Tensor behind = keys.positions.gt(positions.select(1, length - 1).unsqueeze(-1)).unsqueeze(1).unsqueeze(-1);
  const at::Tensor out = at::matmul(weights.flatten(2, 3), keys.v.masked_fill(behind, 0));
  return {out.unflatten(2, {group, length}), log_sums};
}

}  // namespace

void check_paged_tokens(const Pages& pages, const std::vector<PagedSequence>& sequences, const at::Tensor& tokens,
                        const std::vector<int64_t>& lengths) {
  require((pages.has_codes() || tokens.scalar_type() == pages.dtype()) && tokens.device() == pages.v.device(),
          "paged_attention", "pages and tokens must be of one dtype on one device: got ",
          toString(tokens.scalar_type()), " on ", tokens.device().str(), " and pages of ", toString(pages.dtype()),
          " on ", pages.v.device().str());
  require(lengths.size() == sequences.size() && tokens.dim() == 3 && tokens.size(2) == pages.size &&
              std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) == tokens.size(0),
          "paged_attention", "tokens must be [T, heads, ", pages.size, "] with a length for each of ", sequences.size(),
          " sequences, T together");
  for (size_t i = 0; i < sequences.size(); ++i) {
    const PagedSequence& s = sequences[i];
    require(s.first_page >= 0 && s.page_stride >= 1, "paged_attention",
            "first_page of a sequence must be at least 0 and page_stride at least 1: got ", s.first_page, " and ",
            s.page_stride);
    require(lengths[i] >= 0 && s.held >= 0 &&
                positions_of(pages, s).keys_before(s.held + lengths[i]) <=
                    static_cast<int64_t>(s.pages.size()) * pages.tokens(),
            "paged_attention", "a sequence must have pages for all its tokens: got ", s.pages.size(), " of ",
            pages.tokens(), " for ", s.held, " and ", lengths[i]);
    for (const int32_t page : s.pages)
      require(page >= 0 && page < pages.count(), "paged_attention", "pages must be among ", pages.count(), ": got ",
              page);
  }
}

void check_written_tokens(const Pages& pages, const std::vector<PagedSequence>& sequences, const at::Tensor& k,
                          const at::Tensor& v, const std::vector<int64_t>& lengths) {
  require(v.defined() != pages.are_joint(), "paged_attention",
          "tokens must have values, except for joint pages, which store each key as its value: got ",
          v.defined() ? "values for joint pages" : "none");
  for (const at::Tensor* x : {&k, &v}) {
    if (!x->defined()) continue;
    check_paged_tokens(pages, sequences, *x, lengths);
    require(x->size(1) == pages.kv_heads(), "paged_attention", "keys and values must have the pages' ",
            pages.kv_heads(), " heads: got ", k.size(1), " and ", v.defined() ? v.size(1) : k.size(1));
  }
}

void write_pages_reference(Pages& pages, const std::vector<PagedSequence>& sequences, const at::Tensor& k,
                           const at::Tensor& v, const std::vector<int64_t>& lengths) {
  check_written_tokens(pages, sequences, k, v, lengths);
  const int64_t tokens = pages.tokens();
  std::vector<int64_t> rows, page, slot;
  int64_t row = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const PagePositions own = positions_of(pages, sequences[i]);
    for (int64_t t = 0; t < lengths[i]; ++t, ++row) {
      const int64_t position = sequences[i].held + t;
      if (!own.has(position)) continue;
      const int64_t key = own.keys_before(position);
      rows.push_back(row), page.push_back(sequences[i].pages[key / tokens]), slot.push_back(key % tokens);
    }
  }
  if (rows.empty()) return;
  const at::Tensor own = numbers_there(rows, pages);
  const c10::List<std::optional<at::Tensor>> places{numbers_there(page, pages), numbers_there(slot, pages)};
  const auto put = [&](const at::Tensor& where, const at::Tensor& where_scales, const at::Tensor& x) {
    if (!pages.has_codes()) {
      where.index_put_(places, x);
      return;
    }
    const RowCodes coded = encode_rows(x, pages.dtype());
    where.view(at::kByte).index_put_(places, coded.codes.view(at::kByte));
    where_scales.transpose(1, 2).index_put_(places, coded.scales);
  };
  if (!pages.are_joint()) put(pages.k.permute({0, 3, 1, 2}), pages.k_scales, k.index_select(0, own));
  put(pages.v.narrow(3, 0, pages.size).transpose(1, 2), pages.v_scales,
      (pages.are_joint() ? k : v).index_select(0, own));
}

PartialAttention paged_attention_reference(const at::Tensor& q, const Pages& pages,
                                           const std::vector<PagedSequence>& sequences,
                                           const std::vector<int64_t>& lengths, const PagedMask& mask) {
  check_paged_tokens(pages, sequences, q, lengths);
  const int64_t heads = q.size(1), kv_heads = pages.kv_heads();
  require(heads % kv_heads == 0, "paged_attention", "heads must be a multiple of the pages' ", kv_heads, ": got ",
          heads);
  require(!mask.alibi.defined() || mask.alibi.numel() == heads, "paged_attention",
          "there must be one slope per head: got ", mask.alibi.defined() ? mask.alibi.numel() : 0, " of ", heads);
  const auto wide = q.options().requires_grad(false).dtype(wide_type(q));
  const PartialAttention all{at::zeros({q.size(0), heads, pages.size}, wide),
                             at::full({q.size(0), heads}, kNothing, wide)};
  for (const PagedGroup& group : groups_of(lengths)) {
    std::vector<int64_t> rows, positions;
    for (size_t s = 0; s < group.sequences.size(); ++s)
      for (int64_t t = 0; t < group.queries; ++t)
        rows.push_back(group.first[s] + t), positions.push_back(sequences[group.sequences[s]].held + t);
    const at::Tensor own = numbers_there(rows, pages);
    const std::vector<int64_t> each{static_cast<int64_t>(group.sequences.size()), group.queries};
    const at::Tensor queries = q.index_select(0, own).to(wide.dtype()).unflatten(0, each).unflatten(2, {kv_heads, -1});
    const PartialAttention part = attend(queries.permute({0, 2, 3, 1, 4}), numbers_there(positions, pages).view(each),
                                         GatheredPages(pages, sequences, group, wide_type(q)), mask);
    // [S, N_kv, G, L, ..] -> [S L, N, ..]
    all.out.index_copy_(0, own, part.out.permute({0, 3, 1, 2, 4}).flatten(2, 3).flatten(0, 1));
    all.log_sums.index_copy_(0, own, part.log_sums.permute({0, 3, 1, 2}).flatten(2, 3).flatten(0, 1));
  }
  return all;
}

}  // namespace colossal::ops
