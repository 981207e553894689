#include "colossal/align/policy_metrics.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "colossal/align/advantages.h"
#include "colossal/base/known_metrics.h"
#include "colossal/comm/group.h"
#include "colossal/tensor/host_value.h"

namespace colossal::align {
namespace {

/// Metrics of scores alone, the same on every rank.
class ScoreSums {
 public:
  void add(const RolloutGroup& group) {
    const std::vector<OptionalScore> values = values_of(group.scores);
    if (!has_spread(values)) ++zero_spread_;
    ++groups_;
    for (size_t i = 0; i < group.answers.size(); ++i) {
      tokens_ += static_cast<double>(group.answers[i].ids.size());
      truncated_ += group.answers[i].finish_reason == "stop" ? 0 : 1;
      ++answers_;
      if (values[i]) values_.push_back(*values[i]);
      for (const auto& [name, value] : group.scores[i].parts) parts_[name].push_back(value);
    }
  }

  std::vector<Metric> rows() const {
    std::vector<Metric> rows{known_metric("reward", mean(values_)), known_metric("reward_deviation", deviation())};
    std::set<std::string> members;
    for (const auto& [name, values] : parts_) {
      std::string own = member(name);
      while (!members.insert(own).second) own += "_";  // "a.b" and "a b" are both reward_a_b
      rows.push_back({.name = own, .value = mean(values), .plot = "Rewards", .legend = name, .tag = "rollouts/" + own});
    }
    const auto all = static_cast<double>(std::max<int64_t>(answers_, 1));
    rows.push_back(known_metric("answer_tokens", tokens_ / all));
    rows.push_back(known_metric("truncated_share", truncated_ / all));
    if (answers_ > groups_) rows.push_back(known_metric("zero_spread_groups", zero_spread_));
    const auto unscored = answers_ - static_cast<int64_t>(values_.size());
    if (unscored > 0) rows.push_back(known_metric("unscored_answers", unscored));
    return rows;
  }

 private:
  static double mean(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return values.empty() ? 0 : sum / static_cast<double>(values.size());
  }
  double deviation() const {
    if (values_.size() < 2) return 0;
    const double centre = mean(values_);
    double sum = 0;
    for (const double value : values_) sum += (value - centre) * (value - centre);
    return std::sqrt(sum / static_cast<double>(values_.size() - 1));
  }
  /// Names of parts come from programs of users; metrics have letters, digits, _ and - alone.
  static std::string member(const std::string& part) {
    std::string name = "reward_" + part;
    for (char& c : name)
      if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-') c = '_';
    return find_known_metric(name) ? name + "_score" : name;
  }

  std::vector<double> values_;
  std::map<std::string, std::vector<double>> parts_;
  double tokens_ = 0, truncated_ = 0;
  int64_t groups_ = 0, answers_ = 0, zero_spread_ = 0;
};

}  // namespace

void PolicyMeasures::add(const run::PolicyObjective::Measured& measured) {
  sums_.push_back(measured.sums);
  if (updates_ > 0) return;
  difference_ = difference_.defined() ? at::maximum(difference_, measured.difference) : measured.difference;
}

void PolicyMeasures::end_update(double loss, double value_loss) {
  last_loss_ = loss;
  losses_ += loss;
  value_losses_ += value_loss;
  ++updates_;
}

std::vector<Metric> PolicyMeasures::rows(train::Engine& engine, const std::vector<RolloutGroup>& groups,
                                         const PolicyRows& rows, const PolicyPasses& passes) const {
  ScoreSums scores;
  for (const RolloutGroup& group : groups) scores.add(group);
  std::vector<Metric> all = scores.rows();

  comm::Mesh& mesh = engine.mesh();
  std::vector<std::string> axes = mesh.coordinates().row_axes();
  axes.insert(axes.begin(), "pipeline");
  std::vector<double> sums(run::PolicyObjective::kSums);
  if (!sums_.empty()) sums = tensor::host_values(at::stack(sums_).sum(0));
  at::Tensor totals = at::tensor(sums, at::kDouble);
  at::Tensor difference = at::full({1}, difference_.defined() ? tensor::host_value(difference_) : 0, at::kDouble);
  mesh.group(axes).all_reduce(totals, comm::Reduce::Sum).wait();
  mesh.group(axes).all_reduce(difference, comm::Reduce::Max).wait();
  const double* sum = totals.const_data_ptr<double>();
  const double tokens = std::max(sum[3], 1.0);
  if (sum[3] > 0) {
    all.push_back(known_metric("entropy", sum[1] / tokens));
    all.push_back(known_metric("clipped_share", sum[2] / tokens));
  }
  const double before = passes.is_old_computed
                            ? tensor::host_value((passes.old - rows.sampled).abs().masked_fill(~rows.counts, 0).max())
                            : difference.item<double>();
  all.push_back(known_metric("sampler_difference", before));
  if (passes.reference.defined())
    all.push_back(known_metric("kl", tensor::host_value(kl_of_tokens(objective_, passes).sum()) /
                                         std::max(1.0, tensor::host_value(rows.counts.sum()))));
  if (objective_.method().has_values)
    all.push_back(known_metric(
        "value_loss",
        objective_.values() ? sum[4] / tokens : value_losses_ / static_cast<double>(std::max<int64_t>(updates_, 1))));
  return all;
}

}  // namespace colossal::align
