// The cache of decoding in pages: sequences of any lengths share one pool, and come and go.
//
//   nn::PagedCache cache(256, 64);                              // 256 pages of 64 tokens
//   cache.take({{.pages = {0, 1}}, {.pages = {7}, .held = 30}});  // the sequences of the next steps
//   nn::Step step{.positions = ..., .sequences = {{5, 1}}, .cache = &cache};   // 5 tokens of one, 1 of the other
//
// The caller that runs the model says which sequence has which page.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "colossal/nn/attention_cache.h"
#include "colossal/ops/paged_attention.h"

namespace colossal::nn {

/// What append() gives back are pages (KeysValues::paged); of a share of the sequences, for an attention that merges
/// what ranks have (parallel/sequence/decoding.h), with an empty KeysValues::part.
///
/// Errors ("paged_cache"): steps of more than one row, or of other numbers of sequences than were taken; those of
///                         ops::write_pages.
/// Memory:        a pair of pools a layer, [pages, page tokens, N_kv, D], allocated when the layer first appends and
///                touched when pages are written.
/// Thread safety: none.
class PagedCache final : public AttentionCache {
 public:
  /// Whether there is a kernel for attention to pages there.
  static bool serves(at::Device device, at::ScalarType dtype) { return ops::has_paged_attention(device, dtype); }
  /// Makes the cache of one of `ranks` ranks that share each sequence by pages. It has every ranks-th page, from the
  /// rank-th on. `dtype` is that of the pages: of 8-bit quantized values (ops::make_pages); none = that of keys and
  /// values.
  PagedCache(int64_t pages, int64_t page_tokens, int64_t rank = 0, int64_t ranks = 1,
             std::optional<at::ScalarType> dtype = {})
      : count_(pages), page_tokens_(page_tokens), rank_(rank), ranks_(ranks), dtype_(dtype) {}
  /// One that has taken a sequence, with pages for `capacity` tokens.
  static std::unique_ptr<PagedCache> of_one_sequence(int64_t capacity);
  void take(std::vector<ops::PagedSequence> sequences);
  KeysValues append(int64_t layer, const at::Tensor& k, const at::Tensor& v, const Step& step) override;
  void advance(const Step& step, int64_t tokens) override;
  const std::vector<int64_t>& lengths() const override { return lengths_; }

 private:
  std::vector<int64_t> added(const Step& step, int64_t tokens) const;

  int64_t count_, page_tokens_, rank_, ranks_;
  std::optional<at::ScalarType> dtype_;
  std::vector<ops::PagedSequence> sequences_;
  std::vector<int64_t> lengths_;
  std::vector<ops::Pages> layers_;  // without pages where the rank has none
};

}  // namespace colossal::nn
