#include "colossal/ops/attention/paged.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "colossal/base/error.h"
#include "colossal/ops/attention/paged_positions.h"
#include "colossal/ops/attention/paged_reference.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/huge_pages.h"
#include "colossal/ops/parallel.h"
#include "colossal/ops/products/row_codes.h"
#include "colossal/ops/thread_team.h"
#include "colossal/tensor/flops.h"

namespace colossal::ops {
namespace {

bool has_kernel_for(const at::Tensor& tokens) { return has_paged_attention(tokens.device(), tokens.scalar_type()); }

static_assert(kPageUnit % kPagedUnit == 0, "a unit of keys must be in one page");

PageCodes codes_of(const Pages& pages) {
  return !pages.has_codes() ? PageCodes::None : pages.dtype() == at::kChar ? PageCodes::Int8 : PageCodes::Fp8;
}

PagePositions places_of(const Pages& pages, const PagedSequence& s) {
  return {pages.tokens(), s.first_page, s.page_stride};
}

/// Keys or values of a step, [T, N_kv, D]; quantized values also have scales [T, N_kv].
struct PagedTokens {
  at::Tensor numbers, scales;
};

PagedTokens tokens_for(const Pages& pages, const at::Tensor& x) {
  if (!pages.has_codes()) return {x.contiguous(), {}};
  RowCodes coded = encode_rows(x, pages.dtype());
  return {coded.codes.contiguous(), coded.scales.contiguous()};
}

/// Writes one head of `count` tokens of the step, from token `first` on. Joint pages take the values only. T is the
/// element type of the pages, or a byte for quantized values.
template <class T>
void write_head(const Pages& pages, const PagedSequence& s, const PagedTokens& k, const PagedTokens& v, int64_t first,
                int64_t count, int64_t head) {
  const int64_t tokens = pages.tokens(), size = pages.size, padded = pages.v.size(3), heads = pages.kv_heads();
  const PagePositions places = places_of(pages, s);
  for (int64_t t = 0; t < count; ++t) {
    if (!places.has(s.held + t)) continue;
    const int64_t key = places.keys_before(s.held + t), page = s.pages[key / tokens] * heads + head;
    const int64_t from = (first + t) * heads + head;
    const int64_t place = page * tokens + key % tokens;
    std::copy_n(pointer<T>(v.numbers) + from * size, size, pointer<T>(pages.v) + place * padded);
    if (pages.has_codes()) pointer<float>(pages.v_scales)[place] = pointer<float>(v.scales)[from];
    if (pages.are_joint()) continue;
    const T* key_from = pointer<T>(k.numbers) + from * size;
    T* keys = pointer<T>(pages.k) + page * size * tokens + key % tokens;
    for (int64_t d = 0; d < size; ++d) keys[d * tokens] = key_from[d];
    if (pages.has_codes()) pointer<float>(pages.k_scales)[place] = pointer<float>(k.scales)[from];
  }
}

template <class T>
void write_heads(const Pages& pages, const std::vector<PagedSequence>& sequences, const PagedTokens& k,
                 const PagedTokens& v, const std::vector<int64_t>& lengths) {
  constexpr int64_t kGrain = 8;  // a token's heads are a few hundred elements
  const int64_t heads = pages.kv_heads();
  const auto write = [&](int64_t head) {
    int64_t first = 0;
    for (size_t i = 0; i < sequences.size(); first += lengths[i++])
      write_head<T>(pages, sequences[i], k, v, first, lengths[i], head);
  };
  if (v.numbers.size(0) > kGrain) return ThreadTeam::of_this_thread().run(heads, write);
  for (int64_t head = 0; head < heads; ++head) write(head);
}

struct PagedBatch {
  const Pages& pages;
  const std::vector<PagedSequence>& sequences;
  const std::vector<int64_t>& lengths;
  int64_t reach;
};

/// Splits the queries of each sequence into runs that a kernel call can process.
std::vector<PagedQueries> runs_of(const PagedBatch& batch, int64_t group) {
  const int64_t most = std::max<int64_t>(1, kPagedRows / group);
  std::vector<PagedQueries> runs;
  int64_t token = 0;
  for (size_t i = 0; i < batch.sequences.size(); token += batch.lengths[i++]) {
    const PagedSequence& s = batch.sequences[i];
    const PagePositions places = places_of(batch.pages, s);
    for (int64_t first = 0; first < batch.lengths[i]; first += most) {
      const int64_t count = std::min(most, batch.lengths[i] - first), position = s.held + first;
      const int64_t from = places.keys_before(position + 1 - batch.reach), to = places.keys_before(position + count);
      const int64_t first_part = from / kPagedPart, end_part = (to + kPagedPart - 1) / kPagedPart;
      runs.push_back({s.pages.data(), s.first_page, s.page_stride, token + first, count, position, first_part,
                      std::max<int64_t>(1, end_part - first_part)});
    }
  }
  return runs;
}

double pairs_of(const PagedBatch& batch) {
  double pairs = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const PagePositions places = places_of(batch.pages, batch.sequences[i]);
    for (int64_t t = 0; t < batch.lengths[i]; ++t) {
      const int64_t end = batch.sequences[i].held + t + 1;
      pairs += static_cast<double>(places.keys_before(end) - places.keys_before(end - batch.reach));
    }
  }
  return pairs;
}

/// Returns true if one run of queries is so long that the other threads would wait for it.
bool are_keys_dealt_out(const std::vector<PagedQueries>& runs, int64_t kv_heads) {
  int64_t most = 0, all = 0;
  for (const PagedQueries& run : runs) most = std::max(most, run.parts), all += run.parts * kv_heads;
  const int64_t threads = parallel_chunks(all, 1);
  return threads > 1 && most > 1 && 2 * threads * most > all;
}

/// Calls body(item, chunk) for all items over the threads of a team. The items of a chunk are processed one after
/// another on one thread.
struct Chunks {
  explicit Chunks(int64_t all) : items(all), count(std::min(all, kChunksOfThread * parallel_chunks(all, 1))) {}

