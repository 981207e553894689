#include "colossal/nn/experts.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "colossal/base/known_metrics.h"
#include "colossal/nn/canonical.h"
#include "colossal/nn/expert_choice.h"
#include "colossal/nn/expert_dispatch.h"
#include "colossal/nn/expert_ranks.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/linear.h"
#include "colossal/nn/recompute.h"
#include "colossal/nn/reports.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/tensor/host_value.h"

namespace colossal::nn {
namespace {

constexpr int64_t kByteValues = 256;  // values of an element of one byte

at::ScalarType logits_type(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

/// The product of a router: logits are fp32 (fp64 in fp64) for any dtype of tokens and weight, because a rounding step
/// would change choices.
///
/// `by_rows`: computes the logits of each row by itself, so that they do not depend on the number of rows. A library
/// would also wake all threads for the few rows of a decoded token. Training uses the library in all passes, so that
/// recomputed blocks make the same choices.
class RouterProduct final : public Product {
 public:
  explicit RouterProduct(bool by_rows) : by_rows_(by_rows) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor&, int64_t out,
                     Saved* saved) const override {
    if (saved) *saved = {x, weight, out};
    if (by_rows_ && x.is_cpu() && x.scalar_type() == weight.scalar_type()) return ops::dot_products(x, weight);
    return ops::matmul_nt(x.to(logits_type(x)), weight.to(logits_type(x)));
  }
  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const override {
    Gradients d;
    const auto type = dy.scalar_type();
    if (wanted.x) d.x = ops::matmul_nn(dy, saved.weight.to(type)).to(saved.weight.scalar_type());
    if (wanted.weight) {
      const at::Tensor dweight = ops::matmul_tn(dy, saved.x.to(type));
      d.weight = wanted.sum.defined() ? wanted.with(dweight) : dweight.to(saved.x.scalar_type());
    }
    return d;
  }

 private:
  bool by_rows_;
};

const Product& router_product(bool is_training) {
  static const RouterProduct training(/*by_rows=*/false), inference(/*by_rows=*/true);
  return is_training ? training : inference;
}

/// Where the values are in the vector of sums that ranks join: the assignments of each expert, the sums of its scores,
/// and then these.
enum After : uint8_t { kTokens, kSquares, kRankLoss, kRanks };

/// Returns the spec of a stack whose dimension 0 is split over the ranks of experts. `features`: the dimension that the
/// ranks of one expert split, in those segments; -1 = none.
tensor::ShardSpec stack_spec(const ExpertRanks& ranks, const std::vector<int64_t>& shape, int64_t features,
                             const std::vector<tensor::Segment>& segments) {
  auto spec = tensor::ShardSpec::split(shape, 0, ranks.expert_axes());
  if (features < 0)
    spec.gradient_axes = ranks.feature_axes();  // the first of the ranks of an expert adds the bias
  else
    spec.splits[features] = tensor::ShardSpec::split(shape, features, ranks.feature_axes(), segments).splits[features];
  return spec;
}

class Mixture final : public Experts {
 public:
  Mixture(Parameters& p, Reports& reports, const std::string& name, int64_t hidden, const ExpertOptions& o,
          std::shared_ptr<const ExpertRanks> ranks)
      : options_(o), ranks_(std::move(ranks)), deferred_(p.deferred()) {
    check_options(name, o);
    auto router = tensor::ShardSpec::whole({o.count, hidden});
    router.gradient_axes = ranks_->token_axes();
    router_ = &p.add(name + ".router.weight", router, Init::normal(o.deviation), true);
    if (o.bias) bias_ = &p.buffer(name + ".router.bias", tensor::ShardSpec::whole({o.count}), at::kFloat);
    const std::vector<tensor::Segment> inside(o.gated ? 2 : 1, tensor::Segment{o.ffn});
    const std::string up = name + (o.gated ? ".experts.gate_up" : ".experts.up"), down = name + ".experts.down";
    const int64_t width = (o.gated ? 2 : 1) * o.ffn;
    up_ = &stack(p, up + ".weight", {o.count, width, hidden}, 1, inside, o.deviation);
    up_product_ = grouped_product(p, *up_);
    if (o.linear_bias) up_bias_ = &stack(p, up + ".bias", {o.count, width}, 1, inside, 0);
    down_ = &stack(p, down + ".weight", {o.count, hidden, o.ffn}, 2, {{o.ffn}}, o.down_deviation);
    down_product_ = grouped_product(p, *down_);
    if (o.linear_bias) down_bias_ = &stack(p, down + ".bias", {o.count, hidden}, -1, {}, 0);
    load_ = reports.add({.name = name + ".load", .size = o.count, .over = Over::Same});
    computed_ = reports.add({.name = name + ".computed", .size = o.count, .over = Over::Same});
    if (o.balance_loss != 0)
      balance_ = reports.add_loss({.name = name + ".balance", .over = Over::Same, .has_row = false});
    if (o.z_loss != 0) z_ = reports.add_loss({.name = name + ".z", .over = Over::Same, .has_row = false});
  }

