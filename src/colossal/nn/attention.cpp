#include "colossal/nn/attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "colossal/base/error.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/canonical.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/tokens.h"
#include "colossal/ops/attention/attention.h"
#include "colossal/ops/attention/ordered.h"
#include "colossal/ops/attention/paged.h"
#include "colossal/ops/rotary.h"

namespace colossal::nn {
namespace {

bool all_equal(const std::vector<int64_t>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [&](int64_t n) { return n == numbers.front(); });
}

/// Attention of a rank that has whole sequences.
class WholeAttention final : public Attention {
 public:
  WholeAttention(int64_t layer, const AttentionShape& shape, const AttentionOptions& options)
      : layer_(layer), heads_(shape.heads), options_(options) {
    // of the shape's heads, because heads that read latents have more features
    if (options_.scale == 0) options_.scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  }

  Inside forward(const Heads& heads, const ForwardContext& step) override {
    require(heads.tokens.sequence.is_all(), "parallel",
            "attention of whole sequences needs all tokens of each row: got some of them; use a layout that gathers "
            "the sequence inside, or an attention that reads keys of other ranks");
    if (options_.alibi && !slopes_.defined()) slopes_ = alibi_slopes_of(heads, heads_, options_);
    const std::vector<int64_t> lengths = sequences_of(step).in(heads.q.size(1));
    AttentionCache* cache = cache_of(step);
    require(!cache || !step.documents.defined(), "model",
            "a step must not have both documents and a cache: documents describe the tokens of the step, not those in "
            "the cache; pass separate texts as sequences (nn::ForwardContext::sequences)");
    Documents documents{heads.tokens.of(step.documents), nullptr, is_canonical(step)};
    if (step.known_documents) documents.runs = step.known_documents->runs(heads.tokens, heads.q.device());
    KeysValues held;
    if (cache) held = cache->append(layer_, heads.k, heads.v, step);
    require(!held.part, "parallel",
            "attention of whole sequences needs all keys of a cache: got some of them, of a cache that ranks share; "
            "use a nn::KvCache, or layers that merge the ranks' parts (DistributedModel::decoding_model)");
    const at::Tensor out = held.paged.pages     ? to_pages(heads.q[0], held.paged, lengths).unsqueeze(0)
                           : all_equal(lengths) ? at_once(heads, documents, held, static_cast<int64_t>(lengths.size()))
                                                : one_by_one(heads, documents, held, lengths);
    return {heads.finish ? heads.finish(out) : out.flatten(2)};
  }

 private:
  struct Documents {
    at::Tensor ids;                                 // undefined = no documents
    std::shared_ptr<const ops::DocumentRuns> runs;  // runs of the documents; null = not computed so far
    bool in_order = false;                          // true = sums are those of generation (nn/canonical.h)
  };

  // Returns the attention of q to keys in pages: q [T, N, D] -> [T, N, D].
  at::Tensor to_pages(const at::Tensor& q, const PagedKeys& keys, const std::vector<int64_t>& lengths) const {
    require(options_.causal, "model", "attention to a paged cache must be causal");
    return ops::paged_attention(q, *keys.pages, *keys.sequences, lengths,
                                {options_.scale, options_.window, slopes_, options_.soft_cap});
  }

