#include "colossal/ops/attention/mask.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "colossal/base/error.h"
#include "colossal/ops/dispatch.h"
#include "colossal/tensor/device_meant.h"

namespace colossal::ops {
namespace {

// Positions of the keys: ascending runs.
class KeyPlaces {
 public:
  KeyPlaces(const AttentionMask& mask, int64_t keys) : runs_(mask.keys) {
    if (runs_.empty()) runs_ = {{0, keys}};
    for (const PositionRun& run : runs_) {
      counts_.push_back(size_);
      size_ += run.size;
    }
  }
  int64_t first() const { return runs_.front().first; }
  int64_t size() const { return size_; }
  const std::vector<PositionRun>& runs() const { return runs_; }
  /// Returns the number of keys at positions lower than `position`.
  int64_t before(int64_t position) const {
    const auto behind =
        std::partition_point(runs_.begin(), runs_.end(), [&](const PositionRun& run) { return run.first < position; });
    if (behind == runs_.begin()) return 0;
    const auto last = static_cast<size_t>(behind - runs_.begin()) - 1;
    return counts_[last] + std::min(position - runs_[last].first, runs_[last].size);
  }

 private:
  std::vector<PositionRun> runs_;
  std::vector<int64_t> counts_;  // keys before each run
  int64_t size_ = 0;
};

// Checks the runs of positions and the document ids of a mask that gives `queries`.
void check_places(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  int64_t said = 0;
  for (const PositionRun& run : mask.queries) said += run.size;
  require(said == q.size(2) && mask.lengths.empty(), "attention", "the mask's runs must be the positions of the ",
          q.size(2), " queries, without lengths: got ", said, " positions and ", mask.lengths.size(), " lengths");
  int64_t keys = 0;
  for (int64_t end = std::numeric_limits<int64_t>::min(); const PositionRun& run : mask.keys) {
    require(run.first >= end, "attention", "the runs of the mask's keys must ascend: got one at ", run.first,
            " after one that ends at ", end);
    keys += run.size, end = run.first + run.size;
  }
  require(mask.keys.empty() || keys == k.size(2), "attention", "the mask's runs must be the positions of the ",
          k.size(2), " keys: got ", keys, " positions");
  require(mask.query_documents.defined() == mask.documents.defined() &&
              (!mask.documents.defined() ||
               (mask.query_documents.dim() == 2 && mask.query_documents.size(0) == q.size(0) &&
                mask.query_documents.size(1) == q.size(2) && mask.query_documents.scalar_type() == at::kLong)),
          "attention",
          "if the mask has positions of queries and documents of keys, the documents of queries must be int64 "
          "[B,S]: got ",
          mask.query_documents.defined() ? mask.query_documents.sizes() : at::IntArrayRef());
}

at::Tensor aranges(const std::vector<PositionRun>& runs, int64_t origin, const at::TensorOptions& options) {
  std::vector<at::Tensor> each;
  for (const PositionRun& run : runs)
    each.push_back(at::arange(run.first - origin, run.first - origin + run.size, options));
  return each.size() == 1 ? each.front() : at::cat(each);
}

// Returns the positions of the queries, counted from the first key: [rows, S]. rows is 1 unless the rows have
// `lengths`.
at::Tensor query_positions(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  const auto options = q.options().dtype(at::kLong).requires_grad(false);
  if (!mask.queries.empty()) return aranges(mask.queries, KeyPlaces(mask, k.size(2)).first(), options).unsqueeze(0);
  const at::Tensor ends = mask.lengths.empty() ? at::full({1}, k.size(2), options)  // on the device: no transfer
                                               : brought_to(q, at::tensor(mask.lengths, at::kLong));
  return (ends.unsqueeze(1) - q.size(2)) + at::arange(q.size(2), options);
}

// Returns key position - query position: [rows, 1, S, T].
at::Tensor distances(const at::Tensor& k, const AttentionMask& mask, const at::Tensor& positions) {
  const KeyPlaces keys(mask, k.size(2));
  return (aranges(keys.runs(), keys.first(), positions.options()) - positions.unsqueeze(2)).unsqueeze(1);
}

struct Span {
  int64_t from, to;
};

// Returns which of the first `length` keys a query at `position` may see, documents ignored.
Span seen_from(int64_t position, int64_t length, const KeyPlaces& keys, const AttentionMask& mask) {
  Span seen{0, length};
  if (mask.causal) seen.to = keys.before(position + 1);
  if (mask.window > 0) seen.from = keys.before(position - reach_of(mask));
  if (mask.window > 0 && !mask.causal) seen.to = keys.before(position + mask.window + 1);
  return {std::min(seen.from, length), std::clamp(seen.to, std::min(seen.from, length), length)};
}

// Calls body(index, position) for each query of a row with `length` keys.
template <class Body>
void for_queries(const AttentionMask& mask, int64_t queries, int64_t length, const Body& body) {
  if (mask.queries.empty()) {
    for (int64_t i = 0; i < queries; ++i) body(i, length - queries + i);
    return;
  }
  int64_t i = 0;
  for (const PositionRun& run : mask.queries)
    for (int64_t at = 0; at < run.size; ++at) body(i++, run.first + at);
}

// For each document id, the span from its first to its last key.
struct DocumentSpans {
  std::unordered_map<int64_t, Span> of;
  bool are_apart = true;  ///< false if documents interleave; a span then also holds keys of other documents
};

DocumentSpans document_spans(const int64_t* documents, int64_t keys) {
  DocumentSpans spans;
  for (int64_t from = 0, to = 0; from < keys; from = to) {
    while (to < keys && documents[to] == documents[from]) ++to;
    const auto [place, is_new] = spans.of.try_emplace(documents[from], Span{from, to});
    if (!is_new) place->second.to = to, spans.are_apart = false;
  }
  return spans;
}

// Returns the documents as a contiguous tensor; undefined if there are none or they are not on the host.
at::Tensor host_rows(const at::Tensor& documents) {
  return documents.defined() && documents.is_cpu() ? documents.contiguous() : at::Tensor();
}

// Calls body(row, query, position, visible keys) for each query of the first `rows` rows. Returns true if documents
// interleave, because the spans then also contain keys that the query may not see.
template <class Body>
bool for_spans(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask, int64_t rows, const Body& body) {
  const int64_t queries = q.size(2);
  const KeyPlaces keys(mask, k.size(2));
  const at::Tensor documents = host_rows(mask.documents), query_documents = host_rows(mask.query_documents);
  const bool are_known = documents.defined() && (mask.queries.empty() || query_documents.defined());
  bool interleave = false;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t length = mask.lengths.empty() ? keys.size() : mask.lengths[row];
    const int64_t *ids = are_known ? pointer<int64_t>(documents) + row * keys.size() : nullptr,
                  *own = !ids || mask.queries.empty() ? ids : pointer<int64_t>(query_documents) + row * queries;
    const DocumentSpans spans = ids ? document_spans(ids, length) : DocumentSpans{};
    interleave = interleave || !spans.are_apart;
    int64_t found = -1;
    Span whole{0, length};
    for_queries(mask, queries, length, [&](int64_t i, int64_t position) {
      if (ids) {
        const int64_t at = mask.queries.empty() ? position : i;
        if (found < 0 || own[at] != own[found]) {
          const auto document = spans.of.find(own[at]);
          whole = document == spans.of.end() ? Span{0, 0} : document->second;
        }
        found = at;
      }
      const Span seen = seen_from(position, length, keys, mask);
      const int64_t from = std::max(seen.from, whole.from);
      body(row, i, position - keys.first(), Span{from, std::max(from, std::min(seen.to, whole.to))});
    });
  }
  return interleave;
}

}  // namespace

