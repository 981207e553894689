#include "colossal/text/tokenizers/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstring>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/text/unicode.h"

namespace colossal::text {

struct Regex::Code {
  pcre2_code* code;
  explicit Code(pcre2_code* compiled) : code(compiled) {}
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
};

namespace {

// Character classes as contents of a bracket. PCRE2's own \s includes U+180E, and before version 10.43 its \w lacks
// marks.
constexpr char kSpaces[] =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr char kNoSpaces[] =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
constexpr char kWords[] =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";
// Further characters of \w: the numbers of Latin-1 in Oniguruma, except within a bracket; the joiners in Rust.
constexpr char kLatinNumbers[] = R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
constexpr char kJoiners[] = R"(\x{200c}\x{200d})";

/// Oniguruma's POSIX classes whose characters differ in PCRE2, as contents of a bracket.
constexpr std::pair<std::string_view, const char*> kPosixClasses[] = {
    {"word", kWords},
    {"space", kSpaces},
    {"^space", kNoSpaces},
    {"blank", R"(\x{9}\p{Zs})"},
    {"alpha", R"(\p{Alphabetic})"},
    {"^alpha", R"(\P{Alphabetic})"},
    {"alnum", R"(\p{Alphabetic}\p{Nd})"},
    {"punct", R"(\p{P}\p{S})"},
    {"graph", R"(\p{L}\p{M}\p{N}\p{P}\p{S}\p{Cf}\p{Co})"},
    {"print", R"(\p{L}\p{M}\p{N}\p{P}\p{S}\p{Cf}\p{Co}\p{Zs})"}};
// POSIX classes with the same characters in both.
constexpr std::string_view kCommonClasses[] = {"digit",  "^digit",  "cntrl", "^cntrl",
                                               "xdigit", "^xdigit", "ascii", "^ascii"};

std::string reason_of(int error) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

/// A translation of a pattern from a dialect to PCRE2.
class Translation {
 public:
  Translation(const std::string& pattern, Dialect dialect) : in_(pattern), onig_(dialect == Dialect::Oniguruma) {
    while (at_ < in_.size()) step();
  }
  const std::string& text() const { return out_; }

 private:
  [[noreturn]] void refuse(const char* what) const {
    throw Error("tokenizer", concat("the regular expression ", printable(in_), " is not supported: ", what));
  }

  void step() {
    const char c = in_[at_];
    if (!bracket_ && std::string_view("*+?{)").find(c) == std::string_view::npos && (c & 0xC0) != 0x80)
      atom_ = out_.size();
    if (c == '\\' && at_ + 1 < in_.size()) return escape();
    if (bracket_) {
      if (c == '&' && in_.compare(at_, 2, "&&") == 0) refuse("&& within brackets");
      if (c == '[') return in_.compare(at_, 2, "[:") == 0 ? posix_class() : nested();
      bracket_ = c != ']' || at_ == opened_;
    } else if (c == '[') {
      bracket_ = true;
      opened_ = at_ + (in_.compare(at_ + 1, 1, "^") == 0 ? 2 : 1);  // position at which ] is a literal character
    } else if (c == '(' && in_.compare(at_ + 1, 1, "*") == 0) {
      refuse("(*, a verb of PCRE2");
    } else if (c == '(') {
      open_.push_back(out_.size());
      if (onig_ && in_.compare(at_ + 1, 1, "?") == 0) return group();
      front_ = at_ + 1;
    } else if (c == ')' && !open_.empty()) {
      atom_ = open_.back();
      open_.pop_back();
    } else if (c == '|') {
      front_ = at_ + 1;
    } else if (onig_ && c == '{') {
      return interval();
    }
    out_ += c;
    ++at_;
  }

