// The metrics of tasks: which choice is right, how an answer compares with its target, means and their errors.
//
//   evaluate::choice_metrics({-9.0, -10.4}, {"one", "twelve"}, 0);  // acc 1, acc_norm 0, acc_bytes 0
//   evaluate::answer_metric("number", "so 1,250 apples", "1250.0");  // 1
//   evaluate::mean_of({1, 0, 0, 1, 1});                              // 0.6, error 0.2449489742783
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace colossal::text {
class Regex;
}  // namespace colossal::text

namespace colossal::evaluate {

/// Values of one item by the names of their metrics.
using Values = std::vector<std::pair<std::string, double>>;

/// Returns `acc`, `acc_norm` and `acc_bytes` of a question: 1 if the right choice has the largest sum of
/// log-probabilities, or the largest sum divided by its code points or by its bytes in UTF-8; else 0. Of equal ones the
/// first counts. Both lists have one entry per choice.
Values choice_metrics(const std::vector<double>& sums, const std::vector<std::string>& choices, size_t right);

/// Compares an answer with its target, by the metric of this name: a text::Comparison, or regex, which is
/// text::first_match_is() of `pattern`. Errors ("evaluate"): another name, regex without a pattern. Errors
/// ("tokenizer"): a pattern that backtracks without end.
double answer_metric(const std::string& name, const std::string& answer, const std::string& target,
                     const text::Regex* pattern = nullptr);
/// Returns the names of the metrics of answers and of choices.
const std::vector<std::string>& answer_metric_names();
const std::vector<std::string>& choice_metric_names();
const std::vector<std::string>& perplexity_metric_names();

struct Mean {
  double mean;
  double error;  ///< standard error: the sample's standard deviation (n - 1) / sqrt(n); NaN for one value
};
/// Returns the mean of at least one value.
Mean mean_of(const std::vector<double>& values);

/// Sums of log-probabilities, words and bytes over documents.
struct Predicted {
  double sum = 0;  ///< sum of natural logarithms
  int64_t words = 0, bytes = 0;

  void add(const Predicted& other) { sum += other.sum, words += other.words, bytes += other.bytes; }
  /// Returns `word_perplexity`, `byte_perplexity` and `bits_per_byte`: exp(-sum / words), exp(-sum / bytes) and
  /// -sum / bytes / log 2.
  Values values() const;
};

}  // namespace colossal::evaluate
