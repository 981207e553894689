// A lexer that splits a template into tokens. It removes white space around blocks as transformers does (trim_blocks
// and lstrip_blocks).
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
  std::string text;     ///< set for Data, Name, Text (without quotes and escapes) and Operator
  int64_t integer = 0;  ///< value of Integer
  double real = 0;      ///< value of Real
  bool is(TokenKind k, std::string_view t) const { return kind == k && text == t; }
  bool is_name(std::string_view t) const { return is(TokenKind::Name, t); }
  bool is_operator(std::string_view t) const { return is(TokenKind::Operator, t); }
};

/// Returns the name of a token for error messages.
std::string describe(const Token& token);

/// Returns the tokens of `source`, which must be valid UTF-8. The last token is an End.
/// Errors: Failure with the line: an unterminated comment, text or bracket, an unknown token, an integer beyond 64
/// bits.
std::vector<Token> tokenize(std::string_view source);

}  // namespace colossal::text::jinja