  // Returns q [n, S, N, D], k and v [n, T, N_kv, D] -> [n, S, N, D]. `grows`: k and v come from a cache.
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Documents& documents,
                    const std::vector<int64_t>& lengths, bool grows) const {
    ops::AttentionMask mask = mask_of(options_, slopes_);
    mask.documents = documents.ids, mask.runs = documents.runs;
    mask.grows = grows;
    if (!lengths.empty() && !(all_equal(lengths) && lengths.front() == k.size(1))) mask.lengths = lengths;
    const auto attention = documents.in_order && !grows ? ops::ordered_attention : ops::attention;
    return attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask).transpose(1, 2);
  }

  // Computes `count` sequences of equal length per row as that many rows.
  at::Tensor at_once(const Heads& heads, const Documents& documents, const KeysValues& held, int64_t count) const {
    const auto cut = [&](const at::Tensor& x) {
      return count == 1 || !x.defined() ? x : x.unflatten(1, {count, -1}).flatten(0, 1);
    };
    const Documents own = count == 1 ? documents : Documents{cut(documents.ids), nullptr, documents.in_order};
    const at::Tensor out = held.k.defined() ? attend(cut(heads.q), held.k, held.v, own, held.lengths, true)
                                            : attend(cut(heads.q), cut(heads.k), cut(heads.v), own, {}, false);
    return count == 1 ? out : out.unflatten(0, {-1, count}).flatten(1, 2);
  }

  // Computes sequences of unequal lengths: one sequence of all rows at a time.
  at::Tensor one_by_one(const Heads& heads, const Documents& documents, const KeysValues& held,
                        const std::vector<int64_t>& lengths) const {
    const auto split = [&](const at::Tensor& x) {
      return x.defined() ? x.split_with_sizes(lengths, 1) : std::vector<at::Tensor>(lengths.size());
    };
    const auto q = split(heads.q), ids = split(documents.ids);
    const auto k = held.k.defined() ? std::vector<at::Tensor>() : split(heads.k), v = k.empty() ? k : split(heads.v);
    const auto count = static_cast<int64_t>(lengths.size());
    std::vector<at::Tensor> out;
    for (int64_t i = 0; i < count; ++i) {
      if (lengths[i] == 0) continue;
      const auto own = [&](const at::Tensor& all) {
        return all.unflatten(0, {-1, count}).select(1, i).narrow(1, 0, held.lengths[i]);
      };
      const Documents none_known{ids[i], nullptr, documents.in_order};
      out.push_back(held.k.defined() ? attend(q[i], own(held.k), own(held.v), none_known, {}, true)
                                     : attend(q[i], k[i], v[i], none_known, {}, false));
    }
    return at::cat(out, 1);
  }

  int64_t layer_, heads_;
  AttentionOptions options_;
  at::Tensor slopes_;  // slopes of this rank's heads, made when the heads are known
};

/// Attention to values that have fewer features than keys.
class PaddedValues final : public Attention {
 public:
  PaddedValues(std::unique_ptr<Attention> inner, int64_t head_dim, int64_t value_dim)
      : inner_(std::move(inner)), head_dim_(head_dim), value_dim_(value_dim) {}

  Inside forward(const Heads& heads, const ForwardContext& step) override {
    if (heads.finish) return inner_->forward(heads, step);
    Heads padded = heads;
    padded.v = at::constant_pad_nd(heads.v, {0, head_dim_ - value_dim_});
    const at::Tensor out = inner_->forward(padded, step).tensor.unflatten(-1, {-1, head_dim_});
    return {out.narrow(-1, 0, value_dim_).flatten(2)};
  }

 private:
  std::unique_ptr<Attention> inner_;
  int64_t head_dim_, value_dim_;
};

}  // namespace

Heads split_heads(const at::Tensor& fused, int64_t heads_local, int64_t kv_heads_local, int64_t head_dim) {
  // One split, not three narrows: the backward of each narrow would fill a zero gradient of the whole and add them up.
  const int64_t kv = kv_heads_local * head_dim;
  const auto parts = fused.split_with_sizes({heads_local * head_dim, kv, kv}, -1);
  auto heads = [&](const at::Tensor& part) { return part.unflatten(-1, {-1, head_dim}); };
  return {heads(parts[0]), heads(parts[1]), heads(parts[2]), {}};
}

Heads cross_heads_of(const at::Tensor& q, const at::Tensor& kv, int64_t head_dim) {
  const at::Tensor queries = q.unflatten(-1, {-1, head_dim});
  if (!kv.defined()) {
    const at::Tensor none = queries.detach().narrow(1, 0, 0);
    return {queries, none, none, {}};
  }
  const auto parts = kv.chunk(2, -1);
  return {queries, parts[0].unflatten(-1, {-1, head_dim}), parts[1].unflatten(-1, {-1, head_dim}), {}};
}

void check_cross_heads(const std::string& name, const AttentionShape& shape) {
  require(shape.kv_heads == shape.heads, "model", "the projection ", name,
          " of two hidden states must have as many kv_heads as heads: got ", shape.kv_heads, " and ", shape.heads);
}

