#include "colossal/infer/sampler.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/tensor/host_value.h"

namespace colossal::infer {

void SamplingOptions::fields(Fields& f) {
  f.number("temperature", temperature, "", "0: the most probable token; 1: as the model says; higher: more varied", 0,
           100);
  f.integer("top_k", top_k, "tokens", "draw from the k most probable; 0: all");
  f.number("top_p", top_p, "probability", "draw from the most probable that together reach it", 1e-9, 1);
  f.integer("seed", seed, "", "of the draws");
}

at::Tensor pick(const at::Tensor& logits, const SamplingOptions& options, double uniform) {
  if (options.temperature == 0) return logits.argmax();
  // In the dtype of the logits, which is short to sort, and whose order a wider one keeps.
  const auto [sorted, ids] = logits.sort(/*stable=*/true, -1, /*descending=*/true);
  const at::Tensor total = (sorted.to(at::kDouble) / options.temperature).softmax(-1).cumsum(-1);
  const int64_t words = logits.size(0), most = options.top_k > 0 ? std::min(options.top_k, words) : words;
  // Numbers of the device, which the host does not know: the last token that is kept, and the one of `uniform` of the
  // probability up to it.
  at::Tensor last = at::full({1}, most - 1, ids.options());
  if (options.top_p < 1) last = at::minimum(last, total.lt(options.top_p).sum());
  const at::Tensor point = total.index_select(0, last) * uniform;
  return ids.index_select(0, at::minimum(last, total.le(point).sum())).squeeze(0);
}

int64_t pick_reference(const std::vector<double>& logits, const SamplingOptions& options, double uniform) {
  std::vector<int64_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), int64_t{0});
  std::stable_sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
  if (options.temperature == 0) return ids.front();
  double all = 0;
  std::vector<double> total;  // of the first ones, the most probable taken for 1
  for (const int64_t id : ids)
    total.push_back(all += std::exp((logits[id] - logits[ids.front()]) / options.temperature));
  size_t kept = 1;
  while (kept < ids.size() && (options.top_k == 0 || kept < static_cast<size_t>(options.top_k)) &&
         (options.top_p == 1 || total[kept - 1] < options.top_p * all))
    ++kept;
  size_t picked = 0;
  while (picked + 1 < kept && total[picked] <= uniform * total[kept - 1]) ++picked;
  return ids[picked];
}

Sampler::Sampler(const SamplingOptions& options) : options_(options) {
  require(options.temperature >= 0 && options.top_k >= 0 && options.top_p > 0 && options.top_p <= 1, "sampling",
          "temperature and top_k must not be negative and top_p must lie in (0, 1]: got temperature ",
          options.temperature, ", top_k ", options.top_k, ", top_p ", options.top_p);
}

int64_t Sampler::next(const at::Tensor& logits) {
  // 53 random bits make a double in [0, 1).
  const uint64_t bits = derive_seed(derive_seed(static_cast<uint64_t>(options_.seed), "sampling"), drawn_);
  if (options_.temperature != 0) ++drawn_;
  return static_cast<int64_t>(tensor::host_value(pick(logits, options_, static_cast<double>(bits >> 11) * 0x1p-53)));
}

}  // namespace colossal::infer
