#include "colossal/nn/paged_cache.h"

#include <ATen/ATen.h>

#include <numeric>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"

namespace colossal::nn {

std::unique_ptr<PagedCache> PagedCache::of_one_sequence(int64_t capacity) {
  constexpr int64_t kPageTokens = 64;
  const int64_t pages = (capacity + kPageTokens - 1) / kPageTokens;
  auto cache = std::make_unique<PagedCache>(pages, kPageTokens);
  std::vector<int32_t> all(pages);
  std::iota(all.begin(), all.end(), 0);
  cache->take({{.pages = std::move(all)}});
  return cache;
}

void PagedCache::take(std::vector<ops::PagedSequence> sequences) {
  sequences_ = std::move(sequences);
  lengths_.clear();
  for (ops::PagedSequence& s : sequences_) {
    s.first_page = rank_, s.page_stride = ranks_;
    lengths_.push_back(s.held);
  }
}

std::vector<int64_t> PagedCache::added(const ForwardContext& step, int64_t tokens) const {
  std::vector<int64_t> lengths = sequences_of(step).in(tokens);
  require(lengths.size() == sequences_.size(), "paged_cache",
          "a step must have the number of sequences that take() was given: got ", lengths.size(), " for ",
          sequences_.size());
  return lengths;
}

KeysValues PagedCache::append(int64_t layer, const at::Tensor& k, const at::Tensor& v, const ForwardContext& step) {
  require(!step.cut, "paged_cache",
          "a step must have all tokens of each sequence: got some of them, of a sequence that is split over ranks; use "
          "the cache that DistributedModel::make_cache returns");
  require(k.size(0) == 1, "paged_cache", "a step must have one row that holds all sequences: got ", k.size(0));
  if (layer >= static_cast<int64_t>(layers_.size())) layers_.resize(layer + 1);
  ops::Pages& pages = layers_[layer];
  if (!pages.v.defined())
    pages = ops::make_pages(count_, page_tokens_, k.size(2), k.size(3),
                            k.options().requires_grad(false).dtype(dtype_.value_or(k.scalar_type())), !v.defined());
  ops::write_pages(pages, sequences_, k[0], v.defined() ? v[0] : v, added(step, k.size(1)));
  KeysValues held;
  if (ranks_ > 1) held.part.emplace();
  held.paged = {&pages, &sequences_};
  return held;
}

void PagedCache::advance(const ForwardContext& step, int64_t tokens) {
  const std::vector<int64_t> lengths = added(step, tokens);
  for (size_t i = 0; i < lengths.size(); ++i) lengths_[i] = sequences_[i].held += lengths[i];
}

}  // namespace colossal::nn
