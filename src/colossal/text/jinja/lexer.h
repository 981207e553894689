// A template's text as tokens, with the white space around blocks taken away as transformers has it (trim_blocks and
// lstrip_blocks).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/text/jinja/budget.h"

namespace colossal::text::jinja {

enum class TokenKind { Data, BlockBegin, BlockEnd, PrintBegin, PrintEnd, Name, Text, Integer, Real, Operator, End };

struct Token {
  TokenKind kind;
  int line;
  std::string text;     ///< of Data, Name, Text (without quotes and escapes), Operator
  int64_t integer = 0;  ///< of Integer
  double real = 0;      ///< of Real
  bool is(TokenKind k, std::string_view t) const { return kind == k && text == t; }
  bool is_name(std::string_view t) const { return is(TokenKind::Name, t); }
  bool is_operator(std::string_view t) const { return is(TokenKind::Operator, t); }
};

/// How a message names a token.
std::string describe(const Token& token);

/// The tokens, an End the last. `source` is valid UTF-8.
/// Errors: Failure with the line: a comment, text or bracket without its end, what is no token, an integer beyond 64
/// bits.
std::vector<Token> tokenize(std::string_view source);

}  // namespace colossal::text::jinja
