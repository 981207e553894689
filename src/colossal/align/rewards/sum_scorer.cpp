#include "colossal/align/rewards/sum_scorer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "colossal/base/clock.h"
#include "colossal/base/error.h"

namespace colossal::align {
namespace {

constexpr double kSlice = 0.005;  // seconds that one of several scorers may wait, because the others need work, too

}  // namespace

void add_part(std::vector<std::pair<std::string, double>>& parts, std::string name, const std::string& before,
              double value) {
  const auto is_taken = [&] {
    return std::any_of(parts.begin(), parts.end(), [&](const auto& part) { return part.first == name; });
  };
  while (is_taken()) name = concat(before.empty() ? "other" : before, "_", name);
  parts.emplace_back(std::move(name), value);
}

SumScorer::SumScorer(std::vector<WeightedScorer> scorers) : scorers_(std::move(scorers)) {
  require(!scorers_.empty(), "reward", "a sum must have at least one scorer: got none");
  for (const WeightedScorer& one : scorers_)
    require(std::isfinite(one.weight), "reward", "a weight must be a finite number: got ", one.weight, " for ",
            one.name.empty() ? "a scorer" : one.name);
}

void SumScorer::check(const text::PromptLine& line) {
  for (const WeightedScorer& one : scorers_) one.scorer->check(line);
}

void SumScorer::add(Answer answer) {
  if (!waiting_.add(answer.id)) return;
  scores_[answer.id].resize(scorers_.size());
  for (const WeightedScorer& one : scorers_) one.scorer->add(answer);
}

std::vector<Scored> SumScorer::take(double seconds) {
  const double end = steady_seconds() + seconds;
  while (!waiting_.has_news() && waiting() > 0) {
    const auto waits = [](const WeightedScorer& one) { return one.scorer->waiting() > 0; };
    const bool is_alone = std::count_if(scorers_.begin(), scorers_.end(), waits) == 1;
    const double slice = std::max(0.0, std::min(end - steady_seconds(), is_alone ? end : kSlice));
    for (size_t i = 0; i < scorers_.size(); ++i)
      if (waits(scorers_[i])) take_from(i, slice);
    if (steady_seconds() >= end) break;
  }
  return waiting_.take();
}

void SumScorer::take_from(size_t scorer, double seconds) {
  std::vector<Scored> scored;
  try {
    scored = scorers_[scorer].scorer->take(seconds);
  } catch (const Error& error) {
    for (const WeightedScorer& one : scorers_) one.scorer->forget();
    scores_.clear();
    return waiting_.fail(error);
  }
  for (Scored& one : scored) {
    const auto at = scores_.find(one.id);
    at->second[scorer] = std::move(one.score);
    if (!std::all_of(at->second.begin(), at->second.end(), [](const auto& score) { return score.has_value(); }))
      continue;
    waiting_.set({std::move(one.id), sum_of(at->second)});
    scores_.erase(at);
  }
}

void SumScorer::forget() {
  for (const WeightedScorer& one : scorers_) one.scorer->forget();
  scores_.clear();
  waiting_.clear();
}

Score SumScorer::sum_of(const Scores& scores) const {
  Score sum{.value = 0};
  for (size_t i = 0; i < scores.size(); ++i) {
    const Score& score = *scores[i];
    const std::string& name = scorers_[i].name;
    sum.is_fault = sum.is_fault || score.is_fault;
    if (score.value && !name.empty()) add_part(sum.parts, name, name, *score.value);
    for (const auto& [part, value] : score.parts) add_part(sum.parts, part, name, value);
    if (!score.text.empty()) sum.text += (sum.text.empty() ? "" : "\n") + score.text;
    if (sum.value && score.value)
      *sum.value += scorers_[i].weight * *score.value;
    else
      sum.value.reset();
  }
  return sum;
}

}  // namespace colossal::align