  template <class Body>
  void run(const Body& body) const {
    ThreadTeam::of_this_thread().run(count, [&](int64_t chunk) {
      for (int64_t item = items * chunk / count; item < items * (chunk + 1) / count; ++item) body(item, chunk);
    });
  }

  static constexpr int64_t kChunksOfThread = 4;  // a late thread then leaves most chunks to the others
  int64_t items, count;
};

template <class T>
void attend_by_runs(const PagedTask<T>& task, const std::vector<PagedQueries>& runs, const at::TensorOptions& wide) {
  using W = WideOf<T>;
  const Kernels<T>& kernel = kernels<T>();
  const Chunks chunks(static_cast<int64_t>(runs.size()) * task.kv_heads);  // neighbours share a run of queries
  const int64_t scratch = kernel.paged_scratch(task);
  const at::Tensor memory = at::empty({chunks.count * scratch}, wide);
  chunks.run([&](int64_t item, int64_t chunk) {
    kernel.paged_attention(task, runs[item / task.kv_heads], item % task.kv_heads,
                           pointer<W>(memory) + chunk * scratch);
  });
}

template <class T>
void attend_by_parts(const PagedTask<T>& task, const std::vector<PagedQueries>& runs, const at::TensorOptions& wide) {
  using W = WideOf<T>;
  struct Item {
    const PagedQueries* run;
    int64_t kv_head, part;
  };
  std::vector<Item> items;
  for (const PagedQueries& run : runs)
    for (int64_t head = 0; head < task.kv_heads; ++head)
      for (int64_t part = 0; part < run.parts; ++part) items.push_back({&run, head, part});
  const Kernels<T>& kernel = kernels<T>();
  const auto count = static_cast<int64_t>(items.size());
  const int64_t scratch = kernel.paged_scratch(task), state = kernel.paged_state(task);
  const Chunks chunks(count);
  const at::Tensor memory = at::empty({chunks.count * scratch}, wide);
  const at::Tensor states = at::empty({count * state}, wide);
  chunks.run([&](int64_t i, int64_t chunk) {
    kernel.paged_part(task, *items[i].run, items[i].kv_head, items[i].part, pointer<W>(states) + i * state,
                      pointer<W>(memory) + chunk * scratch);
  });
  for (int64_t i = 0; i < count; i += items[i].run->parts)  // cheap: a few elements per part
    kernel.paged_merge(task, *items[i].run, items[i].kv_head, pointer<W>(states) + i * state);
}

/// Writes the result to `out`, which has q's dtype or is wide, and the logarithms of sums to `log_sums`, if it is
/// defined.
void attend(const at::Tensor& q, const PagedBatch& batch, const PagedMask& mask, const at::Tensor& out,
            const at::Tensor& log_sums) {
  const Pages& pages = batch.pages;
  const int64_t heads = q.size(1), kv_heads = pages.kv_heads();
  require(heads % kv_heads == 0, "paged_attention", "heads must be a multiple of the pages' ", kv_heads, ": got ",
          heads);
  const at::Tensor queries = q.stride(2) == 1 ? q : q.contiguous();
  const at::Tensor alibi = mask.alibi.defined() ? mask.alibi.to(at::kDouble).contiguous() : mask.alibi;
  require(!alibi.defined() || alibi.numel() == heads, "paged_attention", "there must be one slope per head: got ",
          alibi.defined() ? alibi.numel() : 0, " of ", heads);
  const std::vector<PagedQueries> runs = runs_of(batch, heads / kv_heads);
  with_element_type(q, [&](auto element) {
    using T = decltype(element);
    using W = WideOf<T>;
    const bool is_wide = out.scalar_type() != q.scalar_type();
    const PagedTask<T> task{
        heads,
        kv_heads,
        pages.size,
        pages.v.size(3),
        pages.tokens(),
        codes_of(pages),
        pages.are_joint() ? nullptr : pages.k.const_data_ptr(),
        pages.v.const_data_ptr(),
        pointer<float>(pages.k_scales),
        pointer<float>(pages.v_scales),
        pointer<T>(queries),
        queries.stride(0),
        queries.stride(1),
        is_wide ? nullptr : pointer<T>(out),
        is_wide ? pointer<W>(out) : nullptr,
        pointer<W>(log_sums),
        pointer<double>(alibi),
        static_cast<W>(mask.scale == 0 ? 1 / std::sqrt(static_cast<double>(pages.size)) : mask.scale),
        static_cast<W>(mask.soft_cap),
        batch.reach};
    const auto wide = at::TensorOptions().dtype(wide_type(q));
    if (are_keys_dealt_out(runs, kv_heads))
      attend_by_parts(task, runs, wide);
    else
      attend_by_runs(task, runs, wide);
  });
  if (tensor::are_flops_counted())
    tensor::announce_flops(4 * static_cast<double>(heads * pages.size) * pairs_of(batch),
                           {tensor::Operation::Kind::Attention, q.scalar_type()});
}

int64_t reach_of(const PagedMask& mask) {
  return mask.window > 0 ? mask.window : std::numeric_limits<int64_t>::max() / 2;
}

}  // namespace

