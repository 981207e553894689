// Regular expressions over UTF-8 with Unicode classes, as tokenizers use them (PCRE2).
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace colossal::text {

/// Thread safety: const members may be called from several threads.
class Regex {
 public:
  /// Errors: throws Error("tokenizer", pattern and reason) unless it compiles.
  explicit Regex(const std::string& pattern);
  struct Match {
    size_t begin, end;
  };
  /// The matches from left to right that do not overlap; empty ones are skipped. Bytes that are not UTF-8 match
  /// nothing.
  /// Errors: throws Error("tokenizer", ...) when the pattern backtracks beyond PCRE2's limits.
  std::vector<Match> find_all(std::string_view text) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace colossal::text