at::Tensor alibi_slopes_of(const Heads& here, int64_t heads, const AttentionOptions& options) {
  const int64_t count = here.q.size(2), padded = std::max(heads, here.first_head + count);
  return at::constant_pad_nd(ops::alibi_slopes(heads) * options.alibi_scale, {0, padded - heads})
      .narrow(0, here.first_head, count)
      .to(here.q.device());
}

namespace {

/// Rotates each token by the frequencies of its own sequence (Sequences::reach). `tokens` = tokens of a row.
void turn_apart(Heads& heads, const ForwardContext& step, const ops::RotaryTable& table, int64_t tokens) {
  const Sequences& sequences = sequences_of(step);
  const std::vector<int64_t> counts = sequences.in(tokens);
  require(counts.size() == sequences.reach.size(), "model", "each of the ", counts.size(),
          " sequences of a step must have a reach: got ", sequences.reach.size());
  std::vector<int64_t> all, own;  // reach of each token of the row, and of those on this rank
  for (size_t i = 0; i < counts.size(); ++i) all.insert(all.end(), counts[i], sequences.reach[i]);
  for (const Range& range : heads.tokens.sequence.ranges(tokens, "sequence"))
    own.insert(own.end(), all.begin() + range.first, all.begin() + range.first + range.size);
  const at::Tensor positions = heads.tokens.of(step.positions);
  const auto count = static_cast<int64_t>(own.size());
  std::vector<at::Tensor> q, k;
  for (int64_t first = 0, end = 0; first < count; first = end) {
    while (end < count && table.turns_alike(own[first], own[end])) ++end;
    const auto part = [&](const at::Tensor& x) { return x.narrow(1, first, end - first); };
    auto [turned_q, turned_k] = ops::rotary(part(heads.q), part(heads.k), part(positions), table, own[first]);
    q.push_back(std::move(turned_q)), k.push_back(std::move(turned_k));
  }
  if (count == 0) return;
  heads.q = q.size() == 1 ? q.front() : at::cat(q, 1);
  heads.k = k.size() == 1 ? k.front() : at::cat(k, 1);
}

/// Returns the length of the document of each token of this rank, [B, S]; undefined if the host does not know them.
at::Tensor document_lengths(const Heads& heads, const ForwardContext& step) {
  if (!step.documents.defined()) return {};
  const at::Tensor lengths =
      step.known_documents ? step.known_documents->lengths() : BatchDocuments(step.documents).lengths();
  Tokens own = heads.tokens;
  own.sequence.given.clear();  // documents always have all tokens
  return own.of(lengths);
}

/// Rotates each token by the frequencies of its own document. `lengths` [B, S].
void turn_documents(Heads& heads, const ForwardContext& step, const ops::RotaryTable& table,
                    const at::Tensor& lengths) {
  const at::Tensor dense = lengths.contiguous().view({-1});
  const std::span<const int64_t> all(dense.const_data_ptr<int64_t>(), static_cast<size_t>(dense.numel()));
  std::vector<int64_t> kinds;                 // a length of each set of frequencies
  std::vector<std::vector<int64_t>> of_kind;  // their tokens
  for (size_t token = 0; token < all.size(); ++token) {
    size_t kind = 0;
    while (kind < kinds.size() && !table.turns_alike(kinds[kind], all[token])) ++kind;
    if (kind == kinds.size()) kinds.push_back(all[token]), of_kind.emplace_back();
    of_kind[kind].push_back(static_cast<int64_t>(token));
  }
  const at::Tensor positions = heads.tokens.of(step.positions);
  if (kinds.size() < 2) {
    const int64_t length = kinds.empty() ? 1 : kinds.front();
    std::tie(heads.q, heads.k) = ops::rotary(heads.q, heads.k, positions, table, length);
    return;
  }
  // Tokens of one kind are put together, so that each kind takes one call, and then put back.
  std::vector<int64_t> order, sizes;
  for (const std::vector<int64_t>& own : of_kind) {
    order.insert(order.end(), own.begin(), own.end());
    sizes.push_back(static_cast<int64_t>(own.size()));
  }
  const at::Tensor there = at::tensor(order, at::kLong).to(positions.device()), back = there.argsort();
  const auto split = [&](const at::Tensor& x) {
    return x.flatten(0, 1).index_select(0, there).unsqueeze(0).split_with_sizes(sizes, 1);
  };
  const std::vector<at::Tensor> qs = split(heads.q), ks = split(heads.k), places = split(positions);
  std::vector<at::Tensor> q, k;
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    auto [turned_q, turned_k] = ops::rotary(qs[kind], ks[kind], places[kind], table, kinds[kind]);
    q.push_back(std::move(turned_q)), k.push_back(std::move(turned_k));
  }
  const auto joined = [&](const std::vector<at::Tensor>& parts, const at::Tensor& like) {
    return at::cat(parts, 1).squeeze(0).index_select(0, back).unflatten(0, {like.size(0), like.size(1)});
  };
  heads.q = joined(q, heads.q), heads.k = joined(k, heads.k);
}

}  // namespace