  /// Translates Oniguruma's {n,m}, or a brace that stands for itself.
  void interval() {
    const auto digits = [&](size_t from) {
      while (from < in_.size() && in_[from] >= '0' && in_[from] <= '9') ++from;
      return from;
    };
    const size_t low_end = digits(at_ + 1);
    const bool comma = in_.compare(low_end, 1, ",") == 0;
    const size_t end = comma ? digits(low_end + 1) : low_end;
    if (in_.compare(end, 1, "}") != 0 || end == at_ + 1 + (comma ? 1 : 0)) {
      atom_ = out_.size();
      out_ += "\\{";
      ++at_;
      return;
    }
    // Oniguruma reads X{n,m}+ as (?:X{n,m})+, and X{n}? as (?:X{n})?.
    const bool grouped = in_.compare(end + 1, 1, "+") == 0 || (!comma && in_.compare(end + 1, 1, "?") == 0);
    if (grouped && in_.find_first_of("+?", end + 2) == end + 2) refuse("three quantifiers in a row");
    if (grouped) out_.insert(atom_, "(?:");
    out_ += low_end == at_ + 1 ? "{0" + in_.substr(low_end, end + 1 - low_end) : in_.substr(at_, end + 1 - at_);
    if (grouped) out_ += ')';
    at_ = end + 1;
  }

  void posix_class() {
    const size_t end = in_.find(":]", at_);
    if (end == std::string::npos) refuse("a class that is not closed");
    const std::string name = in_.substr(at_ + 2, end - at_ - 2);
    const auto* row = std::find_if(std::begin(kPosixClasses), std::end(kPosixClasses),
                                   [&](const auto& its) { return its.first == name; });
    const bool is_common = std::count(std::begin(kCommonClasses), std::end(kCommonClasses), name) > 0;
    if (onig_ && row == std::end(kPosixClasses) && !is_common) refuse("a class [:...:] of this name");
    out_ += onig_ && !is_common ? row->second : in_.substr(at_, end + 2 - at_);
    at_ = end + 2;
  }

  /// Flattens brackets within brackets, which are a union in Oniguruma and in Rust: the inner brackets are dropped.
  void nested() {
    const auto is = [&](size_t at, const char* what) { return in_.compare(at, std::strlen(what), what) == 0; };
    if (at_ > opened_ && in_[at_ - 1] == '-') refuse("a range that ends with brackets");
    if (is(++at_, "^") || is(at_, "]")) refuse("brackets within brackets that exclude, or are empty");
    for (const size_t begin = at_; at_ < in_.size() && in_[at_] != ']';) {
      if (in_[at_] == '[' || is(at_, "&&")) refuse("brackets or && within brackets within brackets");
      const bool border = at_ == begin || is(at_ + 1, "]");
      if (in_[at_] == '\\' && at_ + 1 < in_.size()) {
        escape();
      } else if (in_[at_] == '-' && border) {
        out_ += "\\-";  // a literal minus, not a range
        ++at_;
      } else {
        out_ += in_[at_++];
      }
    }
    if (at_ == in_.size()) refuse("brackets that are not closed");
    if (is(++at_, "-") && !is(at_, "-]")) refuse("a range that starts with brackets");
  }

  /// Translates groups of Oniguruma. Its (?m) lets a dot match the end of a line, which is PCRE2's (?s). It reads
  /// a(?i)b|c as a(?i:b|c), which PCRE2 reads as a(?i:b)|(?i:c).
  void group() {
    const bool is_first = at_ == front_;
    out_ += "(?";
    at_ += 2;
    size_t end = at_;
    while (end < in_.size() && std::string_view("imx-").find(in_[end]) != std::string_view::npos) ++end;
    if (in_.compare(end, 1, ":") == 0 || in_.compare(end, 1, ")") == 0) {
      if (in_[end] == ')' && !is_first) refuse("flags such as (?i) after the start of an alternative; write (?i:...)");
      for (; at_ < end; ++at_) out_ += in_[at_] == 'm' ? 's' : in_[at_];
      front_ = end + 1;
    } else if (in_.find_first_of("<=!>", at_) == at_) {
      front_ = in_.find_first_of("=!>", at_) + 1;
    }
  }

