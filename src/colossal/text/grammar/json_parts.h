// The parts of JSON's grammar that do not depend on a schema. Each function returns a rule, or a node that matches the
// part and then `next`.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "colossal/text/grammar/grammar.h"
#include "colossal/text/grammar/json_decimal.h"
#include "colossal/text/grammar/text_automaton.h"

namespace colossal::text {

/// A builder of the JSON parts of a grammar. `grammar` must outlive it.
class JsonParts {
 public:
  /// Compact JSON has at most one space, after a comma or a colon. Indented JSON may have a space, or a new line and
  /// up to 16 spaces, between all its tokens but before a comma or a colon.
  explicit JsonParts(Grammar& grammar, bool is_indented = false);
  /// Matches the white space after a comma or a colon; perhaps none.
  int space(int next) { return grammar_.call(space_, next); }
  /// Matches the white space after an opening bracket or before a closing one; perhaps none.
  int padding(int next) { return is_indented_ ? space(next) : next; }
  /// Matches a string of `min` to `max` characters (an escape is one); no `max` = no limit.
  int string(int64_t min, std::optional<int64_t> max, int next);
  /// Matches a JSON string, escapes included, with a text that `wanted` allows. `wanted` gets the numbers of the sets
  /// of `texts` that contain the text. It is called only during string_of().
  int string_of(const TextAutomaton& texts, const std::function<bool(const std::vector<int>&)>& wanted, int next);
  /// Bounds of a number without an exponent. The bounds and `step` are exact. A side without a bound has up to 18
  /// digits, or as many as the other side's bound if that has more.
  struct Range {
    std::optional<Decimal> min{}, max{};
    bool excludes_min = false, excludes_max = false;
    int64_t step = 1;         ///< divisor; above 1 only integers are written
    bool is_whole = true;     ///< integers are allowed
    bool is_fraction = true;  ///< numbers that are not integers are allowed
  };
  int range(const Range& range, int next);
  int number(int next);
  /// Returns the rule that matches any value.
  int any() const { return any_; }

 private:
  void make_characters();
  int digits(int min, int max, int next);
  /// The spelling of the digits that magnitude() writes.
  struct Digits {
    int64_t step = 1;   // divisor of the digits, read as an integer without the decimal point
    int decimals = 0;   // number of digits after the decimal point
    bool ends = false;  // true if the last digit must not be 0
  };
  int plain_characters(int next);
  int magnitude(uint64_t min, uint64_t max, const Digits& written, int next);
  int scaled_range(const Range& range, const Digits& written, int next);
  int any_rule();

  Grammar& grammar_;
  bool is_indented_;
  int space_, wide_, character_, any_;
};

/// Matches the rule `item` between `min` and `max` times (no `max` = no limit), then `next`.
int repeated(Grammar& grammar, int item, int64_t min, std::optional<int64_t> max, int next);

/// The members of a JSON object and their number.
struct ObjectGrammar {
  struct Member {
    std::string name;
    int rule;  ///< rule of the member's value
    bool is_required;
  };
  std::vector<Member> members{};  ///< in the order of the text
  std::optional<int> extra{};     ///< rule of any further member, including its name; no value = no further members
  int64_t min = 0;                ///< minimum number of members
  std::optional<int64_t> max{};   ///< maximum number of members; no value = no limit
};

/// Returns the node of the object, which ends its rule. Two further members may have the same name, so all of them
/// together count as one towards `min`.
int object_node(Grammar& grammar, JsonParts& json, const ObjectGrammar& object);

}  // namespace colossal::text
