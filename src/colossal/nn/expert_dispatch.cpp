#include "colossal/nn/expert_dispatch.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "colossal/nn/expert_choice.h"
#include "colossal/nn/expert_hops.h"
#include "colossal/nn/experts.h"
#include "colossal/ops/parallel.h"

namespace colossal::nn {

/// The route of a micro-batch. Nodes of autograd share it, because backward takes the same way.
struct ExpertDispatch::Route {
  at::Tensor token_of;  // [A] the token of each assignment in order of experts
  at::Tensor place;     // [T, used] the place of each assignment in that order; A = dropped
  std::optional<NodeHop> first;
  std::optional<ExpertHop> last;

  /// Starts the way of x [T, H]. With nodes the hop within the node is made in the arrival.
  ExpertRanks::Arrival begin(const at::Tensor& x) const {
    if (!first) return last->begin(picked_rows(x, token_of), /*may_round=*/true);
    return
        [this, arrival = first->begin(x, /*may_round=*/true)] { return last->begin(arrival(), /*may_round=*/true)(); };
  }
  /// Returns true if this rank has all experts, so that rows go nowhere.
  bool is_alone() const { return !first && last->ranks() == 1; }
  /// Returns rows [R, H] of this rank's experts from a row for each of its tokens' assignments, and the opposite.
  at::Tensor forth(const at::Tensor& rows) const { return last->forth(first ? first->forth(rows) : rows); }
  at::Tensor back(const at::Tensor& rows) const { return first ? first->back(last->back(rows)) : last->back(rows); }
};

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Route = ExpertDispatch::Route;

/// Keeps the route in the saved data of an autograd node, which holds IValues.
struct RouteCapsule : torch::CustomClassHolder {
  explicit RouteCapsule(std::shared_ptr<const Route> route) : route(std::move(route)) {}
  std::shared_ptr<const Route> route;
};

void save_route(AutogradContext* context, const std::shared_ptr<const Route>& route) {
  context->saved_data["route"] = c10::IValue::make_capsule(c10::make_intrusive<RouteCapsule>(route));
}

const Route& saved_route(AutogradContext* context) {
  return *static_cast<const RouteCapsule*>(context->saved_data["route"].toCapsule().get())->route;
}

bool has_dropped(const at::Tensor& place, int64_t assignments) { return place.numel() > assignments; }

/// Returns the rows at the places of each token's j-th assignment, zeros for dropped ones.
at::Tensor rows_at(const at::Tensor& rows, const at::Tensor& place, int64_t j) {
  const at::Tensor at = place.select(1, j);
  if (!has_dropped(place, rows.size(0))) return picked_rows(rows, at);
  const int64_t last = rows.size(0);
  if (last == 0) return at::zeros({at.size(0), rows.size(1)}, rows.options());
  return picked_rows(rows, at.clamp_max(last - 1)).masked_fill_((at == last).unsqueeze(1), 0);
}

at::ScalarType sum_type(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

constexpr int64_t kElementsPerChunk = int64_t{1} << 15;

/// Returns the number of tokens, of `elements` elements each, that are worth a thread.
int64_t tokens_per_chunk(int64_t elements) {
  return std::max<int64_t>(1, kElementsPerChunk / std::max<int64_t>(1, elements));
}

/// Returns the weighted sums [tokens, H] of rows [A, H] on the CPU, in their dtype: assignment i of a token has the row
/// place[i] and the weight weights[i]; A = dropped. Sums are added in this order in fp32, in fp64 in fp64. Each token
/// is computed by itself: LibTorch's operators compute the last elements of a tensor in another way.
template <class Weight>
at::Tensor sums_of_rows(const at::Tensor& given, const int64_t* place, const Weight* weights, int64_t tokens,
                        int64_t used) {
  const at::Tensor from = given.contiguous();
  const int64_t size = given.size(1), assignments = given.size(0);
  at::Tensor y = at::empty({tokens, size}, given.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, given.scalar_type(), "sums_of_rows", [&] {
    using Sum = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
    const auto* rows = from.const_data_ptr<scalar_t>();
    auto* out = y.mutable_data_ptr<scalar_t>();
    ops::parallel_for(0, tokens, tokens_per_chunk(used * size), [&](int64_t begin, int64_t end) {
      std::vector<Sum> sums(static_cast<size_t>(size));
      for (int64_t t = begin; t < end; ++t) {
        std::fill(sums.begin(), sums.end(), Sum{0});
        for (int64_t i = t * used; i < (t + 1) * used; ++i) {
          if (place[i] == assignments) continue;
          const auto weight = static_cast<Sum>(weights[i]);
          const scalar_t* row = rows + place[i] * size;
          for (int64_t k = 0; k < size; ++k) sums[k] += static_cast<Sum>(row[k]) * weight;
        }
        std::copy(sums.begin(), sums.end(), out + t * size);
      }
    });
  });
  return y;
}

/// x [T, H] -> rows [R, H] of this rank's experts, which have arrived.
struct ToExperts : torch::autograd::Function<ToExperts> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor&, const std::shared_ptr<const Route>& route,
                            const ExpertRanks::Arrival& arrival) {
    save_route(context, route);
    return arrival();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Route& route = saved_route(context);
    const at::Tensor drows = route.back(gradients[0]);
    at::Tensor dx = rows_at(drows, route.place, 0).to(sum_type(drows));
    for (int64_t j = 1; j < route.place.size(1); ++j) dx.add_(rows_at(drows, route.place, j));
    return {dx.to(drows.scalar_type()), at::Tensor(), at::Tensor()};
  }
};

