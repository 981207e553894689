// Bodies of the attention kernels; see ops/kernels.h. Keys are processed in blocks, and so are the queries that see any
// key of a block. The scores of a query block against a key block are a small matrix product. It remains in the nearest
// caches from the product through the softmax to the next product. Scores that a causal mask, a window or document
// borders hide from a whole block of queries are never computed. The softmax is accumulated key block by key block,
// relative to the largest score so far. Operands are first packed in the computing type.
// See: Dao, arXiv:2307.08691.
#pragma once
#include "colossal/ops/attention/scores_kernel.h"
#include "colossal/ops/products/packed_kernel.h"
#include "colossal/ops/rows_kernel.h"
#include "colossal/ops/simd.h"

namespace colossal::ops {
namespace {

constexpr int64_t kQueryBlock = 5 * kTileRows, kKeyBlock = 512;
/// Maximum number of queries that are processed together: queries of several heads that share a key-value head, or of
/// one head, even if it has more. The memory for query results then does not grow with the group. Packing keys again
/// for other heads costs little compared with products with this many queries.
constexpr int64_t kQueriesTogether = 2048;

template <class T>
T* at_head(const HeadView<T>& x, int64_t batch, int64_t head) {
  return x.data + batch * x.batch + head * x.head;
}

/// A run of keys. The run of a QueryBlock starts at a multiple of a cache line of packed keys.
struct KeyRun {
  int64_t first, count;
  /// Returns a key's index in the run, clamped to [0, count].
  int64_t at(int64_t key) const { return key < first ? 0 : key - first < count ? key - first : count; }
};

/// Returns the intersection of two runs; its count is 0 if they are disjoint.
inline KeyRun common(const KeyRun& a, const KeyRun& b) {
  const int64_t first = a.first > b.first ? a.first : b.first;
  const int64_t a_end = a.first + a.count, b_end = b.first + b.count, end = a_end < b_end ? a_end : b_end;
  return {first, end > first ? end - first : 0};
}

/// Queries that are processed together, and the smallest run that holds all keys they see.
struct QueryBlock {
  int64_t first, rows;
  KeyRun keys;
};

/// Returns the block of queries that starts at `first`. After kTileRows queries it ends early if the next query's keys
/// do not overlap the keys of the block so far. Scores between separate documents are then mostly not computed.
template <class T>
QueryBlock block_from(const AttentionTask<T>& a, int64_t batch, int64_t first) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(WideOf<T>));
  const int64_t *from = a.from + batch * a.mask_stride + first, *to = a.to + batch * a.mask_stride + first;
  const int64_t most = a.queries - first < kQueryBlock ? a.queries - first : kQueryBlock;
  int64_t lowest = a.keys, highest = 0, rows = 0;
  for (; rows < most; ++rows) {
    if (from[rows] == to[rows]) continue;  // this query sees no key
    if (rows >= kTileRows && highest > 0 && (from[rows] >= highest || to[rows] <= lowest)) break;
    lowest = from[rows] < lowest ? from[rows] : lowest;
    highest = to[rows] > highest ? to[rows] : highest;
  }
  if (highest == 0) return {first, rows, {0, 0}};
  lowest = lowest / kLine * kLine;
  return {first, rows, {lowest, highest - lowest}};
}

