#include "colossal/text/grammar/json_parts.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "colossal/base/json.h"

namespace colossal::text {
namespace {

constexpr int64_t kMaxCounted = 2000;  // maximum number of members that are counted

class ObjectWriter {
 public:
  ObjectWriter(Grammar& grammar, JsonParts& json, const ObjectGrammar& object)
      : grammar_(grammar),
        json_(json),
        object_(object),
        max_counted_(std::min(object.max.value_or(std::max<int64_t>(object.min, 1)), kMaxCounted)),
        close_(json.padding(grammar.literal("}", Grammar::kReturn))) {}

  int node() {
    const auto size = static_cast<int64_t>(object_.members.size());
    std::vector<int> after;  // nodes indexed by the number of members written so far, up to the last count that matters
    for (int64_t count = 0; count <= std::min(size, max_counted_); ++count)
      after.push_back(others(count, count, false));
    for (int64_t i = size; i-- > 0;) {
      const ObjectGrammar::Member& member = object_.members[static_cast<size_t>(i)];
      const std::string name = nlohmann::json(member.name).dump() + ":";
      std::vector<int> before;
      for (int64_t count = 0; count <= std::min(i, max_counted_); ++count) {
        std::vector<int> ways;
        if (!member.is_required) ways.push_back(after[static_cast<size_t>(count)]);
        if (const std::optional<int64_t> next = counted(count)) {
          const int value = json_.space(grammar_.call(member.rule, after[static_cast<size_t>(*next)]));
          ways.push_back(separated(count, grammar_.literal(name, value)));
        }
        before.push_back(grammar_.either(std::move(ways)));
      }
      after = std::move(before);
    }
    return grammar_.literal("{", after[0]);
  }

 private:
  /// Returns the count after one more member; no value if no further member is allowed.
  std::optional<int64_t> counted(int64_t count) const {
    if (count < max_counted_) return count + 1;
    return object_.max ? std::nullopt : std::optional(count);
  }
  int separated(int64_t count, int member) {
    return count > 0 ? grammar_.literal(",", json_.space(member)) : json_.padding(member);
  }

  /// Returns the node that follows the ordered members, after `distinct` names and `count` members.
  int others(int64_t distinct, int64_t count, bool has_extra) {
    const auto [at, is_new] = others_.try_emplace({std::min(distinct, object_.min), count, has_extra}, 0);
    if (!is_new) return at->second;
    const int node = at->second = grammar_.reserve();
    std::vector<int> ways;
    if (distinct >= object_.min) ways.push_back(close_);
    const std::optional<int64_t> next = counted(count);
    if (object_.extra && next) {
      const int rest = others(distinct + (has_extra ? 0 : 1), *next, true);
      ways.push_back(separated(count, grammar_.call(*object_.extra, rest)));
    }
    grammar_.define(node, std::move(ways));
    return node;
  }

  Grammar& grammar_;
  JsonParts& json_;
  const ObjectGrammar& object_;
  int64_t max_counted_;
  int close_;
  std::map<std::tuple<int64_t, int64_t, bool>, int> others_;
};

}  // namespace

int repeated(Grammar& grammar, int item, int64_t min, std::optional<int64_t> max, int next) {
  int node = next;
  if (max) {
    if (*max < min) return grammar.either({});
    for (int64_t i = min; i < *max; ++i) node = grammar.either({next, grammar.call(item, node)});
  } else {
    node = grammar.reserve();
    grammar.define(node, {next, grammar.call(item, node)});
  }
  for (int64_t i = 0; i < min; ++i) node = grammar.call(item, node);
  return node;
}

JsonParts::JsonParts(Grammar& grammar, bool is_indented) : grammar_(grammar), is_indented_(is_indented) {
  Grammar& g = grammar_;
  space_ = g.declare();
  std::vector<int> spaces{Grammar::kReturn, g.literal(" ", Grammar::kReturn)};
  if (is_indented) {
    int indent = Grammar::kReturn;
    for (int i = 0; i < 16; ++i) indent = g.either({Grammar::kReturn, g.literal(" ", indent)});
    spaces.push_back(g.literal("\n", indent));
  }
  g.set(space_, g.either(std::move(spaces)));
  make_characters();
  any_ = any_rule();
}

// Well-formed UTF-8 (Unicode, table 3-7) and escapes; surrogates are accepted only in pairs.
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
  g.set(character_, g.either({plain_characters(end), g.literal("\\", g.either(escapes))}));
}

// Returns a node for a character that a string contains unescaped.
int JsonParts::plain_characters(int next) {
  Grammar& g = grammar_;
  return g.either({g.byte(0x20, '"' - 1, next), g.byte('"' + 1, '\\' - 1, next), g.byte('\\' + 1, 0x7F, next),
                   g.call(wide_, next)});
}

