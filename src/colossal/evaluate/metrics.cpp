#include "colossal/evaluate/metrics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/evaluate/words.h"
#include "colossal/text/tokenizers/regex.h"

namespace colossal::evaluate {
namespace {

using text::Regex;

constexpr char kNumber[] = R"((?:(?<![\w)])-)?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?)";

std::string text_at(const std::string& text, Regex::Match match) {
  return text.substr(match.begin, match.end - match.begin);
}

/// Returns what stands in the last \boxed{}, braces within included; nothing if there is none.
std::optional<std::string> last_boxed(const std::string& text) {
  constexpr std::string_view kBox = "\\boxed{";
  const size_t box = text.rfind(kBox);
  if (box == std::string::npos) return {};
  const size_t begin = box + kBox.size();
  int64_t open = 1;
  for (size_t at = begin; at < text.size(); ++at) {
    open += text[at] == '{' ? 1 : text[at] == '}' ? -1 : 0;
    if (open == 0) return text.substr(begin, at - begin);
  }
  return {};
}

/// Returns a number that kNumber matches, as digits without zeros at their ends and a power of ten.
std::string digits_and_power(std::string number) {
  std::erase(number, ',');
  const bool is_negative = number.front() == '-';
  if (is_negative) number.erase(0, 1);
  int64_t power = 0;
  if (const size_t e = number.find_first_of("eE"); e != std::string::npos) {
    constexpr size_t kMaxDigits = 15;  // digits of a power; a number with a longer one counts as infinite
    power = std::stoll(number.substr(e + 1, kMaxDigits));
    number.resize(e);
  }
  if (const size_t point = number.find('.'); point != std::string::npos) {
    power -= static_cast<int64_t>(number.size() - point) - 1;
    number.erase(point, 1);
  }
  number.erase(0, number.find_first_not_of('0'));
  while (number.ends_with('0')) number.pop_back(), ++power;
  return number.empty() ? "0" : concat(is_negative ? "-" : "", number, "e", power);
}

std::string replaced(const std::string& text, const Regex& what) {
  std::string left;
  size_t end = 0;
  for (const Regex::Match& match : what.find_all(text)) {
    left += text.substr(end, match.begin - end);
    end = match.end;
  }
  return left + text.substr(end);
}

/// Returns a text as GSM8K's matches compare it: without commas, dollars, what leads to "#### " and a period at the
/// end, in lower case.
std::string gsm8k_form(std::string text) {
  for (const char* ignored : {",", "\\$", "(?s).*#### ", "\\.(?=\\n?$)"})
    text = replaced(text, Regex(ignored, text::Dialect::Rust));
  return lowered(text);
}

bool matches_gsm8k(const std::string& answer, const std::string& target, bool is_strict) {
  const Regex pattern(is_strict ? "(?<=#### )-?[0-9.,]+" : "-?[$0-9.,]{2,}|-?[0-9]+", text::Dialect::Rust);
  const std::vector<Regex::Match> found = pattern.find_all(answer);
  if (found.empty()) return false;
  return gsm8k_form(text_at(answer, is_strict ? found.front() : found.back())) == gsm8k_form(target);
}

bool matches_pattern(const std::string& answer, const std::string& target, const Regex* pattern) {
  require(pattern != nullptr, "evaluate", "the metric regex needs a `pattern`: got none");
  const std::vector<Regex::Match> found = pattern->find_groups(answer);
  if (found.empty()) return false;
  const auto group = std::find_if(found.begin() + 1, found.end(), [](Regex::Match m) { return m.begin < m.end; });
  return stripped(text_at(answer, group == found.end() ? found.front() : *group)) == stripped(target);
}

/// Returns the harmonic mean of precision and recall.
double f1_of(size_t common, size_t answered, size_t wanted) {
  if (answered == 0 || wanted == 0) return answered == wanted ? 1 : 0;
  return 2 * static_cast<double>(common) / static_cast<double>(answered + wanted);
}

double word_f1(const std::string& answer, const std::string& target) {
  const std::vector<std::string> answered = answer_words(answer), wanted = answer_words(target);
  std::map<std::string, int64_t> left;
  for (const std::string& word : wanted) ++left[word];
  size_t common = 0;
  for (const std::string& word : answered) common += left[word]-- > 0;
  return f1_of(common, answered.size(), wanted.size());
}

double rouge_l(const std::string& answer, const std::string& target) {
  const std::vector<std::string> answered = rouge_words(answer), wanted = rouge_words(target);
  std::vector<size_t> longest(wanted.size() + 1);  // length of the common subsequence with each beginning of the target
  for (const std::string& word : answered) {
    size_t diagonal = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const size_t above = longest[i + 1];
      longest[i + 1] = word == wanted[i] ? diagonal + 1 : std::max(above, longest[i]);
      diagonal = above;
    }
  }
  return f1_of(longest.back(), answered.size(), wanted.size());
}

size_t first_largest(const std::vector<double>& values) {
  return static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

}  // namespace

const std::vector<std::string>& answer_metric_names() {
  static const std::vector<std::string> names{"exact", "number", "strict", "flexible", "regex", "f1", "rouge"};
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
    by_characters.push_back(sums[i] / static_cast<double>(characters_of(choices[i])));
    by_bytes.push_back(sums[i] / static_cast<double>(choices[i].size()));
  }
  const auto is_right = [right](const std::vector<double>& of) { return first_largest(of) == right ? 1.0 : 0.0; };
  return {{"acc", is_right(sums)}, {"acc_norm", is_right(by_characters)}, {"acc_bytes", is_right(by_bytes)}};
}

std::optional<std::string> number_of(const std::string& text) {
  const std::string searched = last_boxed(text).value_or(text);
  const std::vector<Regex::Match> found = Regex(kNumber, text::Dialect::Rust).find_all(searched);
  if (found.empty()) return {};
  return digits_and_power(text_at(searched, found.back()));
}

double answer_metric(const std::string& name, const std::string& answer, const std::string& target,
                     const Regex* pattern) {
  if (name == "exact") return stripped(answer) == stripped(target) ? 1 : 0;
  if (name == "number") {
    const std::optional<std::string> number = number_of(answer);
    return number && number == number_of(target) ? 1 : 0;
  }
  if (name == "strict" || name == "flexible") return matches_gsm8k(answer, target, name == "strict") ? 1 : 0;
  if (name == "regex") return matches_pattern(answer, target, pattern) ? 1 : 0;
  if (name == "f1") return word_f1(answer, target);
  require(name == "rouge", "evaluate", "a metric of answers must be one of ", join(answer_metric_names()), ": got ",
          name);
  return rouge_l(answer, target);
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
