#include "colossal/infer/decoding/sampler.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

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

namespace {

constexpr int64_t kWordsAtOnce = 256;

/// Returns the first index of the largest logit, or of the first NaN. LibTorch's argmax on the CPU compares one number
/// at a time, which takes a twentieth of a small model's token. Narrow logits keep their order in fp32.
at::Tensor largest(const at::Tensor& logits) {
  if (!logits.is_cpu() || logits.scalar_type() == at::kDouble || logits.numel() == 0) return logits.argmax();
  const at::Tensor dense = logits.to(at::kFloat).contiguous();
  const float most = dense.amax().item<float>();
  if (std::isnan(most)) return logits.argmax();
  const std::span<const float> words(dense.const_data_ptr<float>(), static_cast<size_t>(dense.numel()));
  size_t first = 0;
  for (; first < words.size(); first += kWordsAtOnce) {  // without an exit inside, the compiler compares by vectors
    const auto some = words.subspan(first, std::min<size_t>(kWordsAtOnce, words.size() - first));
    int found = 0;
    for (const float word : some) found |= static_cast<int>(word == most);
    if (found != 0) break;
  }
  const auto at = std::find(words.begin() + static_cast<std::ptrdiff_t>(first), words.end(), most);
  return at::scalar_tensor(at - words.begin(), at::kLong);
}

/// Tokens in descending order of probability. All results stay on the device, so the host does not wait for them.
struct Ranked {
  Ranked(const at::Tensor& logits, const SamplingOptions& options) {
    // Sorts in the dtype of the logits: a narrow dtype sorts faster, and a wider one has the same order.
    const auto [sorted, order] = logits.sort(/*stable=*/true, -1, /*descending=*/true);
    ids = order;
    probable = (sorted.to(at::kDouble) / options.temperature).softmax(-1);
    total = probable.cumsum(-1);
    const int64_t words = logits.size(0), kept = options.top_k > 0 ? std::min(options.top_k, words) : words;
    last = at::full({1}, kept - 1, ids.options());
    if (options.top_p < 1) last = at::minimum(last, total.lt(options.top_p).sum());
    if (options.min_p > 0) last = at::minimum(last, probable.ge(probable.narrow(0, 0, 1) * options.min_p).sum() - 1);
    last = last.clamp_min(0);  // NaN logits would leave no token
  }
  at::Tensor ids, probable, total;  // [V]
  at::Tensor last;                  // [1], index of the last token that the filters keep
};

/// Weights exp((logit - largest) / temperature) of dense logits on the host, in fp64.
std::vector<double> weights_of(const at::Tensor& logits, float most, double temperature) {
  constexpr int64_t kFewWords = 2048;  // an operator takes longer to start than the loop over so many
  const auto* words = logits.const_data_ptr<float>();
  std::vector<double> weights(static_cast<size_t>(logits.numel()));
  if (logits.numel() <= kFewWords) {
    for (size_t i = 0; i < weights.size(); ++i)
      weights[i] = std::exp((words[i] - static_cast<double>(most)) / temperature);
    return weights;
  }
  at::Tensor all = at::from_blob(weights.data(), {logits.numel()}, at::kDouble);
  all.copy_(logits).sub_(most).div_(temperature).exp_();
  return weights;
}

/// Returns the token that pick() selects without filters, from dense fp32 logits on the host whose largest is `most`.
/// A sort of the whole vocabulary takes longer than the model's token. So tokens go to buckets of close logits, and
/// only the tokens of the bucket that `uniform` selects are sorted.
int64_t picked_of_all(const at::Tensor& logits, float most, double temperature, double uniform) {
  constexpr size_t kBuckets = 512;
  constexpr double kBucketsPerUnit = 8;  // of (most - logit) / temperature
  const auto* words = logits.const_data_ptr<float>();
  const std::vector<double> weights = weights_of(logits, most, temperature);
  const auto bucket_of = [&](size_t word) {
    const double place = (static_cast<double>(most) - words[word]) / temperature * kBucketsPerUnit;
    return place < kBuckets - 1 ? static_cast<size_t>(place) : kBuckets - 1;
  };
  std::array<double, kBuckets> sums{};
  for (size_t word = 0; word < weights.size(); ++word) sums[bucket_of(word)] += weights[word];
  const double point = std::accumulate(sums.begin(), sums.end(), 0.0) * uniform;
  double before = 0;
  int64_t last = 0;  // of weight above 0
  for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
    const double after = before + sums[bucket];
    if (after <= point && bucket + 1 < kBuckets) {
      before = after;
      continue;
    }
    std::vector<int64_t> ids;
    for (size_t word = 0; word < weights.size(); ++word)
      if (bucket_of(word) == bucket && weights[word] > 0) ids.push_back(static_cast<int64_t>(word));
    std::stable_sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) { return words[a] > words[b]; });
    for (const int64_t id : ids) {
      last = id;
      before += weights[static_cast<size_t>(id)];
      if (before > point) return id;
    }
  }
  return last;
}

