// Regular expressions over UTF-8 with Unicode classes, as tokenizers use them (PCRE2).
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace colossal::text {

/// Whose rules a pattern is written for, where they differ.
enum class Dialect {
  Oniguruma,  ///< of a tokenizer.json: ^ and $ are borders of lines, (?m) lets a dot match a line's end
  Rust,       ///< of tiktoken: ^ and $ are borders of the text
};

/// Thread safety: const members may be called from several threads.
class Regex {
 public:
  /// A class has the characters that the dialect gives it, whatever PCRE2's version has: \s, \w, \b, \v, [:alpha:].
  /// In Oniguruma \p without braces is the letter p, {n,m}+ is (?:{n,m})+ and not possessive, and {n}? is (?:{n})?.
  /// Errors: throws Error("tokenizer", pattern and reason) unless it compiles, and for what means something else in
  /// PCRE2 than in Oniguruma: flags such as (?i) behind the front of an alternative, && and brackets that
  /// exclude within brackets, \X; and for PCRE2's own verbs, (*...).
  explicit Regex(const std::string& pattern, Dialect dialect = Dialect::Oniguruma);
  /// A pattern that matches `text` itself.
  static Regex of_string(const std::string& text);
  struct Match {
    size_t begin, end;
  };
  /// The matches from left to right that do not overlap, empty ones among them, but none that is empty where the last
  /// one ended. Bytes that are not UTF-8 match nothing, and no match goes across them.
  /// Errors: throws Error("tokenizer", ...) when the pattern backtracks more than ten million times, or 64 MiB deep.
  std::vector<Match> find_all(std::string_view text) const;

 private:
  struct Code;
  class Search;
  std::shared_ptr<const Code> code_;
};

}  // namespace colossal::text