int JsonParts::string(int64_t min, std::optional<int64_t> max, int next) {
  return grammar_.literal("\"", repeated(grammar_, character_, min, max, grammar_.literal("\"", next)));
}

namespace {

/// Returns the JSON escape of a byte that a string cannot contain unescaped; empty for other bytes.
std::string escape_of(uint8_t byte) {
  const char* const short_ones = "\bb\ff\nn\rr\tt\"\"\\\\";
  for (const char* at = short_ones; *at != 0; at += 2)
    if (byte == static_cast<uint8_t>(*at)) return {'\\', at[1]};
  if (byte >= 0x20) return {};
  const char* const digits = "0123456789abcdef";
  return {'\\', 'u', '0', '0', digits[byte / 16], digits[byte % 16]};
}

}  // namespace

int JsonParts::string_of(const TextAutomaton& texts, const std::function<bool(const std::vector<int>&)>& wanted,
                         int next) {
  Grammar& g = grammar_;
  std::vector<int> nodes;
  for (size_t i = 0; i < texts.states(); ++i) nodes.push_back(g.reserve());
  const int close = g.literal("\"", next);
  for (size_t i = 0; i < texts.states(); ++i) {
    const int state = static_cast<int>(i);
    std::vector<int> ways;
    if (texts.is_text(state) && wanted(texts.sets(state))) ways.push_back(close);
    const int control = texts.next(state, 0);
    bool are_alike = true;
    for (int byte = 0; byte < 0x20; ++byte) are_alike &= texts.next(state, static_cast<uint8_t>(byte)) == control;
    if (are_alike && control != TextAutomaton::kDead) {
      const int to = nodes[static_cast<size_t>(control)];
      const int digit = g.either({g.byte('0', '9', to), g.byte('a', 'f', to)});
      ways.push_back(g.literal("\\u00", g.byte('0', '1', digit)));
    }
    for (int byte = are_alike ? 0x20 : 0; byte < 256;) {
      const int after = texts.next(state, static_cast<uint8_t>(byte)), first = byte;
      const std::string escape = escape_of(static_cast<uint8_t>(byte));
      for (++byte; byte < 256 && escape.empty() && escape_of(static_cast<uint8_t>(byte)).empty() &&
                   texts.next(state, static_cast<uint8_t>(byte)) == after;)
        ++byte;
      if (after == TextAutomaton::kDead) continue;
      const int to = nodes[static_cast<size_t>(after)];
      ways.push_back(escape.empty() ? g.byte(static_cast<uint8_t>(first), static_cast<uint8_t>(byte - 1), to)
                                    : g.literal(escape, to));
    }
    g.define(nodes[i], std::move(ways));
  }
  return g.literal("\"", nodes[0]);
}

int JsonParts::digits(int min, int max, int next) {
  int node = next;
  for (int i = min; i < max; ++i) node = grammar_.either({next, grammar_.byte('0', '9', node)});
  for (int i = 0; i < min; ++i) node = grammar_.byte('0', '9', node);
  return node;
}

// Builds the nodes digit by digit, from the last digit to the first, for each number of digits. A node is identified by
// the number of digits that follow, by the remainder of the digits before it and by two flags. The flags say whether
// the digits so far equal the first digits of a bound, which limits the next digit.
int JsonParts::magnitude(uint64_t min, uint64_t max, const Digits& written, int next) {
  const auto step = static_cast<uint64_t>(written.step);
  const size_t shortest = static_cast<size_t>(written.decimals) + 1;
  const auto padded = [](const std::string& digits, size_t length) {
    return std::string(length - std::min(length, digits.size()), '0') + digits;
  };
  const std::string first = std::to_string(min), last = padded(std::to_string(max), shortest);
  const int dead = grammar_.either({});
  std::vector<int> ways;
  std::map<std::pair<size_t, uint64_t>, int> free;  // nodes that neither bound limits any more, shared by all lengths
  for (size_t length = std::max(shortest, first.size()); length <= last.size(); ++length) {
    // Only the shortest numbers may start with 0.
    const std::string low =
        length > shortest && length > first.size() ? "1" + std::string(length - 1, '0') : padded(first, length);
    const std::string high = length == last.size() ? last : std::string(length, '9');
    if (low > high) continue;
    std::map<std::tuple<size_t, uint64_t, bool, bool>, int> tight;
    const auto node = [&](const auto& self, size_t at, uint64_t remainder, bool at_low, bool at_high) -> int {
      if (at == length) return remainder == 0 ? next : dead;
      at_low = at_low && low.find_first_not_of('0', at) != std::string::npos;  // otherwise any further digits stay
                                                                               // above the bound
      at_high = at_high && high.find_first_not_of('9', at) != std::string::npos;
      const auto found =
          at_low || at_high ? tight.try_emplace({at, remainder, at_low, at_high}, -1).first : tight.end();
      int& made = found != tight.end() ? found->second : free.try_emplace({length - at, remainder}, -1).first->second;
      if (made >= 0) return made;
      std::vector<int> digits;
      const char from = at_low ? low[at] : '0', to = at_high ? high[at] : '9';
      for (char first = from; first <= to;) {
        const auto after = [&](char digit) {
          return self(self, at + 1, (remainder * 10 + static_cast<uint64_t>(digit - '0')) % step,
                      at_low && digit == low[at], at_high && digit == high[at]);
        };
        const int rest = after(first);
        char end = static_cast<char>(first + 1);
        while (end <= to && after(end) == rest) ++end;
        const char begin = written.ends && at + 1 == length && first == '0' ? '1' : first;
        if (begin < end) {
          const int digit = grammar_.byte(static_cast<uint8_t>(begin), static_cast<uint8_t>(end - 1), rest);
          digits.push_back(at > 0 && length - at == static_cast<size_t>(written.decimals) ? grammar_.literal(".", digit)
                                                                                          : digit);
        }
        first = end;
      }
      return made = grammar_.either(std::move(digits));
    };
    ways.push_back(node(node, 0, 0, true, true));
  }
  return grammar_.either(std::move(ways));
}