bool has_paged_attention(at::Device device, at::ScalarType dtype) {
  return device.is_cpu() && (dtype == at::kDouble || dtype == at::kFloat || dtype == at::kBFloat16);
}

Pages make_pages(int64_t count, int64_t tokens, int64_t kv_heads, int64_t size, const at::TensorOptions& options,
                 bool joint) {
  require(tokens > 0 && tokens % kPageUnit == 0, "paged_attention", "pages must have a multiple of ", kPageUnit,
          " tokens: got ", tokens);
  const int64_t padded = (size + kPageUnit - 1) / kPageUnit * kPageUnit;
  // Zeros, not uninitialised memory: scores of masked keys are computed too, and must not be NaN.
  const auto made = [](at::IntArrayRef shape, const at::TensorOptions& of) {
    return of.device().is_cpu() ? lazy_zeros(shape, of) : at::zeros(shape, of);
  };
  Pages pages{joint ? at::Tensor() : made({count, kv_heads, size, tokens}, options),
              made({count, kv_heads, tokens, padded}, options), size};
  const at::ScalarType type = c10::typeMetaToScalarType(options.dtype());
  if (type == at::kChar || type == at::kFloat8_e4m3fn) {
    const at::TensorOptions scales = options.dtype(at::kFloat);
    if (!joint) pages.k_scales = made({count, kv_heads, tokens}, scales);
    pages.v_scales = made({count, kv_heads, tokens}, scales);
  }
  return pages;
}

void write_pages(Pages& pages, const std::vector<PagedSequence>& sequences, const at::Tensor& k, const at::Tensor& v,
                 const std::vector<int64_t>& lengths) {
  if (!has_kernel_for(k)) return write_pages_reference(pages, sequences, k, v, lengths);
  check_written_tokens(pages, sequences, k, v, lengths);
  const PagedTokens keys = pages.are_joint() ? PagedTokens() : tokens_for(pages, k),
                    values = tokens_for(pages, pages.are_joint() ? k : v);
  if (pages.has_codes()) return write_heads<uint8_t>(pages, sequences, keys, values, lengths);
  with_element_type(k, [&](auto element) { write_heads<decltype(element)>(pages, sequences, keys, values, lengths); });
}

at::Tensor paged_attention(const at::Tensor& q, const Pages& pages, const std::vector<PagedSequence>& sequences,
                           const std::vector<int64_t>& lengths, const PagedMask& mask, at::Tensor* log_sums) {
  check_paged_tokens(pages, sequences, q, lengths);
  for (const PagedSequence& s : sequences)
    require(s.first_page == 0 && s.page_stride == 1, "paged_attention",
            "attention needs all pages of a sequence: got a part of them, from page ", s.first_page, " on, each ",
            s.page_stride, "; use partial_paged_attention");
  if (!has_kernel_for(q)) {
    const PartialAttention whole = paged_attention_reference(q, pages, sequences, lengths, mask);
    if (log_sums) *log_sums = whole.log_sums;
    return whole.out.to(q.scalar_type());
  }
  const auto options = q.options().requires_grad(false);
  const at::Tensor out = at::empty({q.size(0), q.size(1), pages.size}, options);
  if (log_sums) *log_sums = at::empty({q.size(0), q.size(1)}, options.dtype(wide_type(q)));
  attend(q, {pages, sequences, lengths, reach_of(mask)}, mask, out, log_sums ? *log_sums : at::Tensor());
  return out;
}

PartialAttention partial_paged_attention(const at::Tensor& q, const Pages& pages,
                                         const std::vector<PagedSequence>& sequences,
                                         const std::vector<int64_t>& lengths, const PagedMask& mask) {
  if (!has_kernel_for(q)) return paged_attention_reference(q, pages, sequences, lengths, mask);
  check_paged_tokens(pages, sequences, q, lengths);
  const auto wide = q.options().requires_grad(false).dtype(wide_type(q));
  PartialAttention part{at::empty({q.size(0), q.size(1), pages.size}, wide), at::empty({q.size(0), q.size(1)}, wide)};
  attend(q, {pages, sequences, lengths, reach_of(mask)}, mask, part.out, part.log_sums);
  return part;
}

}  // namespace colossal::ops