void check_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  require(q.dim() == 4 && k.dim() == 4 && v.sizes() == k.sizes() && q.size(0) == k.size(0) && q.size(3) == k.size(3),
          "attention", "q must be [B,N,S,D], k and v [B,Nkv,T,D]: got ", q.sizes(), ", ", k.sizes(), ", ", v.sizes());
  require(k.size(1) > 0 && q.size(1) % k.size(1) == 0, "attention", "heads must be divisible by key-value heads: got ",
          q.size(1), " and ", k.size(1));
  check_mask(q, k, mask);
}

void check_mask(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  const int64_t queries = q.size(2), keys = k.size(2);
  const bool follow = mask.queries.empty();  // the queries have the last of the keys' positions
  if (!follow) check_places(q, k, mask);
  require(!follow || mask.keys.empty(), "attention",
          "a mask with positions of keys must have those of queries (AttentionMask::queries): got ", mask.keys.size(),
          " runs of keys alone");
  require(mask.window >= 0 && mask.soft_cap >= 0, "attention", "window and soft_cap must be 0 (none) or more: got ",
          mask.window, " and ", mask.soft_cap);
  const bool speaks_of_positions = mask.causal || mask.window > 0 || mask.alibi.defined();
  require(!follow || !speaks_of_positions || keys >= queries, "attention",
          "queries must not outnumber keys in a mask that uses positions: got ", queries, " queries, ", keys, " keys");
  if (mask.documents.defined())
    require(mask.documents.dim() == 2 && mask.documents.size(0) == k.size(0) && mask.documents.size(1) == keys &&
                (!follow || keys >= queries) && mask.documents.scalar_type() == at::kLong,
            "attention", "document ids must be int64 [B,T]", follow ? " with T >= S" : "", ": got ",
            mask.documents.sizes(), " for keys ", k.sizes());
  if (mask.alibi.defined())
    require(mask.alibi.dim() == 1 && mask.alibi.size(0) == q.size(1), "attention",
            "there must be a slope for each of the ", q.size(1), " query heads: got ", mask.alibi.sizes());
  require(mask.lengths.empty() || static_cast<int64_t>(mask.lengths.size()) == k.size(0), "attention",
          "there must be a length for each of the ", k.size(0), " rows of the batch: got ", mask.lengths.size());
  for (const int64_t length : mask.lengths)
    require(length >= queries && length <= keys, "attention", "a row's length must be between its ", queries,
            " queries and the ", keys, " keys that fit: got ", length);
}

