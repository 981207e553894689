// The parts of JSON's grammar that do not depend on a schema. Each call gives a node that describes the part and then
// `next`, or a rule.
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "colossal/text/grammar.h"

namespace colossal::text {

class JsonParts {
 public:
  explicit JsonParts(Grammar& grammar);
  /// Nothing, a space, or a new line and up to 16 spaces.
  int space(int next) { return grammar_.call(space_, next); }
  /// Of `least` to `most` characters (an escape is one); no `most`: any number.
  int string(int64_t least, std::optional<int64_t> most, int next);
  /// A string whose characters need no escape, and that is none of `names`. Errors ("json schema"): a name
  /// of more than 256 bytes, since each prefix of one is a part of the grammar.
  int other_name(const std::set<std::string>& names, int next);
  /// Without a bound, up to 18 digits.
  int integer(std::optional<int64_t> least, std::optional<int64_t> most, int next);
  int number(int next);
  /// The rule of any value.
  int any() const { return any_; }

 private:
  void make_characters();
  int digits(int least, int most, int next);
  int plain_not_in(const std::set<uint8_t>& bytes, bool beyond_ascii, int next);
  int between(const std::string& least, const std::string& most, int next);
  int at_least(const std::string& digits, int next);
  int at_most(const std::string& digits, int next);
  int magnitude(uint64_t least, uint64_t most, int next);
  int any_rule();

  Grammar& grammar_;
  int space_, wide_, character_, any_;
};

/// `item` (a rule) `least` to `most` times (no `most`: for ever), then `next`.
int repeated(Grammar& grammar, int item, int64_t least, std::optional<int64_t> most, int next);

}  // namespace colossal::text
