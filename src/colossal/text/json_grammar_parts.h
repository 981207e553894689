// The parts of JSON's grammar that do not depend on a schema. Each call gives a node that describes the part and then
// `next`, or a rule.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "colossal/text/grammar.h"
#include "colossal/text/json_decimal.h"
#include "colossal/text/text_automaton.h"

namespace colossal::text {

class JsonParts {
 public:
  explicit JsonParts(Grammar& grammar);
  /// Nothing, a space, or a new line and up to 16 spaces.
  int space(int next) { return grammar_.call(space_, next); }
  /// A string of `least` to `most` characters (an escape is one); no `most` = no limit.
  int string(int64_t least, std::optional<int64_t> most, int next);
  /// A string in the spelling of its automaton: of those texts whose sets `wanted` allows.
  int string_of(const TextAutomaton& texts, const std::function<bool(const std::vector<int>&)>& wanted, int next);
  /// A number without an exponent: bounds and `step` (a divisor) are exact. Without a bound, up to 18 digits.
  struct Range {
    std::optional<Decimal> least{}, most{};
    bool excludes_least = false, excludes_most = false;
    int64_t step = 1;         ///< a divisor; more than 1: of integers only
    bool is_whole = true;     ///< may be an integer
    bool is_fraction = true;  ///< may be no integer
  };
  int range(const Range& range, int next);
  int number(int next);
  /// The rule of any value.
  int any() const { return any_; }

 private:
  void make_characters();
  int digits(int least, int most, int next);
  /// How the digits of `magnitude()` are written.
  struct Digits {
    int64_t step = 1;   // a divisor of the number that the digits are without the point
    int decimals = 0;   // digits after the point
    bool ends = false;  // the last digit is not 0
  };
  int plain_characters(int next);
  int magnitude(uint64_t least, uint64_t most, const Digits& written, int next);
  int scaled_range(const Range& range, const Digits& written, int next);
  int any_rule();

  Grammar& grammar_;
  int space_, wide_, character_, any_;
};

/// `item` (a rule) `least` to `most` times (no `most`: for ever), then `next`.
int repeated(Grammar& grammar, int item, int64_t least, std::optional<int64_t> most, int next);

}  // namespace colossal::text
