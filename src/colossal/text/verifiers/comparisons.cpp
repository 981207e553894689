#include "colossal/text/verifiers/comparisons.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "colossal/base/error.h"
#include "colossal/text/verifiers/words.h"

namespace colossal::text {
namespace {

constexpr char kLastNumber[] =
    R"((?:(?<![\w)])-)?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?)";

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

/// Returns a number that kLastNumber matches, as digits without zeros at their ends and a power of ten.
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

std::string without_matches(const std::string& text, const Regex& what) {
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
  static const std::vector<Regex> ignored{Regex(",", Dialect::Rust), Regex("\\$", Dialect::Rust),
                                          Regex("(?s).*#### ", Dialect::Rust), Regex("\\.(?=\\n?$)", Dialect::Rust)};
  for (const Regex& pattern : ignored) text = without_matches(text, pattern);
  return lowered(text);
}

bool matches_gsm8k(const std::string& answer, const std::string& target, bool is_strict) {
  static const Regex strict("(?<=#### )-?[0-9.,]+", Dialect::Rust);
  static const Regex flexible("-?[$0-9.,]{2,}|-?[0-9]+", Dialect::Rust);
  const std::vector<Regex::Match> found = (is_strict ? strict : flexible).find_all(answer);
  if (found.empty()) return false;
  return gsm8k_form(text_at(answer, is_strict ? found.front() : found.back())) == gsm8k_form(target);
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

double is_same_text(const std::string& answer, const std::string& target) {
  return stripped(answer) == stripped(target);
}

double is_same_number(const std::string& answer, const std::string& target) {
  const std::optional<std::string> number = number_of(answer);
  return number && number == number_of(target);
}

double is_strict_match(const std::string& answer, const std::string& target) {
  return matches_gsm8k(answer, target, true);
}

double is_flexible_match(const std::string& answer, const std::string& target) {
  return matches_gsm8k(answer, target, false);
}

}  // namespace

const std::vector<Comparison>& comparisons() {
  static const std::vector<Comparison> all{
      {"exact", is_same_text}, {"number", is_same_number}, {"strict", is_strict_match}, {"flexible", is_flexible_match},
      {"f1", word_f1},         {"rouge", rouge_l}};
  return all;
}

const Comparison* comparison(const std::string& name) {
  const std::vector<Comparison>& all = comparisons();
  const auto at = std::find_if(all.begin(), all.end(), [&](const Comparison& one) { return one.name == name; });
  return at == all.end() ? nullptr : &*at;
}

std::optional<std::string> number_of(const std::string& text) {
  const std::string searched = last_boxed(text).value_or(text);
  static const Regex number(kLastNumber, Dialect::Rust);
  const std::vector<Regex::Match> found = number.find_all(searched);
  if (found.empty()) return {};
  return digits_and_power(text_at(searched, found.back()));
}

bool first_match_is(const std::string& target, const Regex& pattern, const std::string& answer) {
  const std::vector<Regex::Match> found = pattern.find_groups(answer);
  if (found.empty()) return false;
  const auto group = std::find_if(found.begin() + 1, found.end(), [](Regex::Match m) { return m.begin < m.end; });
  return stripped(text_at(answer, group == found.end() ? found.front() : *group)) == stripped(target);
}

}  // namespace colossal::text