/// Scratch memory of one thread: for the forward pass, or for the backward pass if the task has gradients of keys
/// (a.dk). If `scratch` is null, all buffers are null, and `used` still is the number of elements needed.
template <class T>
struct AttentionMemory {
  using W = WideOf<T>;
  static constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(W));

  AttentionMemory(const AttentionTask<T>& a, W* scratch)
      : key_block(a.keys < kKeyBlock ? a.keys : kKeyBlock),
        by_size(packed<W>(a.size)),
        by_keys(packed<W>(key_block)),
        heads(heads_together(a)),
        scratch(scratch) {
    const int64_t queries = a.queries * heads;
    k = take(key_block * by_size), v = take(key_block * by_size);
    kt = take(a.size * by_keys);
    q = take(kQueryBlock * by_size);
    scores = take(kQueryBlock * by_keys);
    if (a.dk.data) {  // backward pass
      const int64_t keys = keeps_all_keys(a) ? a.keys : key_block;
      dk = take(keys * by_size), dv = take(keys * by_size);
      vt = take(a.size * by_keys);
      dout = take(kQueryBlock * by_size);
      products = take(kQueryBlock * by_keys);
      if (a.soft_cap != 0) slopes = take(kQueryBlock * by_keys);
    }
    sum = take(queries * by_size), largest = take(queries), total = take(queries);
    blocks = reinterpret_cast<QueryBlock*>(
        take((a.queries / kTileRows + 1) * static_cast<int64_t>(sizeof(QueryBlock) / sizeof(W))));
  }
  static int64_t heads_together(const AttentionTask<T>& a) {
    const int64_t group = a.heads / a.kv_heads, most = kQueriesTogether / (a.queries > 0 ? a.queries : 1);
    return most < 1 ? 1 : most < group ? most : group;
  }
  /// Returns true if the heads of a group are processed in several rounds. The gradients of keys are then sums over
  /// these rounds, so they are kept for all keys.
  bool keeps_all_keys(const AttentionTask<T>& a) const { return heads < a.heads / a.kv_heads; }
  /// Returns a copy whose dk and dv point to the gradients of the key block that starts at `key`.
  AttentionMemory at_keys(const AttentionTask<T>& a, int64_t key) const {
    AttentionMemory here = *this;
    if (keeps_all_keys(a)) here.dk += key * by_size, here.dv += key * by_size;
    return here;
  }
  W* take(int64_t elements) {
    const int64_t first = used;
    used += (elements + kLine - 1) / kLine * kLine;
    return scratch ? scratch + first : nullptr;
  }
  /// Writes the blocks of all queries of a batch row to `blocks`. Returns their number.
  int64_t find_blocks(const AttentionTask<T>& a, int64_t batch) {
    int64_t count = 0;
    for (int64_t first = 0; first < a.queries; first += blocks[count++].rows)
      blocks[count] = block_from(a, batch, first);
    return count;
  }

  /// Keys per block; row lengths of packed matrices [.., size] and [.., key_block], in elements
  int64_t key_block, by_size, by_keys;
  int64_t heads;  ///< heads of a key-value group that are processed together
  W* scratch;
  int64_t used = 0;
  W *k, *v, *kt, *vt = nullptr;    ///< buffers of one key block; kt and vt are transposed
  W *dk = nullptr, *dv = nullptr;  ///< gradients of one key block, or of all keys (keeps_all_keys)
  W *q, *scores, *dout = nullptr;  ///< buffers of one query block; scores against one key block
  W *products = nullptr, *slopes = nullptr;
  /// All queries of these heads. Forward: the softmax state. Backward: `sum` is dq, and `total` the deltas.
  W *sum, *largest, *total;
  QueryBlock* blocks;
};

/// Index of a head in the batch.
struct HeadOfBatch {
  int64_t batch, head;
};

/// Writes the scores of a query block against the keys of `run` to memory.scores [rows, run.count]. Scores of keys that
/// a query may not see become -infinity. Column 0 of `kt` must be the first key of `run`; memory.q must hold the scaled
/// queries. If `slopes` is not null, it receives the derivative of the cap for keys that the query may see.
template <class T>
void masked_scores(const AttentionTask<T>& a, const HeadOfBatch& of, const QueryBlock& block, const KeyRun& run,
                   const AttentionMemory<T>& memory, const WideOf<T>* kt, WideOf<T>* slopes) {
  using W = WideOf<T>;
  const int64_t ld = memory.by_keys, query = of.batch * a.mask_stride + block.first;
  multiply<W>(block.rows, run.count, a.size, {memory.q, memory.by_size, 1}, {kt, ld, 1}, {memory.scores, ld, 1}, false);
  const W hidden = -static_cast<W>(__builtin_inf());
  for (int64_t i = 0; i < block.rows; ++i) {
    W* row = memory.scores + i * ld;
    const int64_t from = run.at(a.from[query + i]), to = run.at(a.to[query + i]);
    if (a.soft_cap != 0) cap_scores<W>(row + from, slopes ? slopes + i * ld + from : nullptr, to - from, a.soft_cap);
    const int64_t position = a.position[query + i];
    if (a.bias) add_elements<W>(row + from, a.bias + (block.first + i) * a.keys + run.first + from, to - from);
    if (a.key_bias) add_elements<W>(row + from, a.key_bias + of.batch * a.keys + run.first + from, to - from);
    if (a.alibi) {
      const W slope = static_cast<W>(a.alibi[of.head]);
      if (a.key_position)
        add_distances<W>(row + from, to - from, a.key_position + run.first + from, position, slope);
      else
        add_ramp<W>(row + from, to - from, slope * static_cast<W>(run.first + from - position), slope);
    }
    for (int64_t j = 0; j < from; ++j) row[j] = hidden;
    for (int64_t j = to; j < run.count; ++j) row[j] = hidden;
    if (!a.documents) continue;
    const int64_t* documents = a.documents + of.batch * a.keys;
    const int64_t own =
        a.query_documents ? a.query_documents[of.batch * a.queries + block.first + i] : documents[position];
    for (int64_t j = from; j < to; ++j)
      if (documents[run.first + j] != own) row[j] = hidden;
  }
}

