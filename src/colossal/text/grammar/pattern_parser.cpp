#include <algorithm>
#include <cctype>
#include <optional>
#include <string_view>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/text/grammar/text_automaton.h"

namespace colossal::text {
namespace {

constexpr uint32_t kMaxCodePoint = 0x10FFFF;
constexpr int kMaxRepeats = 1000;
constexpr int kMaxPatternStates = 100000;
constexpr int kMaxGroups = 100;

CodePoints merged(CodePoints points) {
  std::sort(points.begin(), points.end());
  CodePoints out;
  for (const auto& [lo, hi] : points)
    if (!out.empty() && lo <= out.back().second + 1)
      out.back().second = std::max(out.back().second, hi);
    else
      out.emplace_back(lo, hi);
  return out;
}

CodePoints complement(const CodePoints& points) {
  CodePoints out;
  uint32_t from = 0;
  for (const auto& [lo, hi] : merged(points)) {
    if (from < lo) out.emplace_back(from, lo - 1);
    from = hi + 1;
  }
  if (from <= kMaxCodePoint) out.emplace_back(from, kMaxCodePoint);
  return out;
}

std::string utf8_of(uint32_t point) {
  std::string out;
  const auto rest = [&](int shift) { out += static_cast<char>(0x80 | (point >> shift & 0x3F)); };
  if (point < 0x80) {
    out += static_cast<char>(point);
  } else if (point < 0x800) {
    out += static_cast<char>(0xC0 | point >> 6), rest(0);
  } else if (point < 0x10000) {
    out += static_cast<char>(0xE0 | point >> 12), rest(6), rest(0);
  } else {
    out += static_cast<char>(0xF0 | point >> 18), rest(12), rest(6), rest(0);
  }
  return out;
}

/// Adds the way over a range of code points. A range in which the bytes of the UTF-8 do not vary independently is split
/// into ranges in which they do.
void add_utf8_range(PatternStates& states, int from, uint32_t lo, uint32_t hi, int to) {
  for (const uint32_t edge : {0x7FU, 0x7FFU, 0xD7FFU, 0xDFFFU, 0xFFFFU})
    if (lo <= edge && edge < hi) {
      add_utf8_range(states, from, lo, edge, to);
      return add_utf8_range(states, from, edge + 1, hi, to);
    }
  if (lo >= 0xD800 && hi <= 0xDFFF) return;
  for (uint32_t mask = 0x3F; mask < hi && hi >= 0x80; mask = mask << 6 | 0x3F)
    if ((lo & ~mask) != (hi & ~mask)) {
      const uint32_t cut = (lo & mask) != 0 ? lo | mask : (hi & ~mask) - 1;
      if ((lo & mask) == 0 && (hi & mask) == mask) continue;
      add_utf8_range(states, from, lo, cut, to);
      return add_utf8_range(states, from, cut + 1, hi, to);
    }
  const std::string first = utf8_of(lo), last = utf8_of(hi);
  for (size_t i = 0; i < first.size(); ++i) {
    const int next = i + 1 == first.size() ? to : states.add();
    states.states[static_cast<size_t>(from)].bytes.push_back(
        {{static_cast<uint8_t>(first[i]), static_cast<uint8_t>(last[i])}, next});
    from = next;
  }
}

const CodePoints kDecimalDigits{{'0', '9'}};
const CodePoints kWordCharacters{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodePoints kWhiteSpace{{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                             {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CodePoints kLineEnds{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

/// A recursive descent parser. Each part of the expression adds its ways to the automaton.
class PatternReader {
 public:
  PatternReader(PatternStates& states, const std::string& pattern) : states_(states), pattern_(pattern) {}

  void read(int from, int to) {
    alternatives(from, to);
    check(at_ == pattern_.size(), "an unmatched )");
  }

 private:
  void check(bool ok, const std::string& why) const {
    require(ok, "json schema", "the pattern ", printable(pattern_), " is not supported: it has ", why);
  }
  bool is_end() const { return at_ == pattern_.size(); }
  bool sees(const char* text) const { return pattern_.compare(at_, std::string(text).size(), text) == 0; }
  bool take(const char* text) {
    if (!sees(text)) return false;
    at_ += std::string(text).size();
    return true;
  }
  void free_way(int from, int to) { states_.states[static_cast<size_t>(from)].free.push_back(to); }

  void alternatives(int from, int to) {
    check(++depth_ <= kMaxGroups, "too many groups within each other");
    do {
      int last = states_.add();
      free_way(from, last);
      while (!is_end() && !sees("|") && !sees(")")) last = term(last);
      free_way(last, to);
    } while (take("|"));
    --depth_;
  }

  /// Reads an atom and its quantifier. Returns the state after them.
  int term(int from) {
    check(states_.states.size() < kMaxPatternStates, "too many parts");
    if (sees("^") || sees("$")) {
      const int to = states_.add();
      PatternStates::State& state = states_.states[static_cast<size_t>(from)];
      (sees("^") ? state.at_start : state.at_end).push_back(to);
      ++at_;
      check(is_end() || !(std::string_view("*+?{").find(pattern_[at_]) != std::string_view::npos), "a repeated ^ or $");
      return to;
    }
    const size_t begin = at_;
    const int first = states_.add();
    free_way(from, first);
    const int last = atom(first);
    const size_t after_atom = at_;
    int min = 1, max = 1;
    if (!quantifier(min, max)) return last;
    const size_t end = at_;
    return repeated_atom(from, begin, after_atom, end, min, max);
  }

  int atom(int from) {
    const int to = states_.add();
    if (take("(")) {
      if (take("?")) {
        const bool is_named = sees("<") && !sees("<=") && !sees("<!");
        check(sees(":") || is_named, "lookaround or flags");
        at_ = is_named ? pattern_.find('>', at_) : at_;
        check(at_ < pattern_.size(), "a group without a name");
        ++at_;
      }
      alternatives(from, to);
      check(take(")"), "a group without an end");
    } else {
      add_code_points(states_, from, characters(), to);
    }
    return to;
  }

  CodePoints characters() {
    if (take(".")) return complement(kLineEnds);
    if (take("[")) return character_class();
    if (take("\\")) return escaped(false);
    check(!(std::string_view("*+?{}]").find(pattern_[at_]) != std::string_view::npos),
          "a special character without its counterpart");
    const uint32_t point = code_point();
    return {{point, point}};
  }

  uint32_t code_point() {
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(pattern_[i]); };
    const uint8_t lead = byte(at_);
    const size_t size = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    check(at_ + size <= pattern_.size(), "bytes that are not UTF-8");
    uint32_t point = size == 1 ? lead : lead & (0x7F >> size);
    for (size_t i = 1; i < size; ++i) point = point << 6 | (byte(at_ + i) & 0x3F);
    at_ += size;
    return point;
  }

  uint32_t hexadecimal(size_t digits) {
    uint32_t value = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      check(!is_end() && std::isxdigit(static_cast<uint8_t>(pattern_[at_])), "an escape without its digits");
      value = value * 16 + static_cast<uint32_t>(std::stoi(pattern_.substr(at_, 1), nullptr, 16));
      check(value <= kMaxCodePoint, "a code point that does not exist");
    }
    return value;
  }

  uint32_t unicode_escape() {
    if (take("{")) {
      const size_t end = pattern_.find('}', at_);
      check(end != std::string::npos && end > at_, "an escape without its digits");
      const uint32_t value = hexadecimal(end - at_);
      ++at_;
      return value;
    }
    const uint32_t high = hexadecimal(4);
    if (high < 0xD800 || high > 0xDBFF || !take("\\u")) return high;
    const uint32_t low = hexadecimal(4);
    check(low >= 0xDC00 && low <= 0xDFFF, "half of a surrogate pair");
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
  }

  /// Reads the part of an escape after the backslash.
  CodePoints escaped(bool is_in_class) {
    check(!is_end(), "a backslash at its end");
    const char c = pattern_[at_++];
    const auto one = [](uint32_t point) { return CodePoints{{point, point}}; };
    switch (c) {
      case 'd':
        return kDecimalDigits;
      case 'D':
        return complement(kDecimalDigits);
      case 'w':
        return kWordCharacters;
      case 'W':
        return complement(kWordCharacters);
      case 's':
        return kWhiteSpace;
      case 'S':
        return complement(kWhiteSpace);
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'x':
        return one(hexadecimal(2));
      case 'u':
        return one(unicode_escape());
      case 'c':
        check(!is_end() && std::isalpha(static_cast<uint8_t>(pattern_[at_])), "\\c without a letter");
        return one(static_cast<uint32_t>(pattern_[at_++]) % 32);
      case '0':
        check(is_end() || !std::isdigit(static_cast<uint8_t>(pattern_[at_])), "an octal escape");
        return one(0);
      case 'b':
        if (is_in_class) return one('\b');
        [[fallthrough]];
      default:
        check(!std::isalnum(static_cast<uint8_t>(c)) && static_cast<uint8_t>(c) < 0x80,
              std::string("the escape \\") + (static_cast<uint8_t>(c) < 0x80 ? c : '?'));
        return one(static_cast<uint8_t>(c));
    }
  }

  CodePoints character_class() {
    const bool is_negated = take("^");
    CodePoints found;
    while (!take("]")) {
      check(!is_end(), "a class without an end");
      const CodePoints low = class_member();
      if (!sees("-") || at_ + 1 >= pattern_.size() || pattern_[at_ + 1] == ']') {
        found.insert(found.end(), low.begin(), low.end());
        continue;
      }
      ++at_;
      const CodePoints high = class_member();
      check(low.size() == 1 && high.size() == 1 && low[0].first == low[0].second && high[0].first == high[0].second &&
                low[0].first <= high[0].first,
            "a range of a class whose ends are not in order");
      found.emplace_back(low[0].first, high[0].first);
    }
    return is_negated ? complement(found) : found;
  }

  CodePoints class_member() {
    check(!is_end(), "a class without an end");
    if (take("\\")) return take("-") ? CodePoints{{'-', '-'}} : escaped(true);
    const uint32_t point = code_point();
    return {{point, point}};
  }

  std::optional<int> count() {
    if (is_end() || !std::isdigit(static_cast<uint8_t>(pattern_[at_]))) return {};
    int value = 0;
    for (; !is_end() && std::isdigit(static_cast<uint8_t>(pattern_[at_])); ++at_) {
      value = value * 10 + (pattern_[at_] - '0');
      check(value <= kMaxRepeats, concat("a repetition of more than ", kMaxRepeats));
    }
    return value;
  }

  /// Reads a quantifier into `min` and `max` (-1 = no limit). Returns false if there is none.
  bool quantifier(int& min, int& max) {
    if (take("*")) {
      min = 0, max = -1;
    } else if (take("+")) {
      min = 1, max = -1;
    } else if (take("?")) {
      min = 0, max = 1;
    } else if (take("{")) {
      const std::optional<int> low = count();
      check(low.has_value(), "a { without a number");
      min = max = *low;
      if (take(",")) max = count().value_or(-1);
      check(take("}") && (max < 0 || min <= max), "a repetition that is not in order");
    } else {
      return false;
    }
    take("?");  // a lazy quantifier matches the same texts
    return true;
  }

  /// Adds the atom at [begin, after) once for each repetition.
  int repeated_atom(int from, size_t begin, size_t after, size_t end, int min, int max) {
    // The first reading added the atom from a new state. Removing the link to that state makes its ways unreachable.
    states_.states[static_cast<size_t>(from)].free.pop_back();
    const auto again = [&](int start) {
      check(states_.states.size() < kMaxPatternStates, "too many parts");
      at_ = begin;
      const int first = states_.add();
      free_way(start, first);
      const int last = atom(first);
      check(at_ == after, "a repetition that cannot be read");
      return last;
    };
    int node = from;
    for (int i = 0; i < min; ++i) node = again(node);
    const int to = states_.add();
    if (max < 0) {
      const int loop = states_.add();
      free_way(node, loop);
      free_way(again(loop), loop);
      free_way(loop, to);
    } else {
      for (int i = min; i < max; ++i) {
        free_way(node, to);
        node = again(node);
      }
      free_way(node, to);
    }
    at_ = end;
    return to;
  }

  PatternStates& states_;
  const std::string& pattern_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

CodePoints all_code_points() { return {{0, 0xD7FF}, {0xE000, kMaxCodePoint}}; }

void add_code_points(PatternStates& states, int from, const CodePoints& points, int to) {
  for (const auto& [lo, hi] : merged(points)) add_utf8_range(states, from, lo, hi, to);
}

void add_pattern_way(PatternStates& states, int from, const std::string& pattern, int to) {
  PatternReader(states, pattern).read(from, to);
}

}  // namespace colossal::text