  at::Tensor forward(const at::Tensor& x, const ForwardContext& step,
                     const std::function<at::Tensor()>& beside) override {
    const at::Tensor own = ranks_->enter(x);
    const Product& product = router_product(step.training && !is_canonical(step));
    const at::Tensor logits = linear(product, own, router_->value, {}, options_.count, &deferred_);
    const at::Tensor scores = scores_of(logits, options_);
    if (is_local(own, step)) {
      const at::Tensor y = ranks_->leave(local_results(own, scores, step), x);
      return beside ? y + beside() : y;
    }
    const ExpertChoice choice = choose(x, logits.detach(), scores.detach(), step);
    const ExpertDispatch way(choice.experts, choice.kept, options_.count, ranks_);
    const ExpertRanks::Arrival arrival = way.begin_dispatch(own);
    const at::Tensor other = beside ? beside() : at::Tensor();
    const at::Tensor rows = arrival();
    at::Tensor y = way.combine(results_of(rows, way.ends(), step), weights_of(scores, choice.experts, options_));
    y = with_losses(y, logits, scores, choice, step);
    y = ranks_->leave(y, x);
    return other.defined() ? y + other : y;
  }

  void end_step(const Reported& reported, ExpertMetrics& metrics) override {
    const std::vector<double>& load = reported.at(load_);
    const std::vector<double>& computed = reported.at(computed_);
    const double all = std::accumulate(load.begin(), load.end(), 0.0), mean = all / static_cast<double>(load.size());
    ++metrics.layers;
    if (balance_.index >= 0) metrics.balance_loss += reported.at(balance_).front();
    if (all == 0) return;
    metrics.expert_load = std::max(metrics.expert_load, *std::max_element(load.begin(), load.end()) / mean);
    metrics.rank_load = std::max(metrics.rank_load, rank_load(computed));
    metrics.assigned += all;
    metrics.dropped += all - std::accumulate(computed.begin(), computed.end(), 0.0);
    if (bias_ && options_.bias_rate != 0 && !reported.skipped && bias_->value.defined())
      move_bias(load, reported.micro_batches);
  }

 private:
  Parameter& stack(Parameters& p, const std::string& name, const std::vector<int64_t>& shape, int64_t features,
                   const std::vector<tensor::Segment>& segments, double deviation) const {
    const bool is_weight = shape.size() == 3;
    Parameter& made = p.add(name, stack_spec(*ranks_, shape, features, segments),
                            is_weight ? Init::normal(deviation) : Init::zeros(), is_weight);
    made.is_stack = true;
    made.hidden_matrix = is_weight;
    return made;
  }

  /// Returns true for a pass without gradients and reports on a CPU whose rank has all experts.
  bool is_local(const at::Tensor& own, const ForwardContext& step) const {
    return own.is_cpu() && ranks_->ranks() == 1 && !step.training && !choices_of(step) && !at::GradMode::is_enabled();
  }

  at::Tensor local_results(const at::Tensor& own, const at::Tensor& scores, const ForwardContext& step) const {
    const LocalRoute route(scores, chosen_experts(scores, bias_ ? bias_->value : at::Tensor(), options_), options_);
    return route.combine(results_of(route.dispatch(own), route.ends(), step));
  }

  at::Tensor results_of(const at::Tensor& rows, const ops::GroupEnds& ends, const ForwardContext& step) const {
    const at::Tensor inside =
        grouped_linear(*up_product_, rows, up_->value, up_bias_ ? up_bias_->value : at::Tensor(), ends, &deferred_);
    at::Tensor bias = down_bias_ ? down_bias_->value : at::Tensor();
    if (bias.defined() && ranks_->copies() > 1) bias = bias * (ranks_->adds_bias() ? 1 : 0);
    const bool is_pending = step.training && step.recompute == Recompute::Selective;
    return grouped_linear(*down_product_, is_pending ? inside : options_.activation(inside), down_->value, bias, ends,
                          &deferred_, is_pending ? options_.activation : Unary());
  }

