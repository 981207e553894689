// The KV cache of decoding in pages: sequences of any lengths share one pool of pages, and may start and end at any
// step.
//
//   nn::PagedCache cache(256, 64);                              // 256 pages of 64 tokens
//   cache.take({{.pages = {0, 1}}, {.pages = {7}, .held = 30}});  // the sequences of the next steps
//   nn::ForwardContext step{.positions = ..., .sequences = {{5, 1}}, .cache = &cache};  // 5 tokens and 1 token
//
// The caller that runs the model decides which sequence owns which page.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "colossal/nn/attention_cache.h"
#include "colossal/ops/attention/paged.h"

namespace colossal::nn {

/// A cache whose append() returns pages (KeysValues::paged). If the cache holds a share of each sequence,
/// KeysValues::part is also set, to an empty list; the attention must then merge the ranks' results
/// (parallel/sequence/decoding.h).
///
/// Errors ("paged_cache"): a step of more than one row, with a ForwardContext::cut, or with another number of sequences
///                         than take() was given; those of ops::write_pages.
/// Memory:        two pools [pages, page tokens, N_kv, D] per layer (one if the values are the keys), allocated when
///                the layer first appends. Memory of a page is touched when the page is written.
/// Thread safety: none.
class PagedCache final : public AttentionCache {
 public:
  /// Returns true if there is a kernel for attention to pages on that device with that dtype.
  static bool serves(at::Device device, at::ScalarType dtype) { return ops::has_paged_attention(device, dtype); }
  /// Makes the cache of one of `ranks` ranks that split each sequence by pages. It holds every ranks-th page, starting
  /// with page number `rank`. `dtype` is the dtype of the pages: a dtype of 8-bit quantized values (ops::make_pages);
  /// none = the dtype of keys and values.
  PagedCache(int64_t pages, int64_t page_tokens, int64_t rank = 0, int64_t ranks = 1,
             std::optional<at::ScalarType> dtype = {})
      : count_(pages), page_tokens_(page_tokens), rank_(rank), ranks_(ranks), dtype_(dtype) {}
  /// Returns a cache that has taken one sequence, with pages for `capacity` tokens.
  static std::unique_ptr<PagedCache> of_one_sequence(int64_t capacity);
  /// Sets the sequences of the next steps, with their pages and the tokens that they already hold. The cache sets
  /// first_page and page_stride itself.
  void take(std::vector<ops::PagedSequence> sequences);
  KeysValues append(int64_t layer, const at::Tensor& k, const at::Tensor& v, const ForwardContext& step) override;
  bool joins_values() const override { return ranks_ == 1; }
  void advance(const ForwardContext& step, int64_t tokens) override;
  const std::vector<int64_t>& lengths() const override { return lengths_; }

 private:
  std::vector<int64_t> added(const ForwardContext& step, int64_t tokens) const;

  int64_t count_, page_tokens_, rank_, ranks_;
  std::optional<at::ScalarType> dtype_;
  std::vector<ops::PagedSequence> sequences_;
  std::vector<int64_t> lengths_;
  std::vector<ops::Pages> layers_;  // one per layer; without pages for layers that this rank does not have
};

}  // namespace colossal::nn