/// rows [R, H] of this rank's experts -> rows [A, H], one of each assignment.
struct FromExperts : torch::autograd::Function<FromExperts> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const std::shared_ptr<const Route>& route) {
    save_route(context, route);
    return route->back(rows);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {saved_route(context).forth(gradients[0]), at::Tensor()};
  }
};

/// rows [A, H], weights [T, used] -> y [T, H].
struct FromRows : torch::autograd::Function<FromRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const at::Tensor& weights,
                            const at::Tensor& token_of, const at::Tensor& place) {
    context->save_for_backward({rows, weights, token_of, place});
    const auto type = sum_type(rows);
    if (rows.is_cpu()) {
      const at::Tensor exact = weights.to(at::kDouble).contiguous(), at = place.contiguous();
      return sums_of_rows(rows, at.const_data_ptr<int64_t>(), exact.const_data_ptr<double>(), at.size(0), at.size(1));
    }
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
        picked_rows(dy, token_of).mul_(sorted.narrow(0, 0, rows.size(0)).unsqueeze(1)).to(rows.scalar_type());
    return {drows, dweights.to(weights.scalar_type()), at::Tensor(), at::Tensor()};
  }
};

/// As set_order(), by counting: a decoded token has few assignments, for which each operator costs more than its work.
void set_order_on_host(Route& route, const at::Tensor& experts, const at::Tensor& of, int64_t assignments) {
  const at::Tensor dense = of.contiguous();
  const auto expert = std::span(dense.const_data_ptr<int64_t>(), static_cast<size_t>(dense.numel()));
  const int64_t used = experts.size(1);
  std::vector<int64_t> next(expert.empty() ? 1 : *std::max_element(expert.begin(), expert.end()) + 2);
  for (const int64_t e : expert) ++next[e + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());  // the first place of each expert
  route.token_of = at::empty({assignments}, experts.options());
  route.place = at::empty(experts.sizes(), experts.options());
  auto* token_of = route.token_of.mutable_data_ptr<int64_t>();
  auto* place = route.place.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < dense.numel(); ++i) {
    const int64_t at = next[expert[i]]++;
    place[i] = std::min(at, assignments);
    if (at < assignments) token_of[at] = i / used;
  }
}