// Covers numbers with a given count of decimals, as integers without the decimal point.
int JsonParts::scaled_range(const Range& range, const Digits& written, int next) {
  // Doubles keep 15 digits, so no fraction may be rounded to an integer or across a bound.
  const int64_t max_size = written.decimals == 0 ? 999999999999999999 : 999999999999999;
  int64_t lo = -max_size, hi = max_size;
  if (range.min) {
    const std::optional<int64_t> edge = range.min->ceil(written.decimals);
    if (!edge && !range.min->is_negative()) return grammar_.either({});
    if (edge) lo = *edge + (range.excludes_min && range.min->floor(written.decimals) == edge ? 1 : 0);
  }
  if (range.max) {
    const std::optional<int64_t> edge = range.max->floor(written.decimals);
    if (!edge && range.max->is_negative()) return grammar_.either({});
    if (edge) hi = *edge - (range.excludes_max && range.max->ceil(written.decimals) == edge ? 1 : 0);
  }
  if (written.decimals > 0) lo = std::max(lo, -max_size), hi = std::min(hi, max_size);
  // A bound of more than 18 digits is written in full, and the other side gets as many digits.
  if (!range.min) lo = std::min(lo, hi);
  if (!range.max) hi = std::max(lo, hi);
  if (lo > hi) return grammar_.either({});
  const auto size = [](int64_t value) {
    return value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  };
  std::vector<int> ways;
  if (hi >= 0) ways.push_back(magnitude(size(std::max<int64_t>(lo, 0)), size(hi), written, next));
  if (lo < 0) ways.push_back(grammar_.literal("-", magnitude(hi < 0 ? size(hi) : 1, size(lo), written, next)));
  return grammar_.either(ways);
}

int JsonParts::range(const Range& range, int next) {
  std::vector<int> ways;
  if (range.is_whole) ways.push_back(scaled_range(range, {.step = range.step}, next));
  const auto decimals_of = [](const std::optional<Decimal>& bound) { return bound ? bound->decimals() : 0; };
  const int64_t max = std::min<int64_t>(15, std::max(decimals_of(range.min), decimals_of(range.max)) + 4);
  for (int decimals = 1; decimals <= max && range.is_fraction && range.step == 1; ++decimals)
    ways.push_back(scaled_range(range, {.decimals = decimals, .ends = !range.is_whole}, next));
  return grammar_.either(std::move(ways));
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
    const int more = g.reserve(), closed = padding(g.literal(std::string(1, close), end));
    g.define(more, {closed, g.literal(",", space(item(more)))});
    return g.literal(std::string(1, open), g.either({closed, padding(item(more))}));
  };
  const int items = list('[', ']', [&](int next) { return g.call(value, next); });
  const int members =
      list('{', '}', [&](int next) { return string(0, {}, g.literal(":", space(g.call(value, next)))); });
  g.set(value, g.either({items, members, string(0, {}, end), number(end), g.literal("true", end),
                         g.literal("false", end), g.literal("null", end)}));
  return value;
}

int object_node(Grammar& grammar, JsonParts& json, const ObjectGrammar& object) {
  return ObjectWriter(grammar, json, object).node();
}

}  // namespace colossal::text