  ExpertChoice choose(const at::Tensor& x, const at::Tensor& logits, const at::Tensor& scores,
                      const ForwardContext& step) const {
    KeptChoices* choices = choices_of(step);
    if (choices)
      if (const ExpertChoice* kept = choices->next()) return *kept;
    const at::NoGradGuard no_grad;
    ExpertChoice choice{.experts = chosen_experts(scores, bias_ ? bias_->value : at::Tensor(), options_)};
    const bool limits = step.training && options_.capacity > 0;
    at::Tensor taken;  // assignments that each expert takes, of all ranks
    if (limits) limit(x, step, choice, taken);
    if (step.training && accumulator_of(step)) {
      choice.sums = ranks_->sum(own_sums(logits, scores, choice.experts));
      const at::Tensor load = choice.sums.narrow(0, 0, options_.count);
      step.report(load_, load);
      step.report(computed_, limits ? taken : load);
    }
    if (choices) choices->keep(choice);
    return choice;
  }

  at::Tensor counts_of(const at::Tensor& experts) const {
    return expert_counts(experts, options_.count).to(at::kDouble);
  }

  /// Returns balance_loss x count x sum of (share of assignments x share of scores), of `tokens` tokens.
  at::Tensor balance(const at::Tensor& counts, const at::Tensor& score_sums, const at::Tensor& tokens) const {
    const at::Tensor some = tokens.clamp_min(1);
    const double factor =
        options_.balance_loss * static_cast<double>(options_.count) / static_cast<double>(options_.used);
    return ((counts / some * (factor / some)).to(score_sums.scalar_type()) * score_sums).sum();
  }

  /// Returns the sum of logsumexp(logits)^2 over tokens. at::logsumexp has no kernel on meta.
  static at::Tensor squares_of(const at::Tensor& logits) {
    const at::Tensor most = logits.detach().amax(-1, /*keepdim=*/true);
    return ((logits - most).exp().sum(-1, /*keepdim=*/true).log() + most).square().sum();
  }

  at::Tensor own_sums(const at::Tensor& logits, const at::Tensor& scores, const at::Tensor& experts) const {
    const at::Tensor counts = counts_of(experts), of_scores = shares_of(scores, options_).sum(0).to(at::kDouble);
    const at::Tensor tokens = at::full({}, static_cast<double>(scores.size(0)), counts.options());
    const at::Tensor loss = balance(counts, of_scores, tokens);
    const at::Tensor squares = z_.index < 0 ? at::zeros_like(tokens) : squares_of(logits).to(at::kDouble);
    return at::cat({counts, of_scores, at::stack({tokens, squares, loss, at::ones_like(tokens)})});
  }

  at::Tensor with_losses(const at::Tensor& y, const at::Tensor& logits, const at::Tensor& scores,
                         const ExpertChoice& choice, const ForwardContext& step) const {
    if (!step.training || !accumulator_of(step) || !choice.sums.defined()) return y;
    const auto joined = [&](After what) { return choice.sums.select(0, 2 * options_.count + what); };
    const at::Tensor tokens = joined(kTokens), counts = choice.sums.narrow(0, 0, options_.count);
    // The value is that of all ranks, and the gradient that of this rank's part, which copies of it share.
    const auto attach = [&](const Report& term, const at::Tensor& own, const at::Tensor& all, const at::Tensor& to) {
      const at::Tensor part = own / static_cast<double>(ranks_->copies());
      return step.attach_loss(term, part + (all.to(part.scalar_type()) - part.detach()), to);
    };
    at::Tensor result = y;
    if (balance_.index >= 0) {
      const at::Tensor of_scores = shares_of(scores, options_).sum(0);
      if (options_.balance_over == ExpertOptions::BalanceOver::Batch) {
        const at::Tensor all = choice.sums.narrow(0, options_.count, options_.count);
        result = attach(balance_, balance(counts, of_scores, tokens), balance(counts, all, tokens), result);
      } else {
        const at::Tensor own_tokens = at::full({}, static_cast<double>(scores.size(0)), counts.options());
        const at::Tensor own = balance(counts_of(choice.experts), of_scores, own_tokens);
        const at::Tensor ranks = joined(kRanks);
        result = attach(balance_, own / ranks.to(own.scalar_type()), joined(kRankLoss) / ranks, result);
      }
    }
    if (z_.index >= 0) {
      const at::Tensor factor = options_.z_loss / tokens.clamp_min(1);
      const at::Tensor own = squares_of(logits);
      result = attach(z_, own * factor.to(own.scalar_type()), joined(kSquares) * factor, result);
    }
    return result;
  }

