#include "colossal/nn/expert_choice.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "colossal/base/error.h"
#include "colossal/nn/experts.h"
#include "colossal/ops/parallel.h"
#include "colossal/tensor/device_meant.h"

namespace colossal::nn {
namespace {

constexpr int64_t kTokensPerChunk = 64;

/// Returns true if a is chosen before b, whose index is lower.
template <class T>
bool beats(T a, T b) {
  return std::isnan(a) ? !std::isnan(b) : a > b;
}

/// Writes the indices of the `count` best of `values` to `best`, the best first. Cost: size x count comparisons at
/// most, and about one per value in practice.
template <class T>
void choose(const T* values, int64_t size, int64_t count, int64_t* best) {
  int64_t found = 0;
  for (int64_t i = 0; i < size; ++i) {
    if (found == count && !beats(values[i], values[best[count - 1]])) continue;
    int64_t at = found < count ? found++ : count - 1;
    for (; at > 0 && beats(values[i], values[best[at - 1]]); --at) best[at] = best[at - 1];
    best[at] = i;
  }
}

template <class T>
class Chooser {
 public:
  Chooser(int64_t experts, const ExpertOptions& options, const T* bias)
      : experts_(experts), options_(options), bias_(bias), biased_(experts), groups_(options.groups) {}

  void run(const T* scores, int64_t* chosen) {
    for (int64_t e = 0; e < experts_; ++e) biased_[e] = bias_ ? scores[e] + bias_[e] : scores[e];
    if (options_.groups > options_.groups_used) leave_out_groups();
    choose(biased_.data(), experts_, options_.used, chosen);
    std::sort(chosen, chosen + options_.used);
  }

 private:
  void leave_out_groups() {
    const int64_t size = experts_ / options_.groups, counted = bias_ && size > 1 ? 2 : 1;
    for (int64_t g = 0; g < options_.groups; ++g) {
      std::array<int64_t, 2> best{};
      const T* first = biased_.data() + g * size;
      choose(first, size, counted, best.data());
      groups_[g] = counted == 2 ? first[best[0]] + first[best[1]] : first[best[0]];
    }
    std::vector<int64_t> in(static_cast<size_t>(options_.groups_used));
    choose(groups_.data(), options_.groups, options_.groups_used, in.data());
    for (int64_t g = 0; g < options_.groups; ++g)
      if (std::find(in.begin(), in.end(), g) == in.end())
        std::fill_n(biased_.begin() + g * size, size, -std::numeric_limits<T>::infinity());
  }