  void escape() {
    const char c = in_[at_ + 1];
    at_ += 2;
    const std::string spaces = kSpaces, words = concat(kWords, !onig_ ? kJoiners : bracket_ ? "" : kLatinNumbers);
    if (c == 's') {
      out_ += bracket_ ? spaces : "[" + spaces + "]";
    } else if (c == 'S') {
      out_ += bracket_ ? kNoSpaces : "[^" + spaces + "]";
    } else if (c == 'w') {
      out_ += bracket_ ? words : "[" + words + "]";
    } else if (c == 'W' && !bracket_) {
      out_ += "[^" + words + "]";
    } else if ((c == 'b' || c == 'B') && !bracket_) {
      const std::string word = "[" + words + "]", yes = "(?<=" + word + ")", no = "(?<!" + word + ")";
      out_ += c == 'b' ? "(?:" + yes + "(?!" + word + ")|" + no + "(?=" + word + "))"
                       : "(?:" + yes + "(?=" + word + ")|" + no + "(?!" + word + "))";
    } else if (c == 'v') {
      out_ += "\\x{b}";
    } else if ((c == 'V' || c == 'Q' || c == 'E') && onig_) {
      out_ += c;
    } else if (c == 'h' && onig_) {
      out_ += bracket_ ? "0-9a-fA-F" : "[0-9a-fA-F]";
    } else if (c == 'u' && in_.size() >= at_ + 4) {
      out_ += "\\x{" + in_.substr(at_, 4) + "}";
      at_ += 4;
    } else if (std::string_view("WHK").find(c) != std::string_view::npos ||
               (onig_ && std::string_view("ZXN").find(c) != std::string_view::npos)) {
      refuse("one of the escapes \\W within brackets, \\H, \\K, \\Z, \\X, \\N");
    } else if ((c == 'p' || c == 'P') && onig_ && in_.compare(at_, 1, "{") != 0) {
      out_ += c;  // without braces it is the letter, not a class
    } else {
      out_ += {'\\', c};
      const size_t end = end_of_escape(c);
      out_ += in_.substr(at_, end - at_);
      at_ = end;
    }
  }

  /// Returns the end of the escape of `c`; at_ is the position after `c`.
  size_t end_of_escape(char c) const {
    const auto run = [&](std::string_view of, size_t max) {
      return std::min({in_.find_first_not_of(of, at_), at_ + max, in_.size()});
    };
    if (std::string_view("pPxgko").find(c) != std::string_view::npos && in_.find_first_of("{<", at_) == at_) {
      const size_t end = in_.find(in_[at_] == '{' ? '}' : '>', at_);
      if (end == std::string::npos) refuse("a brace that is not closed");
      return end + 1;
    }
    if (c == 'x') return run("0123456789abcdefABCDEF", 2);
    if (c >= '0' && c <= '9') return run("0123456789", 2);
    return c == 'c' ? std::min(at_ + 1, in_.size()) : at_;
  }

  const std::string& in_;
  bool onig_, bracket_ = false;
  size_t at_ = 0, opened_ = 0;
  size_t front_ = 0;          // start of the current alternative
  size_t atom_ = 0;           // start in out_ of the atom that a quantifier repeats
  std::vector<size_t> open_;  // starts of the open groups in out_
  std::string out_;
};

}  // namespace

Regex::Regex(const std::string& pattern, Dialect dialect) {
  const Translation translated(pattern, dialect);
  const std::string& text = translated.text();
  int error = 0;
  size_t at = 0;
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_max_pattern_length(context.get(), 1 << 16);
  pcre2_set_parens_nest_limit(context.get(), 100);
  const uint32_t lines = dialect == Dialect::Oniguruma ? PCRE2_MULTILINE : PCRE2_DOLLAR_ENDONLY;
  // PCRE2 assumes that . and \R are disjoint, but both match U+0085.
  const uint32_t repeats = text.find("\\R") != std::string::npos ? PCRE2_NO_AUTO_POSSESS : 0;
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | lines | repeats;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), options, &error, &at, context.get());
  require(code != nullptr, "tokenizer", "bad regular expression ", printable(pattern), " at ", at, ": ",
          reason_of(error));
  code_ = std::make_shared<const Code>(code);
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // if the JIT is not available, the interpreter gives the same result
}

