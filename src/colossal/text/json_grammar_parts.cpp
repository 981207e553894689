#include "colossal/text/json_grammar_parts.h"

#include <algorithm>
#include <map>
#include <vector>

#include "colossal/base/error.h"

namespace colossal::text {

int repeated(Grammar& grammar, int item, int64_t least, std::optional<int64_t> most, int next) {
  int node = next;
  if (most) {
    if (*most < least) return grammar.either({});
    for (int64_t i = least; i < *most; ++i) node = grammar.either({next, grammar.call(item, node)});
  } else {
    node = grammar.reserve();
    grammar.define(node, {next, grammar.call(item, node)});
  }
  for (int64_t i = 0; i < least; ++i) node = grammar.call(item, node);
  return node;
}

JsonParts::JsonParts(Grammar& grammar) : grammar_(grammar) {
  Grammar& g = grammar_;
  space_ = g.declare();
  int indent = Grammar::kReturn;
  for (int i = 0; i < 16; ++i) indent = g.either({Grammar::kReturn, g.literal(" ", indent)});
  g.set(space_, g.either({Grammar::kReturn, g.literal(" ", Grammar::kReturn), g.literal("\n", indent)}));
  make_characters();
  any_ = any_rule();
}

// Well-formed UTF-8 (Unicode, table 3-7), and escapes: surrogates only in pairs.
void JsonParts::make_characters() {
  Grammar& g = grammar_;
  const int end = Grammar::kReturn;
  const int one = g.byte(0x80, 0xBF, end), two = g.byte(0x80, 0xBF, one), three = g.byte(0x80, 0xBF, two);
  wide_ = g.declare();
  g.set(wide_, g.either({g.byte(0xC2, 0xDF, one), g.byte(0xE0, 0xE0, g.byte(0xA0, 0xBF, one)), g.byte(0xE1, 0xEC, two),
                         g.byte(0xED, 0xED, g.byte(0x80, 0x9F, one)), g.byte(0xEE, 0xEF, two),
                         g.byte(0xF0, 0xF0, g.byte(0x90, 0xBF, two)), g.byte(0xF1, 0xF3, three),
                         g.byte(0xF4, 0xF4, g.byte(0x80, 0x8F, two))}));
  const auto hex = [&](int next) {
    return g.either({g.byte('0', '9', next), g.byte('a', 'f', next), g.byte('A', 'F', next)});
  };
  const auto letters = [&](uint8_t lo, uint8_t hi, int next) {
    return g.either({g.byte(lo, hi, next), g.byte(lo + 32, hi + 32, next)});
  };
  const int hex2 = hex(hex(end)), hex3 = hex(hex2);
  const int low = g.literal("\\u", letters('D', 'D', letters('C', 'F', hex2)));
  const int high_end = hex(hex(low));
  const int high = g.either({g.byte('8', '9', high_end), letters('A', 'B', high_end)});
  const int unicode = g.either({g.byte('0', '9', hex3), letters('A', 'C', hex3), letters('E', 'F', hex3),
                                letters('D', 'D', g.either({g.byte('0', '7', hex2), high}))});
  std::vector<int> escapes{g.literal("u", unicode)};
  for (const char* escape : {"\"", "\\", "/", "b", "f", "n", "r", "t"}) escapes.push_back(g.literal(escape, end));
  character_ = g.declare();
  g.set(character_, g.either({plain_not_in({}, true, end), g.literal("\\", g.either(escapes))}));
}

// A character that a string holds as it is.
int JsonParts::plain_not_in(const std::set<uint8_t>& bytes, bool beyond_ascii, int next) {
  std::vector<int> ranges;
  std::set<uint8_t> out = bytes;
  out.insert({'"', '\\', 0x80});
  int from = 0x20;
  for (const uint8_t stop : out) {
    if (from < stop && stop <= 0x80) ranges.push_back(grammar_.byte(static_cast<uint8_t>(from), stop - 1, next));
    from = std::max(from, stop + 1);
  }
  if (beyond_ascii) ranges.push_back(grammar_.call(wide_, next));
  return grammar_.either(ranges);
}

int JsonParts::string(int64_t least, std::optional<int64_t> most, int next) {
  return grammar_.literal("\"", repeated(grammar_, character_, least, most, grammar_.literal("\"", next)));
}

// From the end of the names to their beginnings: what has been read is a prefix of some names, or of none any more.
int JsonParts::other_name(const std::set<std::string>& names, int next) {
  Grammar& g = grammar_;
  for (const std::string& name : names)
    require(name.size() <= 256, "json schema", "beside additionalProperties names must be of at most 256 bytes: got ",
            name.size());
  // a name with characters beyond ASCII is avoided by writing none
  const bool beyond = std::all_of(names.begin(), names.end(), [](const std::string& name) {
    return std::all_of(name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  });
  const int close = g.literal("\"", next);
  const int free = g.reserve();
  g.define(free, {close, plain_not_in({}, beyond, free)});
  std::map<std::string, int> after;  // of each prefix of a name
  std::map<std::string, std::set<uint8_t>> follow;
  for (const std::string& name : names)
    for (size_t i = 0; i < name.size(); ++i) follow[name.substr(0, i)].insert(static_cast<uint8_t>(name[i]));
  for (const std::string& name : names) follow.try_emplace(name);
  follow.try_emplace("");
  for (auto at = follow.rbegin(); at != follow.rend(); ++at) {  // longer ones come after their prefixes
    std::vector<int> ways{plain_not_in(at->second, beyond, free)};
    if (!names.contains(at->first)) ways.push_back(close);
    for (const uint8_t byte : at->second)
      if (byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\')
        ways.push_back(g.byte(byte, byte, after.at(at->first + static_cast<char>(byte))));
    after[at->first] = g.either(ways);
  }
  return g.literal("\"", after.at(""));
}

int JsonParts::digits(int least, int most, int next) {
  int node = next;
  for (int i = least; i < most; ++i) node = grammar_.either({next, grammar_.byte('0', '9', node)});
  for (int i = 0; i < least; ++i) node = grammar_.byte('0', '9', node);
  return node;
}

// Numbers of as many digits as the bound, which is a suffix of one: its first digit, or a smaller one and any others.
int JsonParts::at_most(const std::string& bound, int next) {
  if (bound.empty()) return next;
  const auto first = static_cast<uint8_t>(bound[0]);
  const int rest = static_cast<int>(bound.size()) - 1;
  std::vector<int> ways{grammar_.byte(first, first, at_most(bound.substr(1), next))};
  if (first > '0') ways.push_back(grammar_.byte('0', first - 1, digits(rest, rest, next)));
  return grammar_.either(ways);
}

int JsonParts::at_least(const std::string& bound, int next) {
  if (bound.empty()) return next;
  const auto first = static_cast<uint8_t>(bound[0]);
  const int rest = static_cast<int>(bound.size()) - 1;
  std::vector<int> ways{grammar_.byte(first, first, at_least(bound.substr(1), next))};
  if (first < '9') ways.push_back(grammar_.byte(first + 1, '9', digits(rest, rest, next)));
  return grammar_.either(ways);
}

int JsonParts::between(const std::string& least, const std::string& most, int next) {
  if (least.empty()) return next;
  const auto lo = static_cast<uint8_t>(least[0]), hi = static_cast<uint8_t>(most[0]);
  if (lo == hi) return grammar_.byte(lo, lo, between(least.substr(1), most.substr(1), next));
  const int rest = static_cast<int>(least.size()) - 1;
  std::vector<int> ways{grammar_.byte(lo, lo, at_least(least.substr(1), next)),
                        grammar_.byte(hi, hi, at_most(most.substr(1), next))};
  if (lo + 1 < hi) ways.push_back(grammar_.byte(lo + 1, hi - 1, digits(rest, rest, next)));
  return grammar_.either(ways);
}

// least <= most, without a sign; one alternative for each number of digits.
int JsonParts::magnitude(uint64_t least, uint64_t most, int next) {
  const std::string low = std::to_string(least), high = std::to_string(most);
  std::vector<int> ways;
  for (size_t length = low.size(); length <= high.size(); ++length)
    ways.push_back(between(length == low.size() ? low : "1" + std::string(length - 1, '0'),
                           length == high.size() ? high : std::string(length, '9'), next));
  return grammar_.either(ways);
}

int JsonParts::integer(std::optional<int64_t> least, std::optional<int64_t> most, int next) {
  if (!least && !most) {
    const int size = grammar_.either({grammar_.literal("0", next), grammar_.byte('1', '9', digits(0, 17, next))});
    return grammar_.either({size, grammar_.literal("-", size)});
  }
  constexpr int64_t kMost = 999999999999999999;
  // a bound beyond 18 digits is written in full; where it leaves one side open, that side has 18
  const int64_t lo = least ? *least : std::min(-kMost, most ? *most : 0);
  const int64_t hi = most ? *most : std::max(kMost, least ? *least : 0);
  const auto size = [](int64_t value) {
    return value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  };
  if (lo > hi) return grammar_.either({});
  std::vector<int> ways;
  if (hi >= 0) ways.push_back(magnitude(size(std::max<int64_t>(lo, 0)), size(hi), next));
  if (lo < 0) ways.push_back(grammar_.literal("-", magnitude(hi < 0 ? size(hi) : 1, size(lo), next)));
  return grammar_.either(ways);
}

int JsonParts::number(int next) {
  Grammar& g = grammar_;
  const int power = digits(1, 2, next);
  const int sign = g.either({power, g.literal("-", power), g.literal("+", power)});
  const int end = g.either({next, g.literal("e", sign), g.literal("E", sign)});
  const int fraction = g.either({end, g.literal(".", digits(1, 16, end))});
  const int whole = g.either({g.literal("0", fraction), g.byte('1', '9', digits(0, 15, fraction))});
  return g.either({whole, g.literal("-", whole)});
}

int JsonParts::any_rule() {
  Grammar& g = grammar_;
  const int end = Grammar::kReturn, value = g.declare();
  const auto list = [&](char open, char close, auto&& item) {
    const int more = g.reserve(), closed = space(g.literal(std::string(1, close), end));
    g.define(more, {closed, g.literal(",", space(item(more)))});
    return g.literal(std::string(1, open), g.either({closed, space(item(more))}));
  };
  const int items = list('[', ']', [&](int next) { return g.call(value, next); });
  const int members =
      list('{', '}', [&](int next) { return string(0, {}, g.literal(":", space(g.call(value, next)))); });
  g.set(value, g.either({items, members, string(0, {}, end), number(end), g.literal("true", end),
                         g.literal("false", end), g.literal("null", end)}));
  return value;
}

}  // namespace colossal::text
