// How an answer compares with the right one. Tasks of `colossal evaluate` have these functions as metrics, and runs
// that learn from rewards as verifiers.
//
//   text::comparison("number")->value("so 1,250 apples", "1250.0");  // 1
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "colossal/text/tokenizers/regex.h"

namespace colossal::text {

/// A comparison of an answer with its target.
struct Comparison {
  std::string name;
  double (*value)(const std::string& answer, const std::string& target);  ///< 1 = equal, 0 = not
};

/// Returns the comparisons of the library:
/// - exact:    both are equal without white space at their ends.
/// - number:   the number of both is the same (number_of()).
/// - strict:   GSM8K's strict match: the first number after "#### ".
/// - flexible: GSM8K's flexible extract: the last number.
/// - f1:       SQuAD's F1 of words (answer_words(); Rajpurkar et al. 2016, arXiv:1606.05250).
/// - rouge:    ROUGE-L's F1 of words (rouge_words(); Lin 2004): the longest common subsequence.
///
/// strict and flexible give 0 without a match. f1 and rouge give values between 0 and 1. Thread safety: full.
const std::vector<Comparison>& comparisons();
/// Returns the comparison of that name; null = there is none.
const Comparison* comparison(const std::string& name);

/// Returns the number of a text in a form that is equal for equal numbers: digits and a power of ten. The number is the
/// last one within the last \boxed{}, else the last one. Commas between thousands and zeros at the ends do not count,
/// so that 1,250 is 1250.0. Returns nothing if there is none.
std::optional<std::string> number_of(const std::string& text);

/// Returns true if the first match of `pattern`, or its first group that is not empty, equals the target as `exact`
/// does. Returns false without a match. Errors ("tokenizer"): a pattern that backtracks without end.
bool first_match_is(const std::string& target, const Regex& pattern, const std::string& answer);

}  // namespace colossal::text
