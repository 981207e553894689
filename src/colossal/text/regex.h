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
  /// White space (\s) is White_Space and a word's character (\w, \b) UTS 18's in both dialects, whatever PCRE2's
  /// version takes them for.
  /// Errors: throws Error("tokenizer", pattern and reason) unless it compiles, and for what the dialect has another
  /// meaning for than PCRE2: in Oniguruma's a + behind {n,m}, && and brackets that exclude within brackets; PCRE2's own
  /// verbs, (*...).
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
