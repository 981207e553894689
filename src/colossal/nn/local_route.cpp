#include "colossal/nn/local_route.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "colossal/nn/expert_choice.h"
#include "colossal/nn/experts.h"
#include "colossal/ops/parallel.h"

namespace colossal::nn {
namespace {

constexpr int64_t kElementsPerChunk = int64_t{1} << 15;

/// Returns how many tokens of so many elements each are worth a thread.
int64_t tokens_per_chunk(int64_t elements) {
  return std::max<int64_t>(1, kElementsPerChunk / std::max<int64_t>(1, elements));
}

template <class T>
std::vector<double> weights_from(const at::Tensor& scores, const int64_t* experts, int64_t tokens,
                                 const ExpertOptions& options) {
  const T* of_token = scores.const_data_ptr<T>();
  std::vector<double> weights(static_cast<size_t>(tokens * options.used));
  for (int64_t t = 0; t < tokens; ++t, of_token += scores.size(1)) {
    T sum = options.score == ExpertOptions::Score::Sigmoid ? static_cast<T>(kSmallestScoreSum) : T{0};
    for (int64_t j = 0; j < options.used; ++j) sum += of_token[experts[t * options.used + j]];
    const T divisor = options.normalize ? sum : T{1}, scale = static_cast<T>(options.scale);
    for (int64_t i = t * options.used; i < (t + 1) * options.used; ++i)
      weights[i] = of_token[experts[i]] / divisor * scale;
  }
  return weights;
}

}  // namespace

LocalRoute::LocalRoute(const at::Tensor& scores, const at::Tensor& experts, const ExpertOptions& options)
    : tokens_(experts.size(0)), used_(options.used), ends_(options.count), place_(experts.numel()) {
  const at::Tensor dense_scores = scores.contiguous(), dense_experts = experts.contiguous();
  const auto* expert = dense_experts.const_data_ptr<int64_t>();
  weights_ = scores.scalar_type() == at::kDouble ? weights_from<double>(dense_scores, expert, tokens_, options)
                                                 : weights_from<float>(dense_scores, expert, tokens_, options);
  for (size_t i = 0; i < place_.size(); ++i) ++ends_[expert[i]];
  std::vector<int64_t> next(ends_.size());
  std::exclusive_scan(ends_.begin(), ends_.end(), next.begin(), int64_t{0});
  for (size_t i = 0; i < place_.size(); ++i) place_[i] = next[expert[i]]++;
  ends_ = next;
}

at::Tensor LocalRoute::dispatch(const at::Tensor& x) const {
  const at::Tensor from = x.contiguous();
  at::Tensor rows = at::empty({tokens_ * used_, x.size(1)}, x.options());
  const auto bytes = static_cast<int64_t>(x.size(1) * from.itemsize());
  const auto* in = static_cast<const char*>(from.const_data_ptr());
  auto* out = static_cast<char*>(rows.mutable_data_ptr());
  ops::parallel_for(0, tokens_, tokens_per_chunk(used_ * x.size(1)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * used_; i < end * used_; ++i)
      std::memcpy(out + place_[i] * bytes, in + i / used_ * bytes, static_cast<size_t>(bytes));
  });
  return rows;
}

at::Tensor LocalRoute::combine(const at::Tensor& results) const {
  const at::Tensor from = results.contiguous();
  const int64_t size = results.size(1);
  at::Tensor y = at::empty({tokens_, size}, results.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, results.scalar_type(), "LocalRoute::combine", [&] {
    using Sum = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
    const auto* rows = from.const_data_ptr<scalar_t>();
    auto* out = y.mutable_data_ptr<scalar_t>();
    ops::parallel_for(0, tokens_, tokens_per_chunk(used_ * size), [&](int64_t begin, int64_t end) {
      std::vector<Sum> sums(static_cast<size_t>(size));
      for (int64_t t = begin; t < end; ++t) {
        std::fill(sums.begin(), sums.end(), Sum{0});
        for (int64_t i = t * used_; i < (t + 1) * used_; ++i) {
          const auto weight = static_cast<Sum>(weights_[i]);
          const scalar_t* row = rows + place_[i] * size;
          for (int64_t k = 0; k < size; ++k) sums[k] += static_cast<Sum>(row[k]) * weight;
        }
        std::copy(sums.begin(), sums.end(), out + t * size);
      }
    });
  });
  return y;
}

}  // namespace colossal::nn