/// Sets the order of assignments. `of`: the expert of each of them, the largest value = dropped.
void set_order(Route& route, const at::Tensor& experts, const at::Tensor& of, int64_t assignments) {
  const int64_t used = experts.size(1), all = experts.numel();
  if (experts.is_meta()) {
    route.token_of = at::empty({all}, experts.options());
    route.place = at::empty(experts.sizes(), experts.options());
    return;
  }
  if (of.is_cpu()) return set_order_on_host(route, experts, of, assignments);
  const at::Tensor sorted =
      std::get<1>(at::sort(of, /*stable=*/true, 0, /*descending=*/false)).narrow(0, 0, assignments);
  route.token_of = at::floor_divide(sorted, used);
  route.place = at::full({all}, assignments, experts.options())
                    .index_copy_(0, sorted, at::arange(assignments, experts.options()))
                    .view(experts.sizes());
}

}  // namespace

ExpertDispatch::ExpertDispatch(const at::Tensor& experts, const at::Tensor& kept, int64_t count,
                               const std::shared_ptr<const ExpertRanks>& ranks) {
  const int64_t all = experts.numel(), here = (count + ranks->ranks() - 1) / ranks->ranks(),
                room = ranks->ranks() * here;
  const auto route = std::make_shared<Route>();
  const bool is_meta = experts.is_meta();
  at::Tensor of;
  if (!is_meta) {
    of = experts.flatten();
    if (kept.defined()) of = of.masked_fill(kept.flatten().logical_not(), room);
  }
  if (ranks->node() > 0) {
    const int64_t assignments = is_meta || !kept.defined() ? all : kept.sum().item<int64_t>();
    set_order(*route, experts, of, assignments);
    route->first.emplace(experts, route->place, assignments, count, here, ranks);
    route->last.emplace(route->first->counts(), here, ranks, ExpertRanks::Among::SameNode, experts.options());
  } else {
    std::vector<int64_t> meant = is_meta ? meant_counts(all, experts.size(0), count, *ranks) : std::vector<int64_t>();
    meant.resize(static_cast<size_t>(room), 0);
    const at::Tensor counts =
        is_meta ? at::empty({room}, experts.options()) : expert_counts(of, room + 1).narrow(0, 0, room);
    route->last.emplace(counts, meant, here, ranks, ExpertRanks::Among::All);
    set_order(*route, experts, of, route->last->rows_sent());
  }
  route_ = route;
}

const ops::GroupEnds& ExpertDispatch::ends() const { return route_->last->ends(); }

ExpertRanks::Arrival ExpertDispatch::begin_dispatch(const at::Tensor& x) const {
  const at::NoGradGuard no_grad;  // ToExperts has the gradient
  return [x, route = route_, arrival = route_->begin(x)] { return ToExperts::apply(x, route, arrival); };
}

at::Tensor ExpertDispatch::combine(const at::Tensor& results, const at::Tensor& weights) const {
  const at::Tensor rows = route_->is_alone() ? results : FromExperts::apply(results, route_);
  return FromRows::apply(rows, weights, route_->token_of, route_->place);
}

namespace {

template <class T>
std::vector<double> weights_from(const at::Tensor& scores, const int64_t* experts, int64_t tokens,
                                 const ExpertOptions& options) {
  const T* of_token = scores.const_data_ptr<T>();
  std::vector<double> weights(static_cast<size_t>(tokens * options.used));
  for (int64_t t = 0; t < tokens; ++t, of_token += scores.size(1)) {
    T sum{0};
    for (int64_t j = 0; j < options.used; ++j) sum += of_token[experts[t * options.used + j]];
    if (options.score == ExpertOptions::Score::Sigmoid) sum += static_cast<T>(kSmallestScoreSum);
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
  return sums_of_rows(results, place_.data(), weights_.data(), tokens_, used_);
}

}  // namespace colossal::nn
