#include "support/dense_experts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "colossal/nn/experts.h"

namespace colossal::test {
namespace {

/// Returns the indices of the `count` largest values, the lower index first among equal ones.
std::vector<int64_t> largest(const std::vector<double>& values, int64_t count) {
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return values[a] > values[b]; });
  order.resize(static_cast<size_t>(count));
  return order;
}

std::vector<int64_t> choice_of(const at::Tensor& scores, const at::Tensor& bias, const nn::ExpertOptions& o) {
  std::vector<double> biased;
  for (int64_t e = 0; e < o.count; ++e)
    biased.push_back(scores[e].item<double>() + (bias.defined() ? bias[e].item<double>() : 0));
  if (o.groups > 1) {
    const int64_t size = o.count / o.groups;
    std::vector<double> of_group;
    for (int64_t g = 0; g < o.groups; ++g) {
      std::vector<double> in(biased.begin() + g * size, biased.begin() + (g + 1) * size);
      std::sort(in.rbegin(), in.rend());
      of_group.push_back(bias.defined() && size > 1 ? in[0] + in[1] : in[0]);
    }
    const std::vector<int64_t> used = largest(of_group, o.groups_used);
    for (int64_t e = 0; e < o.count; ++e)
      if (std::find(used.begin(), used.end(), e / size) == used.end())
        biased[e] = -std::numeric_limits<double>::infinity();
  }
  std::vector<int64_t> chosen = largest(biased, o.used);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

at::Tensor expert_of(const at::Tensor& x, int64_t e, const ExpertWeights& w, const nn::ExpertOptions& o) {
  at::Tensor inside = at::matmul(x, w.up[e].t());
  if (w.up_bias.defined()) inside = inside + w.up_bias[e];
  const at::Tensor y = at::matmul(o.activation(inside), w.down[e].t());
  return w.down_bias.defined() ? y + w.down_bias[e] : y;
}

}  // namespace

DenseExperts dense_experts(const at::Tensor& x, const ExpertWeights& w, const nn::ExpertOptions& o, bool capacity,
                           const at::Tensor& experts) {
  const int64_t tokens = x.size(0);
  const at::Tensor logits = at::matmul(x, w.router.t());
  const bool is_softmax = o.score == nn::ExpertOptions::Score::Softmax;
  const at::Tensor scores = is_softmax ? at::softmax(logits, -1) : at::sigmoid(logits);
  DenseExperts result{.load = std::vector<int64_t>(o.count), .computed = std::vector<int64_t>(o.count)};
  const auto limit = capacity && o.capacity > 0
                         ? static_cast<int64_t>(std::ceil(o.capacity * static_cast<double>(o.used * tokens) / o.count))
                         : std::numeric_limits<int64_t>::max();
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<int64_t> chosen;
    if (experts.defined())
      for (int64_t j = 0; j < o.used; ++j) chosen.push_back(experts[t][j].item<int64_t>());
    else
      chosen = choice_of(scores[t].detach(), w.balance_bias, o);
    at::Tensor sum;
    for (const int64_t e : chosen) sum = sum.defined() ? sum + scores[t][e] : scores[t][e];
    if (!is_softmax) sum = sum + 1e-20;
    at::Tensor y = at::zeros_like(x[t]);
    for (const int64_t e : chosen) {
      ++result.load[e];
      if (result.computed[e] == limit) continue;
      ++result.computed[e];
      const at::Tensor weight = o.scale * (o.normalize ? scores[t][e] / sum : scores[t][e]);
      y = y + weight * expert_of(x[t].unsqueeze(0), e, w, o)[0];
    }
    rows.push_back(y);
  }
  result.y = at::stack(rows);
  const at::Tensor shares = is_softmax ? scores : scores / scores.sum(-1, true);
  result.balance = at::zeros({}, x.options());
  for (int64_t e = 0; e < o.count; ++e) {
    const double of_assignments = static_cast<double>(result.load[e]) / static_cast<double>(tokens * o.used);
    result.balance = result.balance + o.balance_loss * o.count * of_assignments * shares.select(1, e).mean();
  }
  result.z = o.z_loss * at::logsumexp(logits, -1).square().mean();
  return result;
}

}  // namespace colossal::test