double scale_of(const at::Tensor& q, const AttentionMask& mask) {
  return mask.scale != 0 ? mask.scale : 1 / std::sqrt(static_cast<double>(q.size(3)));
}

int64_t reach_of(const AttentionMask& mask) { return mask.causal ? mask.window - 1 : mask.window; }

std::optional<std::vector<int32_t>> document_borders(const at::Tensor& documents) {
  const at::Tensor ids = documents.contiguous();
  const int64_t rows = ids.size(0), keys = ids.size(1);
  std::vector<int32_t> borders;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t* own = pointer<int64_t>(ids) + row * keys;
    if (!document_spans(own, keys).are_apart) return std::nullopt;
    for (int64_t i = 0; i < keys; ++i)
      if (i == 0 || own[i] != own[i - 1]) borders.push_back(static_cast<int32_t>(row * keys + i));
  }
  borders.push_back(static_cast<int32_t>(rows * keys));
  return borders;
}

bool is_document_a_row(const at::Tensor& documents) {
  if (!documents.is_cpu() || documents.numel() == 0) return false;
  return documents.eq(documents.narrow(1, 0, 1)).all().item<bool>();
}

at::Tensor brought_to(const at::Tensor& q, const at::Tensor& numbers) {
  if (numbers.device() == q.device()) return numbers;
  if (!tensor::is_accelerator(q) || !numbers.is_cpu()) return numbers.to(q.device());
  return numbers.pin_memory().to(q.device(), /*non_blocking=*/true);
}

