#include "colossal/evaluate/metrics.h"

#include <algorithm>
#include <cmath>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/text/verifiers/comparisons.h"
#include "colossal/text/verifiers/words.h"

namespace colossal::evaluate {
namespace {

size_t first_largest(const std::vector<double>& values) {
  return static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

}  // namespace

const std::vector<std::string>& answer_metric_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const text::Comparison& comparison : text::comparisons()) all.push_back(comparison.name);
    all.emplace_back("regex");
    return all;
  }();
  return names;
}

const std::vector<std::string>& choice_metric_names() {
  static const std::vector<std::string> names{"acc", "acc_norm", "acc_bytes"};
  return names;
}

const std::vector<std::string>& perplexity_metric_names() {
  static const std::vector<std::string> names{"word_perplexity", "byte_perplexity", "bits_per_byte"};
  return names;
}

Values choice_metrics(const std::vector<double>& sums, const std::vector<std::string>& choices, size_t right) {
  std::vector<double> by_characters, by_bytes;
  for (size_t i = 0; i < sums.size(); ++i) {
    by_characters.push_back(sums[i] / static_cast<double>(text::characters_of(choices[i])));
    by_bytes.push_back(sums[i] / static_cast<double>(choices[i].size()));
  }
  const auto is_right = [right](const std::vector<double>& of) { return first_largest(of) == right ? 1.0 : 0.0; };
  return {{"acc", is_right(sums)}, {"acc_norm", is_right(by_characters)}, {"acc_bytes", is_right(by_bytes)}};
}

double answer_metric(const std::string& name, const std::string& answer, const std::string& target,
                     const text::Regex* pattern) {
  if (name == "regex") {
    require(pattern != nullptr, "evaluate", "the metric regex needs a `pattern`: got none");
    return text::first_match_is(target, *pattern, answer);
  }
  const text::Comparison* const comparison = text::comparison(name);
  require(comparison != nullptr, "evaluate", "a metric of answers must be one of ", join(answer_metric_names()),
          ": got ", name);
  return comparison->value(answer, target);
}

Mean mean_of(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const double mean = sum / count;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {mean, std::sqrt(squares / (count - 1)) / std::sqrt(count)};
}

Values Predicted::values() const {
  const double per_byte = -sum / static_cast<double>(bytes);
  return {{"word_perplexity", std::exp(-sum / static_cast<double>(words))},
          {"byte_perplexity", std::exp(per_byte)},
          {"bits_per_byte", per_byte / std::log(2.0)}};
}

}  // namespace colossal::evaluate