void turn(Heads& heads, const ForwardContext& step, const ops::RotaryTable& table) {
  const int64_t tokens = step.cut ? step.cut->tokens() : step.positions.size(1);
  if (table.depends_on_length() && !sequences_of(step).reach.empty()) return turn_apart(heads, step, table, tokens);
  if (table.depends_on_length())
    if (const at::Tensor own = document_lengths(heads, step); own.defined())
      return turn_documents(heads, step, table, own);
  std::vector<int64_t> lengths = sequences_of(step).in(tokens);
  if (const AttentionCache* cache = cache_of(step))
    for (size_t i = 0; i < cache->lengths().size() && i < lengths.size(); ++i) lengths[i] += cache->lengths()[i];
  std::tie(heads.q, heads.k) = ops::rotary(heads.q, heads.k, heads.tokens.of(step.positions), table,
                                           *std::max_element(lengths.begin(), lengths.end()));
}

void turn(Heads& heads, const at::Tensor& positions, const std::vector<ops::RotaryTable>& axes) {
  const at::Tensor own = heads.tokens.sequence.of(positions, 0, "sequence").unsqueeze(0);
  for (at::Tensor* x : {&heads.q, &heads.k}) *x = ops::rotary(*x, own.expand({x->size(0), -1, -1}), axes);
}

ops::AttentionMask mask_of(const AttentionOptions& options, const at::Tensor& slopes) {
  return {.causal = options.causal,
          .scale = options.scale,
          .window = options.window,
          .alibi = slopes,
          .soft_cap = options.soft_cap};
}

std::unique_ptr<Attention> whole_attention(int64_t layer, const AttentionShape& shape,
                                           const AttentionOptions& options) {
  return std::make_unique<WholeAttention>(layer, shape, options);
}

Inside attention_to_source(const Heads& heads, const at::Tensor& mask) {
  const int64_t rows = heads.q.size(0), queries = heads.q.size(1);
  ops::AttentionMask rules{.causal = false};
  if (mask.defined()) {
    rules.documents = heads.tokens.rows_of(mask);  // every query is in document 1
    rules.query_documents = at::ones({1, 1}, rules.documents.options()).expand({rows, queries});
    rules.queries = {{0, queries}};
  }
  const at::Tensor out =
      ops::attention(heads.q.transpose(1, 2), heads.k.transpose(1, 2), heads.v.transpose(1, 2), rules);
  return {out.transpose(1, 2).flatten(2)};
}

std::unique_ptr<Attention> Layers::attention(const std::string& name, const AttentionShape& shape,
                                             const AttentionOptions& options) {
  require(options.window >= 0 && options.soft_cap >= 0, "model", "window and soft_cap of ", name,
          " must be 0 (none) or more: got ", options.window, " and ", options.soft_cap);
  const int64_t values = shape.value_dim();
  require(values <= shape.head_dim, "model", "a head of ", name, " must have no more features of v than of k: got ",
          values, " and ", shape.head_dim);
  AttentionShape padded = shape;
  padded.v_head_dim = 0;
  std::unique_ptr<Attention> made = make_attention(attentions_++, padded, options);
  if (values == shape.head_dim) return made;
  return std::make_unique<PaddedValues>(std::move(made), shape.head_dim, values);
}

}  // namespace colossal::nn
