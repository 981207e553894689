#include "colossal/nn/expert_dispatch.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>

#include "colossal/base/error.h"

namespace colossal::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool has_dropped(const at::Tensor& place, int64_t assignments) { return place.numel() > assignments; }

/// Returns the rows of x with those indices. LibTorch has no C++ version of index_select for tensors on meta.
at::Tensor picked(const at::Tensor& x, const at::Tensor& index) {
  return x.is_meta() ? at::empty({index.size(0), x.size(1)}, x.options()) : x.index_select(0, index);
}

/// Returns the rows at the places of each token's j-th assignment, zeros for dropped ones.
at::Tensor rows_at(const at::Tensor& rows, const at::Tensor& place, int64_t j) {
  const at::Tensor at = place.select(1, j);
  if (!has_dropped(place, rows.size(0))) return picked(rows, at);
  const int64_t last = rows.size(0);
  if (last == 0) return at::zeros({at.size(0), rows.size(1)}, rows.options());
  return picked(rows, at.clamp_max(last - 1)).masked_fill_((at == last).unsqueeze(1), 0);
}

at::ScalarType sum_type(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

/// x [T, H] -> rows [A, H], one of each assignment.
struct ToRows : torch::autograd::Function<ToRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& token_of,
                            const at::Tensor& place) {
    context->save_for_backward({place});
    return picked(x, token_of);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor place = context->get_saved_variables()[0], &drows = gradients[0];
    at::Tensor dx = rows_at(drows, place, 0).to(sum_type(drows));
    for (int64_t j = 1; j < place.size(1); ++j) dx.add_(rows_at(drows, place, j));
    return {dx.to(drows.scalar_type()), at::Tensor(), at::Tensor()};
  }
};

/// rows [A, H], weights [T, used] -> y [T, H].
struct FromRows : torch::autograd::Function<FromRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const at::Tensor& weights,
                            const at::Tensor& token_of, const at::Tensor& place) {
    context->save_for_backward({rows, weights, token_of, place});
    const auto type = sum_type(rows);
    at::Tensor y = at::zeros({place.size(0), rows.size(1)}, rows.options().dtype(type));
    for (int64_t j = 0; j < place.size(1); ++j)
      y.addcmul_(rows_at(rows, place, j).to(type), weights.narrow(1, j, 1).to(type));
    return y.to(rows.scalar_type());
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &rows = saved[0], &weights = saved[1], &token_of = saved[2], &place = saved[3];
    const auto type = sum_type(rows);
    const at::Tensor dy = gradients[0].to(type);
    at::Tensor dweights = at::empty(weights.sizes(), weights.options().dtype(type));
    for (int64_t j = 0; j < place.size(1); ++j) dweights.select(1, j).copy_((dy * rows_at(rows, place, j)).sum(1));
    // The weight of each sorted assignment. The row behind the last one takes those of dropped assignments.
    at::Tensor sorted = at::zeros({rows.size(0) + 1}, weights.options().dtype(type));
    sorted.index_copy_(0, place.flatten(), weights.to(type).flatten());
    const at::Tensor drows =
        picked(dy, token_of).mul_(sorted.narrow(0, 0, rows.size(0)).unsqueeze(1)).to(rows.scalar_type());
    return {drows, dweights.to(weights.scalar_type()), at::Tensor(), at::Tensor()};
  }
};

/// rows -> rows in another order, given both permutations.
struct Reorder : torch::autograd::Function<Reorder> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const at::Tensor& order,
                            const at::Tensor& back) {
    context->save_for_backward({back});
    return picked(rows, order);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {picked(gradients[0], context->get_saved_variables()[0]), at::Tensor(), at::Tensor()};
  }
};

/// Returns the numbers of assignments of each expert if they were even.
std::vector<int64_t> even_counts(int64_t assignments, int64_t count) {
  std::vector<int64_t> counts;
  for (int64_t e = 0; e < count; ++e) counts.push_back(assignments * (e + 1) / count - assignments * e / count);
  return counts;
}

at::Tensor index_on(const std::vector<int64_t>& values, const at::Tensor& like) {
  return at::tensor(values, at::kLong).to(like.device());
}

}  // namespace

