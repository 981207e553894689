#include "colossal/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "colossal/base/error.h"

namespace colossal::text {

struct Regex::Code {
  pcre2_code* code;
  explicit Code(pcre2_code* compiled) : code(compiled) {}
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
};

namespace {

std::string reason_of(int error) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

Regex::Regex(const std::string& pattern) {
  int error = 0;
  size_t at = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &error, &at, nullptr);
  require(code != nullptr, "tokenizer", "bad regular expression ", pattern, " at ", at, ": ", reason_of(error));
  code_ = std::make_shared<const Code>(code);
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where it cannot be had, the interpreter does the same
}

std::vector<Regex::Match> Regex::find_all(std::string_view text) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(code_->code, nullptr), pcre2_match_data_free);
  std::vector<Match> matches;
  for (size_t at = 0; at < text.size();) {
    const int found =
        pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, 0, data.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) break;
    require(found > 0, "tokenizer", "the regular expression of the tokenizer failed: ", reason_of(found));
    const size_t* bounds = pcre2_get_ovector_pointer(data.get());
    if (bounds[1] > bounds[0] && bounds[0] >= at) matches.push_back({bounds[0], bounds[1]});
    at = bounds[1] > at ? bounds[1] : at + 1;
  }
  return matches;
}

}  // namespace colossal::text
