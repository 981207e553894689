#include "colossal/infer/sampler.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/tensor/host_value.h"

namespace colossal::infer {

void SamplingOptions::check() const {
  require(temperature >= 0 && std::isfinite(temperature) && top_k >= 0 && top_p > 0 && top_p <= 1, "sampling",
          "temperature and top_k must not be negative and top_p must lie in (0, 1]: got temperature ", temperature,
          ", top_k ", top_k, ", top_p ", top_p);
  require(min_p >= 0 && min_p <= 1, "sampling", "min_p must lie in [0, 1]: got ", min_p);
  require(repetition_penalty > 0 && std::isfinite(repetition_penalty), "sampling",
          "repetition_penalty must be positive: got ", repetition_penalty);
  require(std::isfinite(presence_penalty) && std::isfinite(frequency_penalty), "sampling",
          "presence_penalty and frequency_penalty must be finite: got ", presence_penalty, " and ", frequency_penalty);
  for (const auto& [id, bias] : logit_bias)
    require(id >= 0 && bias < std::numeric_limits<double>::infinity(), "sampling",
            "a logit bias must be a number, or minus infinity, for a token: got ", bias, " for ", id);
}

at::Tensor pick(const at::Tensor& logits, const SamplingOptions& options, double uniform) {
  if (options.temperature == 0) return logits.argmax();
  // In the dtype of the logits, which is short to sort, and whose order a wider one keeps.
  const auto [sorted, ids] = logits.sort(/*stable=*/true, -1, /*descending=*/true);
  const at::Tensor probable = (sorted.to(at::kDouble) / options.temperature).softmax(-1), total = probable.cumsum(-1);
  const int64_t words = logits.size(0), most = options.top_k > 0 ? std::min(options.top_k, words) : words;
  // Numbers of the device, which the host does not know: the last token that is kept, and the one of `uniform` of the
  // probability up to it.
  at::Tensor last = at::full({1}, most - 1, ids.options());
  if (options.top_p < 1) last = at::minimum(last, total.lt(options.top_p).sum());
  if (options.min_p > 0) last = at::minimum(last, probable.ge(probable.narrow(0, 0, 1) * options.min_p).sum() - 1);
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
         (options.top_p == 1 || total[kept - 1] < options.top_p * all) &&
         total[kept] - total[kept - 1] >= options.min_p * total[0])
    ++kept;
  size_t picked = 0;
  while (picked + 1 < kept && total[picked] <= uniform * total[kept - 1]) ++picked;
  return ids[picked];
}

Sampler::Sampler(const SamplingOptions& options, const std::vector<int64_t>& prompt) : options_(options) {
  options.check();
  if (options.repetition_penalty != 1)
    for (const int64_t id : prompt) times_.emplace(id, 0);
}

// Of the logits [n] of tokens that were seen or have a bias, in fp64, and back.
at::Tensor Sampler::adjusted(const at::Tensor& logits) const {
  std::map<int64_t, double> less;  // what is taken from a logit
  for (const auto& [id, times] : times_)
    less[id] = static_cast<double>(times) * options_.frequency_penalty + (times > 0 ? options_.presence_penalty : 0);
  for (const auto& [id, bias] : options_.logit_bias) {
    require(id < logits.size(0), "sampling", "a logit bias must be of a token of the vocabulary of ", logits.size(0),
            ": got ", id);
    less[id] -= bias;
  }
  std::vector<int64_t> ids;
  std::vector<double> taken, factors;
  for (const auto& [id, number] : less) {
    ids.push_back(id), taken.push_back(number);
    factors.push_back(times_.contains(id) ? options_.repetition_penalty : 1);
  }
  if (ids.empty()) return logits;
  const auto there = [&](const auto& numbers, at::ScalarType type) {
    return at::tensor(numbers, type).to(logits.device());
  };
  const at::Tensor at = there(ids, at::kLong), factor = there(factors, at::kDouble);
  // wide: what a penalty takes must not be lost in the last bits of a narrow logit
  at::Tensor all = logits.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  const at::Tensor own = all.index_select(0, at);
  const at::Tensor repeated = at::where(own.gt(0), own / factor, own * factor);
  return all.index_copy_(0, at, repeated - there(taken, at::kDouble));
}

int64_t Sampler::next(const at::Tensor& logits) {
  // 53 random bits make a double in [0, 1).
  const uint64_t bits = derive_seed(derive_seed(static_cast<uint64_t>(options_.seed), "sampling"), drawn_);
  if (options_.temperature != 0) ++drawn_;
  const at::Tensor asked = options_.changes_logits() ? adjusted(logits) : logits;
  const auto token =
      static_cast<int64_t>(tensor::host_value(pick(asked, options_, static_cast<double>(bits >> 11) * 0x1p-53)));
  if (options_.changes_logits()) ++times_[token];
  return token;
}

}  // namespace colossal::infer
