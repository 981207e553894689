#include "colossal/infer/sampler.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"

namespace colossal::infer {

void SamplingOptions::fields(Fields& f) {
  f.number("temperature", temperature, "", "0: the most probable token; 1: as the model says; higher: more varied", 0,
           100);
  f.integer("top_k", top_k, "tokens", "draw from the k most probable; 0: all");
  f.number("top_p", top_p, "probability", "draw from the most probable that together reach it", 1e-9, 1);
  f.integer("seed", seed, "", "of the draws");
}

Sampler::Sampler(const SamplingOptions& options) : options_(options) {
  require(options.temperature >= 0 && options.top_k >= 0 && options.top_p > 0 && options.top_p <= 1, "sampling",
          "temperature and top_k must not be negative and top_p must lie in (0, 1]: got temperature ",
          options.temperature, ", top_k ", options.top_k, ", top_p ", options.top_p);
}

int64_t Sampler::next(const at::Tensor& logits) {
  const at::Tensor scores = logits.to(at::kCPU, at::kDouble);
  if (options_.temperature == 0) return scores.argmax().item<int64_t>();
  auto [sorted, ids] = scores.sort(/*stable=*/true, -1, /*descending=*/true);
  at::Tensor probabilities = (sorted / options_.temperature).softmax(-1);
  int64_t kept = probabilities.size(0);
  if (options_.top_k > 0) kept = std::min(kept, options_.top_k);
  const at::Tensor total = probabilities.cumsum(-1);
  if (options_.top_p < 1) kept = std::min(kept, (total < options_.top_p).sum().item<int64_t>() + 1);
  // 53 random bits make a double in [0, 1), scaled to the mass that is kept.
  const uint64_t bits = derive_seed(derive_seed(static_cast<uint64_t>(options_.seed), "sampling"), drawn_++);
  const double point = static_cast<double>(bits >> 11) * 0x1p-53 * total[kept - 1].item<double>();
  const int64_t index = std::min((total.narrow(0, 0, kept) <= point).sum().item<int64_t>(), kept - 1);
  return ids[index].item<int64_t>();
}

}  // namespace colossal::infer