template <class T>
int64_t attention_scratch(const AttentionTask<T>& a) {
  return AttentionMemory<T>(a, nullptr).used;
}

/// Replaces scores by their exponentials relative to the largest score of the query so far. If that score grows,
/// `total` and `sum` are rescaled to it.
template <class W>
void exponentials(int64_t rows, int64_t width, int64_t ld, W* scores, W* largest, W* total, int64_t size,
                  int64_t by_size, W* sum) {
  const W nothing = -static_cast<W>(__builtin_inf());
  for (int64_t i = 0; i < rows; ++i) {
    W* row = scores + i * ld;
    const W here = row_max(row, width), before = largest[i], most = here > before ? here : before;
    const W added = row_exp(row, width, most > nothing ? most : 0);
    if (most > before && before > nothing) {
      W shrunk = before - most;
      row_exp(&shrunk, 1, 0);
      total[i] *= shrunk;
      row_scale(sum + i * by_size, size, shrunk);
    }
    total[i] += added, largest[i] = most;
  }
}

/// Packs the keys and values of `keys` and transposes the keys.
template <class T>
void take_keys(const AttentionTask<T>& a, const HeadOfBatch& of, const KeyRun& keys, const AttentionMemory<T>& memory) {
  const auto at_keys = [&](const auto& x) { return at_head(x, of.batch, of.head) + keys.first * x.position; };
  pack(at_keys(a.k), a.k.position, keys.count, a.size, memory.k);
  pack(at_keys(a.v), a.v.position, keys.count, a.size, memory.v);
  transpose(memory.k, keys.count, a.size, memory.by_keys, memory.kt);
}

/// Accumulates the softmax of a query block over the keys of `run`. `place` is the index of the run's first key in the
/// packed key block. `query` is the index of the block's first query in memory.sum, largest and total.
template <class T>
void block_softmax(const AttentionTask<T>& a, const HeadOfBatch& of, const QueryBlock& block, const KeyRun& run,
                   int64_t place, int64_t query, const AttentionMemory<T>& memory) {
  using W = WideOf<T>;
  const int64_t by_size = memory.by_size, by_keys = memory.by_keys;
  W* sum = memory.sum + query * by_size;
  pack(at_head(a.q, of.batch, of.head) + block.first * a.q.position, a.q.position, block.rows, a.size, memory.q,
       a.scale);
  masked_scores<T>(a, of, block, run, memory, memory.kt + place, nullptr);
  exponentials(block.rows, run.count, by_keys, memory.scores, memory.largest + query, memory.total + query, a.size,
               by_size, sum);
  multiply<W>(block.rows, a.size, run.count, {memory.scores, by_keys, 1}, {memory.v + place * by_size, by_size, 1},
              {sum, by_size, 1}, true);
}

/// Writes the result and log_sums of a head. Its queries start at index `first` in memory.sum, largest and total.
template <class T>
void give_result(const AttentionTask<T>& a, const HeadOfBatch& of, int64_t first, const AttentionMemory<T>& memory) {
  using W = WideOf<T>;
  T* out = at_head(a.out, of.batch, of.head);
  W* log_sums = a.log_sums + (of.batch * a.heads + of.head) * a.queries;
  for (int64_t i = 0; i < a.queries; ++i) {
    const W total = memory.total[first + i];
    const bool sees = total != 0;  // true for NaN, so that the result is NaN
    unpack(memory.sum + (first + i) * memory.by_size, 1, a.size, out + i * a.out.position, a.out.position,
           sees ? 1 / total : 0);
    // log_sums is +infinity if a query sees no key, because backward then computes weights of 0.
    log_sums[i] = sees ? memory.largest[first + i] + static_cast<W>(__builtin_log(static_cast<double>(total)))
                       : static_cast<W>(__builtin_inf());
  }
}