/// Returns the token that `uniform` selects from weights [V], fp64 with any sum; never a token of weight 0.
int64_t picked(const at::Tensor& weights, double uniform) {
  const at::Tensor total = weights.cumsum(-1), all = total.narrow(0, -1, 1);
  return static_cast<int64_t>(tensor::host_value(at::minimum(total.le(all * uniform).sum(), total.lt(all).sum())));
}

}  // namespace

at::Tensor pick(const at::Tensor& logits, const SamplingOptions& options, double uniform) {
  if (options.temperature == 0) return largest(logits);
  const bool has_filters = options.top_k > 0 || options.top_p < 1 || options.min_p > 0;
  if (logits.is_cpu() && !has_filters && logits.scalar_type() != at::kDouble && logits.numel() > 0) {
    const at::Tensor dense = logits.to(at::kFloat).contiguous();
    const float most = dense.amax().item<float>();
    if (std::isfinite(most))
      return at::scalar_tensor(picked_of_all(dense, most, options.temperature, uniform), at::kLong);
  }
  const Ranked ranked(logits, options);
  const at::Tensor point = ranked.total.index_select(0, ranked.last) * uniform;
  return ranked.ids.index_select(0, at::minimum(ranked.last, ranked.total.le(point).sum())).squeeze(0);
}

at::Tensor probabilities(const at::Tensor& logits, const SamplingOptions& options) {
  const at::Tensor none = at::zeros(logits.sizes(), logits.options().dtype(at::kDouble));
  if (options.temperature == 0) return none.index_fill_(0, largest(logits).unsqueeze(0), 1);
  const Ranked ranked(logits, options);
  const at::Tensor left_out = at::arange(logits.size(0), ranked.ids.options()).gt(ranked.last);
  const at::Tensor kept = ranked.probable.masked_fill(left_out, 0) / ranked.total.index_select(0, ranked.last);
  return none.index_copy_(0, ranked.ids, kept);
}

int64_t pick_reference(const std::vector<double>& logits, const SamplingOptions& options, double uniform) {
  std::vector<int64_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), int64_t{0});
  std::stable_sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
  if (options.temperature == 0) return ids.front();
  double all = 0;
  std::vector<double> total;  // cumulative weights; the most probable token has weight 1
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

// Changes only the logits [n] of tokens that were seen or have a bias, in fp64, and writes them back.
at::Tensor Sampler::adjusted(const at::Tensor& logits) const {
  if (!options_.changes_logits()) return logits;
  std::map<int64_t, double> less;  // value to subtract from each logit
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
  // Uses fp64, because a small penalty could vanish in the rounding of a narrow dtype.
  at::Tensor all = logits.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  const at::Tensor own = all.index_select(0, at);
  const at::Tensor repeated = at::where(own.gt(0), own / factor, own * factor);
  return all.index_copy_(0, at, repeated - there(taken, at::kDouble));
}

// 53 random bits make a double in [0, 1).
double Sampler::uniform(std::string_view stream) const {
  const uint64_t bits = derive_seed(derive_seed(static_cast<uint64_t>(options_.seed), stream), drawn_);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

int64_t Sampler::drawn(int64_t token) {
  if (options_.temperature != 0) ++drawn_;
  if (options_.changes_logits()) ++times_[token];
  return token;
}

int64_t Sampler::next(const at::Tensor& logits) {
  return drawn(static_cast<int64_t>(tensor::host_value(pick(adjusted(logits), options_, uniform(stream_)))));
}

Sampler Sampler::for_draft() const {
  Sampler draft(*this);
  draft.stream_ = "drafting";
  return draft;
}

DraftedToken Sampler::draft(const at::Tensor& logits) {
  if (options_.temperature == 0) return {next(logits)};
  const at::Tensor by = probabilities(adjusted(logits), options_);
  return {drawn(picked(by, uniform(stream_))), by};
}

int64_t Sampler::judge(const at::Tensor& logits, const DraftedToken& drafted) {
  if (!drafted.probabilities.defined()) return next(logits);
  const at::Tensor p = probabilities(adjusted(logits), options_), &q = drafted.probabilities;
  const double own = tensor::host_value(p[drafted.token]), other = tensor::host_value(q[drafted.token]);
  if (uniform("judging") * other < own) return drawn(drafted.token);
  const at::Tensor more = (p - q).clamp_min_(0);
  // If p and q differ only by rounding, the difference may be zero everywhere.
  return drawn(picked(tensor::host_value(more.sum()) > 0 ? more : p, uniform(stream_)));
}

}  // namespace colossal::infer