  /// Sets choice.kept: an expert takes assignments in the order of the micro-batch until it is full.
  void limit(const at::Tensor& x, const ForwardContext& step, ExpertChoice& choice, at::Tensor& taken) const {
    const int64_t used = options_.used;
    int64_t tokens = 0;
    const at::Tensor own = ranks_->positions(x, step, tokens);
    const auto dtype = options_.count <= kByteValues ? at::kByte : at::kInt;  // Gloo cannot add 16-bit integers
    at::Tensor all = at::empty({tokens, used}, choice.experts.options().dtype(dtype));
    if (choice.experts.is_meta()) {
      taken = counts_of(choice.experts);
      ranks_->sum(all);
      return;
    }
    all = ranks_->sum(all.zero_().index_copy_(0, own, choice.experts.to(dtype)));
    const auto limit = static_cast<int64_t>(
        std::ceil(options_.capacity * static_cast<double>(used * tokens) / static_cast<double>(options_.count)));
    choice.kept = kept_assignments(all, options_.count, limit).index_select(0, own);
    taken = counts_of(all.to(at::kLong)).clamp_max(limit);
  }

  double rank_load(const std::vector<double>& computed) const {
    const auto ranks = static_cast<size_t>(ranks_->ranks()), here = (computed.size() + ranks - 1) / ranks;
    double most = 0, all = 0;
    for (size_t first = 0; first < computed.size(); first += here) {
      const double sum =
          std::accumulate(computed.begin() + first, computed.begin() + std::min(computed.size(), first + here), 0.0);
      most = std::max(most, sum);
      all += sum;
    }
    return all == 0 ? 1 : most * static_cast<double>(ranks) / all;
  }

  /// Compares counts of assignments: loads are means over micro-batches, which round.
  void move_bias(const std::vector<double>& load, int64_t micro_batches) const {
    std::vector<int64_t> counts;
    for (const double of : load) counts.push_back(std::llround(of * static_cast<double>(micro_batches)));
    const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    std::vector<double> by;
    for (const int64_t of : counts) {
      const int64_t even = of * static_cast<int64_t>(counts.size());
      by.push_back(options_.bias_rate * static_cast<double>((all > even) - (all < even)));
    }
    const at::NoGradGuard no_grad;
    bias_->value.add_(at::tensor(by, at::kDouble).to(bias_->value.options()));
  }

  ExpertOptions options_;
  std::shared_ptr<const ExpertRanks> ranks_;
  DeferredGradients& deferred_;
  Parameter *router_ = nullptr, *up_ = nullptr, *up_bias_ = nullptr, *down_ = nullptr, *down_bias_ = nullptr;
  std::shared_ptr<const GroupedProduct> up_product_, down_product_;
  Buffer* bias_ = nullptr;
  Report load_, computed_, balance_, z_;
};

}  // namespace

at::Tensor ExpertRanks::positions(const at::Tensor& x, const ForwardContext&, int64_t& tokens) const {
  tokens = x.size(0) * x.size(1);
  return at::arange(tokens, x.options().dtype(at::kLong));
}

void add_rows(const ExpertMetrics& metrics, std::vector<Metric>& rows) {
  if (metrics.layers == 0) return;
  rows.push_back(known_metric("expert_load", metrics.expert_load));
  rows.push_back(known_metric("rank_load", metrics.rank_load));
  rows.push_back(known_metric("dropped_share", metrics.assigned > 0 ? metrics.dropped / metrics.assigned : 0.0));
  rows.push_back(known_metric("balance_loss", metrics.balance_loss / static_cast<double>(metrics.layers)));
}

std::unique_ptr<Experts> make_experts(Parameters& parameters, Reports& reports, const std::string& name, int64_t hidden,
                                      const ExpertOptions& options, std::shared_ptr<const ExpertRanks> ranks) {
  return std::make_unique<Mixture>(parameters, reports, name, hidden, options, std::move(ranks));
}

}  // namespace colossal::nn
