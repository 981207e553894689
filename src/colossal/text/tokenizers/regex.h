// Regular expressions over UTF-8 with Unicode classes, for tokenizers (implemented with PCRE2).
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace colossal::text {

/// The dialect that a pattern is written in.
enum class Dialect {
  Oniguruma,  ///< used by tokenizer.json: ^ and $ match at borders of lines, (?m) lets a dot match the end of a line
  Rust,       ///< used by tiktoken: ^ and $ match only at the borders of the text
};

/// A compiled pattern. Copies share it.
/// Thread safety: const members may be called from several threads.
class Regex {
 public:
  /// Compiles a pattern. Classes have the characters of the dialect, whatever the version of PCRE2: \s, \w, \b, \v,
  /// [:alpha:]. In Oniguruma \p without braces is the letter p, {n,m}+ is (?:{n,m})+ and not possessive, and {n}? is
  /// (?:{n})?.
  /// Errors: throws Error("tokenizer", pattern and reason) if the pattern does not compile, or uses PCRE2's verbs,
  /// (*...). Also for syntax that PCRE2 and Oniguruma read differently: flags such as (?i) after the start of an
  /// alternative, && and excluding brackets within brackets, \X.
  explicit Regex(const std::string& pattern, Dialect dialect = Dialect::Oniguruma);
  /// Returns a pattern that matches `text` literally.
  static Regex of_string(const std::string& text);
  struct Match {
    size_t begin, end;
  };
  /// Returns the matches from left to right, without overlaps. Empty matches are included, except at the end of the
  /// previous match. Bytes that are not UTF-8 match no pattern, and no match spans them.
  /// Errors: throws Error("tokenizer", ...) if the pattern backtracks more than ten million times, or more than 64 MiB
  /// deep.
  std::vector<Match> find_all(std::string_view text) const;
  /// Returns the first match, followed by its groups; a group that took no part is empty. Returns nothing if there is
  /// no match. It searches the valid UTF-8 at the front of `text`. Errors: the same as find_all().
  std::vector<Match> find_groups(std::string_view text) const;

 private:
  struct Code;
  class Search;
  std::shared_ptr<const Code> code_;
};

}  // namespace colossal::text