ExpertDispatch::ExpertDispatch(const at::Tensor& experts, const at::Tensor& kept, int64_t count,
                               const ExpertRanks& ranks)
    : ranks_(ranks), tokens_(experts.size(0)), used_(experts.size(1)) {
  const int64_t all = tokens_ * used_;
  std::vector<int64_t> counts;
  if (experts.is_meta()) {
    counts = even_counts(all, count);
    token_of_ = at::empty({all}, experts.options());
    place_ = at::empty({tokens_, used_}, experts.options());
  } else {
    const at::Tensor flat = experts.flatten();
    const at::Tensor of = kept.defined() ? flat.masked_fill(kept.flatten().logical_not(), count) : flat;
    const at::Tensor in_order = at::bincount(of, {}, count + 1).cpu();
    counts.assign(in_order.const_data_ptr<int64_t>(), in_order.const_data_ptr<int64_t>() + count);
    const int64_t assignments = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const at::Tensor order = std::get<1>(at::sort(of, /*stable=*/true, 0, /*descending=*/false));
    const at::Tensor sorted = order.narrow(0, 0, assignments);
    token_of_ = at::floor_divide(sorted, used_);
    place_ = at::full({all}, assignments, experts.options())
                 .index_copy_(0, sorted, at::arange(assignments, experts.options()))
                 .view({tokens_, used_});
  }
  exchange_counts(counts, count);
}

void ExpertDispatch::exchange_counts(const std::vector<int64_t>& counts, int64_t count) {
  const int64_t ranks = ranks_.ranks(), here = (count + ranks - 1) / ranks;
  std::vector<int64_t> padded = counts;
  padded.resize(static_cast<size_t>(ranks * here), 0);
  const auto total = [](const int64_t* first, int64_t size) {
    return std::accumulate(first, first + size, int64_t{0});
  };
  for (int64_t r = 0; r < ranks; ++r) sent_.push_back(total(padded.data() + r * here, here));
  std::vector<int64_t> arriving = padded;  // [ranks, here] by source
  if (ranks > 1) {
    const bool is_meta = token_of_.is_meta();
    const at::Tensor own = at::tensor(padded, at::kLong).to(token_of_.device());
    const at::Tensor theirs =
        ranks_.exchange(own, std::vector<int64_t>(ranks, here), std::vector<int64_t>(ranks, here));
    if (is_meta) {
      for (int64_t r = 0; r < ranks; ++r)
        std::copy_n(padded.begin() + ranks_.rank() * here, here, arriving.begin() + r * here);
    } else {
      const at::Tensor on_host = theirs.cpu();
      std::copy_n(on_host.const_data_ptr<int64_t>(), arriving.size(), arriving.begin());
    }
  }
  for (int64_t r = 0; r < ranks; ++r) received_.push_back(total(arriving.data() + r * here, here));
  int64_t end = 0;
  for (int64_t e = 0; e < here; ++e) {
    for (int64_t r = 0; r < ranks; ++r) end += arriving[r * here + e];
    ends_.push_back(end);
  }
  if (ranks == 1) return;
  // Rows arrive source by source, and within a source expert by expert.
  std::vector<int64_t> first(arriving.size()), by_expert, by_source(static_cast<size_t>(end));
  std::exclusive_scan(arriving.begin(), arriving.end(), first.begin(), int64_t{0});
  for (int64_t e = 0; e < here; ++e)
    for (int64_t r = 0; r < ranks; ++r)
      for (int64_t i = 0; i < arriving[r * here + e]; ++i) by_expert.push_back(first[r * here + e] + i);
  for (size_t i = 0; i < by_expert.size(); ++i) by_source[by_expert[i]] = static_cast<int64_t>(i);
  by_expert_ = index_on(by_expert, token_of_);
  by_source_ = index_on(by_source, token_of_);
}

at::Tensor ExpertDispatch::dispatch(const at::Tensor& x) const {
  const at::Tensor rows = ToRows::apply(x, token_of_, place_);
  if (ranks_.ranks() == 1) return rows;
  return Reorder::apply(ranks_.exchange(rows, received_, sent_), by_expert_, by_source_);
}

at::Tensor ExpertDispatch::combine(const at::Tensor& results, const at::Tensor& weights) const {
  const at::Tensor rows = ranks_.ranks() == 1
                              ? results
                              : ranks_.exchange(Reorder::apply(results, by_source_, by_expert_), sent_, received_);
  return FromRows::apply(rows, weights, token_of_, place_);
}

}  // namespace colossal::nn