/// Computes heads [begin, end) of batch * heads. `scratch` must have attention_scratch() elements and be aligned to a
/// cache line.
template <class T>
void attention_forward(const AttentionTask<T>& a, int64_t begin, int64_t end, WideOf<T>* scratch) {
  using W = WideOf<T>;
  AttentionMemory<T> memory(a, scratch);
  const int64_t group = a.heads / a.kv_heads;
  for (int64_t item = begin, last = 0; item < end; item = last) {  // heads that share a key-value head
    const int64_t batch = item / a.heads, first = item % a.heads, kv_head = first / group;
    last = batch * a.heads + (kv_head + 1) * group;
    last = last < end ? last : end;
    last = last < item + memory.heads ? last : item + memory.heads;
    const int64_t heads = last - item, blocks = memory.find_blocks(a, batch);
    for (int64_t i = 0; i < heads * a.queries * memory.by_size; ++i) memory.sum[i] = 0;
    for (int64_t i = 0; i < heads * a.queries; ++i)
      memory.largest[i] = -static_cast<W>(__builtin_inf()), memory.total[i] = 0;
    for (int64_t key = 0; key < a.keys; key += memory.key_block) {
      const KeyRun keys{key, a.keys - key < memory.key_block ? a.keys - key : memory.key_block};
      bool are_taken = false;
      for (const QueryBlock* block = memory.blocks; block < memory.blocks + blocks; ++block) {
        const KeyRun run = common(block->keys, keys);
        if (run.count == 0) continue;
        if (!are_taken) take_keys<T>(a, {batch, kv_head}, keys, memory);
        are_taken = true;
        for (int64_t own = 0; own < heads; ++own)
          block_softmax<T>(a, {batch, first + own}, *block, run, run.first - key, own * a.queries + block->first,
                           memory);
      }
    }
    for (int64_t own = 0; own < heads; ++own) give_result<T>(a, {batch, first + own}, own * a.queries, memory);
  }
}

// On entry, scores = P and products = dO vt. On exit, products = P (dO vt - sum(dO O)). Multiplied by the derivative of
// the cap, they are the gradient of the scaled scores.
template <class W>
void score_gradients(int64_t rows, int64_t width, int64_t ld, const W* deltas, const W* scores, W* products) {
  for (int64_t i = 0; i < rows; ++i) {
    const W *p = scores + i * ld, delta = deltas[i];
    W* d = products + i * ld;
    for_vectors<W>(width,
                   [&](int64_t j, auto part) { store(d + j, load(p + j, part) * (load(d + j, part) - delta), part); });
  }
}

// Multiplies each query's products by the derivative of the cap, which exists only where the query may look. Elsewhere
// products are zero.
template <class T>
void through_cap(const AttentionTask<T>& a, const HeadOfBatch& of, const QueryBlock& block, const KeyRun& run,
                 const AttentionMemory<T>& memory) {
  using W = WideOf<T>;
  const int64_t ld = memory.by_keys, query = of.batch * a.mask_stride + block.first;
  for (int64_t i = 0; i < block.rows; ++i) {
    const int64_t from = run.at(a.from[query + i]), to = run.at(a.to[query + i]);
    W* d = memory.products + i * ld + from;
    const W* slope = memory.slopes + i * ld + from;
    for_vectors<W>(to - from,
                   [&](int64_t j, auto part) { store(d + j, load(d + j, part) * load(slope + j, part), part); });
  }
}

/// Writes sum(dO O) of each query of a head to `deltas`.
template <class T>
void find_deltas(const AttentionTask<T>& a, const HeadOfBatch& of, WideOf<T>* deltas) {
  using W = WideOf<T>;
  const T *dout = at_head(a.dout, of.batch, of.head), *out = at_head(a.out, of.batch, of.head);
  for (int64_t i = 0; i < a.queries; ++i) {
    Vec<W> delta{};
    for_vectors<W>(a.size, [&](int64_t j, auto part) {  // loads past the end are zero
      delta += load(dout + i * a.dout.position + j, part) * load(out + i * a.out.position + j, part);
    });
    deltas[i] = sum_of<W>(delta);
  }
}