  int64_t experts_;
  const ExpertOptions& options_;
  const T* bias_;
  std::vector<T> biased_, groups_;
};

template <class T>
void choose_all(const at::Tensor& scores, const at::Tensor& bias, const ExpertOptions& options, at::Tensor& chosen) {
  const at::Tensor rows = scores.contiguous(),
                   added = bias.defined() ? bias.to(scores.scalar_type()).contiguous() : at::Tensor();
  const T* values = rows.const_data_ptr<T>();
  const T* shift = added.defined() ? added.const_data_ptr<T>() : nullptr;
  auto* out = chosen.mutable_data_ptr<int64_t>();
  const int64_t experts = scores.size(1), used = options.used;
  ops::parallel_for(0, scores.size(0), kTokensPerChunk, [&](int64_t begin, int64_t end) {
    Chooser<T> chooser(experts, options, shift);
    for (int64_t t = begin; t < end; ++t) chooser.run(values + t * experts, out + t * used);
  });
}

/// Returns what choose_all() writes, by operators of accelerators. A stable sort keeps the lower of equal experts.
at::Tensor chosen_by_sort(const at::Tensor& scores, const at::Tensor& bias, const ExpertOptions& options) {
  const auto best = [](const at::Tensor& x, int64_t count) {
    return std::get<1>(at::sort(x, /*stable=*/true, -1, /*descending=*/true)).narrow(-1, 0, count);
  };
  at::Tensor biased = bias.defined() ? scores + bias.to(scores.scalar_type()) : scores;
  if (options.groups > options.groups_used) {
    const at::Tensor groups = biased.unflatten(1, {options.groups, -1});
    const int64_t counted = bias.defined() && groups.size(2) > 1 ? 2 : 1;
    const at::Tensor of_group = groups.gather(2, best(groups, counted)).sum(2);
    const at::Tensor eligible =
        at::zeros_like(of_group, at::kBool).scatter(1, best(of_group, options.groups_used), true);
    biased =
        groups.masked_fill(eligible.bitwise_not().unsqueeze(2), -std::numeric_limits<double>::infinity()).flatten(1, 2);
  }
  return std::get<0>(at::sort(best(biased, options.used), -1, /*descending=*/false));
}

/// Returns what kept_assignments() returns, by operators of accelerators.
at::Tensor kept_by_sort(const at::Tensor& experts, int64_t count, int64_t limit) {
  const at::Tensor flat = experts.flatten().to(at::kLong), counts = expert_counts(flat, count);
  const auto [of, order] = at::sort(flat, /*stable=*/true, 0, /*descending=*/false);
  const at::Tensor first = counts.cumsum(0) - counts;  // place of each expert's first assignment
  const at::Tensor number = at::arange(flat.size(0), flat.options()) - first.index_select(0, of);
  return at::empty(flat.sizes(), flat.options().dtype(at::kBool))
      .index_copy_(0, order, number < limit)
      .view(experts.sizes());
}

}  // namespace

void check_options(const std::string& name, const ExpertOptions& o) {
  require(o.count >= 1, "experts", "count must be 1 or more: got ", o.count, " for ", name);
  require(o.used >= 1 && o.used <= o.count, "experts", "used must be from 1 to count: got ", o.used, " of ", o.count,
          " experts for ", name, "; use at most ", o.count);
  require(o.groups >= 1 && o.count % o.groups == 0, "experts", "groups must divide count: got ", o.groups,
          " groups of ", o.count, " experts for ", name);
  require(o.groups_used >= 1 && o.groups_used <= o.groups, "experts", "groups_used must be from 1 to groups: got ",
          o.groups_used, " of ", o.groups, " for ", name);
  require(o.used <= o.groups_used * (o.count / o.groups), "experts",
          "used must not be above the experts of the groups used: got ", o.used, " of ",
          o.groups_used * (o.count / o.groups), " experts in ", o.groups_used, " groups for ", name,
          "; use more groups or fewer experts");
  require(o.capacity >= 0, "experts", "capacity must be 0 (no limit) or above: got ", o.capacity, " for ", name);
  require(o.ffn >= 1, "experts", "ffn must be 1 or more: got ", o.ffn, " for ", name);
}

at::Tensor scores_of(const at::Tensor& logits, const ExpertOptions& options) {
  return options.score == ExpertOptions::Score::Softmax ? at::softmax(logits, -1) : at::sigmoid(logits);
}

at::Tensor shares_of(const at::Tensor& scores, const ExpertOptions& options) {
  return options.score == ExpertOptions::Score::Softmax ? scores : scores / (scores.sum(-1, true) + kSmallestScoreSum);
}

at::Tensor chosen_experts(const at::Tensor& scores, const at::Tensor& bias, const ExpertOptions& options) {
  const at::NoGradGuard no_grad;
  if (tensor::is_for_accelerator(scores)) return chosen_by_sort(scores, bias, options);
  at::Tensor chosen = at::empty({scores.size(0), options.used}, scores.options().dtype(at::kLong));
  if (scores.is_meta()) return chosen;
  if (scores.scalar_type() == at::kDouble)
    choose_all<double>(scores, bias, options, chosen);
  else
    choose_all<float>(scores, bias, options, chosen);
  return chosen;
}

at::Tensor weights_of(const at::Tensor& scores, const at::Tensor& experts, const ExpertOptions& options) {
  at::Tensor weights = scores.gather(1, experts);
  if (options.normalize) {
    // added in the order of experts, as for generated tokens (LocalRoute); sum() may take another one
    at::Tensor sum = weights.narrow(1, 0, 1);
    for (int64_t j = 1; j < experts.size(1); ++j) sum = sum + weights.narrow(1, j, 1);
    weights = weights / (options.score == ExpertOptions::Score::Sigmoid ? sum + kSmallestScoreSum : sum);
  }
  return options.scale == 1 ? weights : weights * options.scale;
}

at::Tensor expert_counts(const at::Tensor& experts, int64_t count) {
  if (experts.is_meta()) return at::empty({count}, experts.options().dtype(at::kLong));
  const at::Tensor flat = experts.flatten();
  return at::zeros({count}, flat.options()).scatter_add_(0, flat, at::ones_like(flat));
}

at::Tensor kept_assignments(const at::Tensor& experts, int64_t count, int64_t limit) {
  if (!experts.is_cpu()) return kept_by_sort(experts, count, limit);
  const at::Tensor all = experts.to(at::kLong).contiguous();
  at::Tensor kept = at::empty(all.sizes(), at::kBool);
  std::vector<int64_t> load(static_cast<size_t>(count));
  const int64_t* expert = all.const_data_ptr<int64_t>();
  bool* keeps = kept.mutable_data_ptr<bool>();
  for (int64_t i = 0; i < all.numel(); ++i)
    if ((keeps[i] = load[expert[i]] < limit)) ++load[expert[i]];
  return kept;
}

KeptChoices* choices_of(const ForwardContext& step) {
  const BlockChoices* choices = step.parts.find<BlockChoices>();
  return choices ? choices->kept.get() : nullptr;
}

}  // namespace colossal::nn