at::Tensor visible(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  const at::Tensor positions = query_positions(q, k, mask), distance = distances(k, mask, positions);
  at::Tensor allowed = mask.causal ? distance.le(0) : at::ones_like(distance, at::kBool);
  if (mask.window > 0) allowed = allowed.bitwise_and(distance.abs().le(reach_of(mask)));
  if (!mask.lengths.empty() && !mask.causal)
    allowed = allowed.bitwise_and(
        at::arange(k.size(2), positions.options()).le(positions.slice(1, -1)).view({-1, 1, 1, k.size(2)}));
  if (!mask.documents.defined()) return allowed;
  const at::Tensor documents = brought_to(q, mask.documents),
                   own = mask.query_documents.defined() ? brought_to(q, mask.query_documents)
                                                        : documents.gather(1, positions.expand({q.size(0), -1}));
  return (own.unsqueeze(2) == documents.unsqueeze(1)).unsqueeze(1).bitwise_and(allowed);
}

at::Tensor linear_biases(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask, at::ScalarType type) {
  const at::Tensor slopes = mask.alibi.detach().to(q.device(), type).view({1, -1, 1, 1});
  return distances(k, mask, query_positions(q, k, mask)).to(type) * slopes;
}

at::Tensor attention_scores(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  const at::Tensor keys = k.repeat_interleave(q.size(1) / k.size(1), 1);
  at::Tensor scores = at::matmul(q, keys.transpose(2, 3)) * scale_of(q, mask);
  if (mask.soft_cap != 0) scores = (scores / mask.soft_cap).tanh() * mask.soft_cap;
  if (mask.alibi.defined()) scores = scores + linear_biases(q, k, mask, q.scalar_type());
  return scores.masked_fill(visible(q, k, mask).bitwise_not(), -std::numeric_limits<double>::infinity());
}

int64_t visible_pairs(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  // All rows have the same mask if there are neither documents nor lengths, so counting one row is enough.
  const bool differ = host_rows(mask.documents).defined() || !mask.lengths.empty();
  int64_t pairs = 0;
  for_spans(q, k, mask, differ ? q.size(0) : 1,
            [&](int64_t, int64_t, int64_t, const Span& seen) { pairs += seen.to - seen.from; });
  return differ ? pairs : q.size(0) * pairs;
}

KeyRanges key_ranges(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  const int64_t queries = q.size(2), rows = mask.documents.defined() || !mask.lengths.empty() ? q.size(0) : 1;
  KeyRanges ranges;
  for (at::Tensor* t : {&ranges.position, &ranges.from, &ranges.to}) *t = at::empty({rows, queries}, at::kLong);
  int64_t *positions = pointer<int64_t>(ranges.position), *from = pointer<int64_t>(ranges.from),
          *to = pointer<int64_t>(ranges.to);
  const bool interleave =
      for_spans(q, k, mask, rows, [&](int64_t row, int64_t query, int64_t position, const Span& seen) {
        const int64_t at = row * queries + query;
        positions[at] = position, from[at] = seen.from, to[at] = seen.to;
      });
  if (interleave)
    ranges.documents = host_rows(mask.documents), ranges.query_documents = host_rows(mask.query_documents);
  if (mask.keys.size() > 1 && mask.alibi.defined())
    ranges.key_position = aranges(mask.keys, mask.keys.front().first, at::kLong);
  return ranges;
}

DocumentRuns document_runs(const at::Tensor& documents, at::Device device) {
  DocumentRuns runs{.is_one_a_row = is_document_a_row(documents)};
  if (runs.is_one_a_row) return runs;
  const auto borders = document_borders(documents);
  if (!borders) return runs;
  for (size_t i = 1; i < borders->size(); ++i)
    runs.longest = std::max<int64_t>(runs.longest, (*borders)[i] - (*borders)[i - 1]);
  const at::Tensor host = at::tensor(*borders, at::kInt);
  runs.borders = (tensor::is_accelerator(device) ? host.pin_memory() : host).to(device, /*non_blocking=*/true);
  return runs;
}

}  // namespace colossal::ops