Regex Regex::of_string(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (std::string_view("\\^$.[]|()?*+{}-#/").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return Regex(escaped);
}

/// A search through texts of valid UTF-8 that reuses its match data.
class Regex::Search {
 public:
  explicit Search(const pcre2_code* code)
      : code_(code),
        data_(pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free),
        context_(pcre2_match_context_create(nullptr), pcre2_match_context_free),
        stack_(nullptr, pcre2_jit_stack_free) {
    pcre2_set_heap_limit(context_.get(), kDepth >> 10);
  }

  /// Returns the number of groups, with the match itself.
  size_t groups() const { return pcre2_get_ovector_count(data_.get()); }
  /// Returns the bounds of the first match at or after `at`, followed by those of its groups; null if there is none.
  const size_t* next(std::string_view text, size_t at, uint32_t options) {
    int found = match(text, at, options);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT && !stack_) {  // the default of 32 KiB on the machine stack suffices for
                                                           // most patterns
      stack_.reset(pcre2_jit_stack_create(size_t{1} << 16, kDepth, nullptr));
      pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
      found = match(text, at, options);
    }
    if (found == PCRE2_ERROR_NOMATCH) return nullptr;
    require(found > 0, "tokenizer", "the regular expression failed: ", reason_of(found));
    return pcre2_get_ovector_pointer(data_.get());
  }

 private:
  static constexpr uint32_t kDepth = 64 << 20;  // bytes
  int match(std::string_view text, size_t at, uint32_t options) {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, options | PCRE2_NO_UTF_CHECK,
                       data_.get(), context_.get());
  }
  template <class T>
  using Owned = std::unique_ptr<T, void (*)(T*)>;
  const pcre2_code* code_;
  Owned<pcre2_match_data> data_;
  Owned<pcre2_match_context> context_;
  Owned<pcre2_jit_stack> stack_;
};

namespace {

/// Returns the end of the valid UTF-8 at the front of `text`.
size_t valid_front(std::string_view text) {
  size_t end = 0;
  while (end < text.size()) {
    const Utf8Character next = first_character(text.substr(end));
    if (next.kind != Utf8::Complete) break;
    end += next.length;
  }
  return end;
}

}  // namespace

std::vector<Regex::Match> Regex::find_all(std::string_view text) const {
  std::vector<Match> matches;
  Search search(code_->code);
  for (size_t begin = 0; begin <= text.size();) {  // once for each stretch of valid UTF-8
    const std::string_view valid = text.substr(begin, valid_front(text.substr(begin)));
    const size_t end = begin + valid.size();
    const uint32_t borders = (begin > 0 ? PCRE2_NOTBOL : 0) | (end < text.size() ? PCRE2_NOTEOL : 0);
    const size_t before = matches.size();
    for (size_t at = 0; at <= valid.size();) {
      const size_t* bounds = search.next(valid, at, borders);
      if (!bounds) break;
      const bool again = bounds[0] == bounds[1] && matches.size() > before && matches.back().end == begin + bounds[1];
      if (bounds[0] > bounds[1] || bounds[0] < at || again) {  // with a lookbehind, a match may have any bounds
        if (at >= valid.size()) break;
        at += first_code_point(valid.substr(at)).length;
        continue;
      }
      matches.push_back({begin + bounds[0], begin + bounds[1]});
      at = bounds[1];
    }
    if (end >= text.size()) break;
    begin = end + first_character(text.substr(end)).length;
  }
  return matches;
}

std::vector<Regex::Match> Regex::find_groups(std::string_view text) const {
  Search search(code_->code);
  const size_t end = valid_front(text);
  const size_t* bounds = search.next(text.substr(0, end), 0, end < text.size() ? PCRE2_NOTEOL : 0);
  std::vector<Match> found;
  if (!bounds || bounds[0] > bounds[1]) return found;
  for (size_t i = 0; i < search.groups(); ++i)
    found.push_back(bounds[2 * i] == PCRE2_UNSET ? Match{0, 0} : Match{bounds[2 * i], bounds[2 * i + 1]});
  return found;
}

}  // namespace colossal::text