/// Adds the contribution of a query block to the gradients of the keys and values of `run` (memory.dk, memory.dv), and
/// the contribution of these keys to the gradient of the block's queries, `dq`. `place` is the index of the run's first
/// key in the packed key block.
template <class T>
void block_gradients(const AttentionTask<T>& a, const HeadOfBatch& of, const QueryBlock& block, const KeyRun& run,
                     int64_t place, const AttentionMemory<T>& memory, const WideOf<T>* deltas, WideOf<T>* dq) {
  using W = WideOf<T>;
  const int64_t by_size = memory.by_size, by_keys = memory.by_keys, rows = block.rows, start = place * by_size;
  const auto at_block = [&](const auto& x) { return at_head(x, of.batch, of.head) + block.first * x.position; };
  pack<T>(at_block(a.q), a.q.position, rows, a.size, memory.q, a.scale);
  pack<T>(at_block(a.dout), a.dout.position, rows, a.size, memory.dout);
  masked_scores<T>(a, of, block, run, memory, memory.kt + place, memory.slopes);
  const W* log_sums = a.log_sums + (of.batch * a.heads + of.head) * a.queries + block.first;
  for (int64_t i = 0; i < rows; ++i) row_exp(memory.scores + i * by_keys, run.count, log_sums[i]);
  multiply<W>(run.count, a.size, rows, {memory.scores, 1, by_keys}, {memory.dout, by_size, 1},
              {memory.dv + start, by_size, 1}, true);
  multiply<W>(rows, run.count, a.size, {memory.dout, by_size, 1}, {memory.vt + place, by_keys, 1},
              {memory.products, by_keys, 1}, false);
  score_gradients(rows, run.count, by_keys, deltas, memory.scores, memory.products);
  for (int64_t i = 0; a.dbias && i < rows; ++i)
    add_elements<W>(a.dbias + (block.first + i) * a.keys + run.first, memory.products + i * by_keys, run.count);
  if (memory.slopes) through_cap<T>(a, of, block, run, memory);
  multiply<W>(rows, a.size, run.count, {memory.products, by_keys, 1}, {memory.k + start, by_size, 1}, {dq, by_size, 1},
              true);
  multiply<W>(run.count, a.size, rows, {memory.products, 1, by_keys}, {memory.q, by_size, 1},
              {memory.dk + start, by_size, 1}, true);
}

/// Computes the gradients for `heads` heads from `first` on of a batch row; all of them read key-value head `kv_head`.
/// Writes dq, and adds the heads' contributions to the gradients of the keys and values. The first head of the group
/// sets these gradients to zero; the last one writes them to a.dk and a.dv.
template <class T>
void heads_gradients(const AttentionTask<T>& a, int64_t batch, int64_t kv_head, int64_t first, int64_t heads,
                     int64_t blocks, const AttentionMemory<T>& memory) {
  const int64_t by_size = memory.by_size, group = a.heads / a.kv_heads;
  const bool begins = first % group == 0, ends = (first + heads) % group == 0;
  const auto of = [&](int64_t own) { return HeadOfBatch{batch, first + own}; };
  for (int64_t own = 0; own < heads; ++own) find_deltas(a, of(own), memory.total + own * a.queries);
  for (int64_t i = 0; i < heads * a.queries * by_size; ++i) memory.sum[i] = 0;
  for (int64_t key = 0; key < a.keys; key += memory.key_block) {
    const KeyRun keys{key, a.keys - key < memory.key_block ? a.keys - key : memory.key_block};
    const AttentionMemory<T> here = memory.at_keys(a, key);
    const auto at_keys = [&](const auto& x) { return at_head(x, batch, kv_head) + key * x.position; };
    take_keys<T>(a, {batch, kv_head}, keys, here);
    transpose(here.v, keys.count, a.size, here.by_keys, here.vt);
    for (int64_t i = 0; begins && i < keys.count * by_size; ++i) here.dk[i] = here.dv[i] = 0;
    for (const QueryBlock* block = here.blocks; block < here.blocks + blocks; ++block) {
      const KeyRun run = common(block->keys, keys);
      if (run.count == 0) continue;
      for (int64_t own = 0; own < heads; ++own) {
        const int64_t query = own * a.queries + block->first;
        block_gradients(a, of(own), *block, run, run.first - key, here, here.total + query, here.sum + query * by_size);
      }
    }
    if (!ends) continue;
    unpack(here.dk, keys.count, a.size, at_keys(a.dk), a.dk.position);
    unpack(here.dv, keys.count, a.size, at_keys(a.dv), a.dv.position);
  }
  for (int64_t own = 0; own < heads; ++own)
    unpack(memory.sum + own * a.queries * by_size, a.queries, a.size, at_head(a.dq, batch, of(own).head), a.dq.position,
           a.scale);
}

/// Computes the gradients of key-value heads [begin, end) of batch * kv_heads, with all query heads that read them.
template <class T>
void attention_backward(const AttentionTask<T>& a, int64_t begin, int64_t end, WideOf<T>* scratch) {
  AttentionMemory<T> memory(a, scratch);
  const int64_t group = a.heads / a.kv_heads;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t batch = item / a.kv_heads, kv_head = item % a.kv_heads, blocks = memory.find_blocks(a, batch);
    for (int64_t first = 0; first < group; first += memory.heads)
      heads_gradients(a, batch, kv_head, kv_head * group + first,
                      group - first < memory.heads ? group - first : memory.heads, blocks, memory);
  }
}

}  // namespace
}  // namespace colossal::ops
