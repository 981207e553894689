#include "colossal/text/jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "colossal/text/jinja/characters.h"
#include "colossal/text/jinja/print.h"
#include "colossal/text/unicode.h"

namespace colossal::text::jinja {
namespace {

constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                           "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

/// Converts all line ends to \n and removes one at the end of the text.
std::string with_plain_lines(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r')
      out += source[i];
    else if (i + 1 == source.size() || source[i + 1] != '\n')
      out += '\n';
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Returns the length of the run of digits of `base` at `at`, with single underscores between them.
size_t digits_from(std::string_view text, size_t at, int base, bool leading_underscore = false) {
  const auto is_of_base = [&](size_t i) {
    if (i >= text.size()) return false;
    const char c = text[i];
    const int value = is_digit(c)            ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : 99;
    return value < base;
  };
  const size_t begin = at;
  if (leading_underscore && at < text.size() && text[at] == '_' && is_of_base(at + 1)) ++at;
  while (is_of_base(at)) at += at + 1 < text.size() && text[at + 1] == '_' && is_of_base(at + 2) ? 2 : 1;
  return at - begin;
}

std::string without_underscores(std::string_view text) {
  std::string out(text);
  std::erase(out, '_');
  return out;
}

/// A decoder of the escapes in a quoted text, which follows Python's unicode-escape.
class Unescaper {
 public:
  Unescaper(std::string_view text, int line) : text_(text), line_(line) {}

  std::string run() {
    while (at_ < text_.size()) {
      if (text_[at_] == '\\' && at_ + 1 < text_.size())
        escape();
      else
        out_ += text_[at_++];
    }
    return std::move(out_);
  }

 private:
  void escape() {
    const char c = text_[at_ + 1];
    constexpr std::string_view kNames = "\\'\"abfnrtv", kValues = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t known = kNames.find(c); known != std::string_view::npos) {
      out_ += kValues[known];
      at_ += 2;
    } else if (c == '\n') {
      at_ += 2;
    } else if (c >= '0' && c <= '7') {
      size_t count = 1;
      while (count < 3 && at_ + 1 + count < text_.size() && text_[at_ + 1 + count] >= '0' &&
             text_[at_ + 1 + count] <= '7')
        ++count;
      number(1, count, 8);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      if (digits_from(text_.substr(0, std::min(text_.size(), at_ + 2 + count)), at_ + 2, 16) != count)
        throw Failure(Cause::Syntax, concat("truncated \\", c, std::string(count, 'X'), " escape"), line_);
      number(2, count, 16);
    } else if (c == 'N') {
      throw Failure(Cause::Unsupported, "characters by name (\\N) are not supported; write \\u and the number", line_);
    } else if (static_cast<unsigned char>(c) >= 0x80) {  // jinja2 encodes the character as an escape before it decodes
                                                         // escapes
      const CodePoint character = first_code_point(text_.substr(at_ + 1));
      char spelled[16];
      std::snprintf(spelled, sizeof spelled,
                    character.value < 0x100     ? "\\x%02x"
                    : character.value < 0x10000 ? "\\u%04x"
                                                : "\\U%08x",
                    character.value);
      out_ += spelled;
      at_ += 1 + character.length;
    } else {
      out_ += '\\';
      ++at_;
    }
  }

  void number(size_t skipped, size_t count, int base) {
    uint32_t value = 0;
    std::from_chars(text_.data() + at_ + skipped, text_.data() + at_ + skipped + count, value, base);
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000))
      throw Failure(Cause::Syntax, concat("illegal Unicode character ", value), line_);
    append_utf8(out_, value);
    at_ += skipped + count;
  }

  std::string_view text_;
  int line_;
  size_t at_ = 0;
  std::string out_;
};

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) data();
    tokens_.push_back({TokenKind::End, line_, ""});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void refuse(const std::string& message) const { throw Failure(Cause::Syntax, message, line_); }
  bool is_at(std::string_view text) const { return std::string_view(source_).substr(at_, text.size()) == text; }

  void advance(size_t bytes) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at_ + bytes), '\n'));
    at_ += bytes;
    if (bytes > 0) starts_line_ = source_[at_ - 1] == '\n';
  }

  size_t white_from(size_t at) const {
    const std::string_view rest = std::string_view(source_).substr(at);
    return rest.size() - strip_white(rest, true, false).size();
  }

  /// Returns the length of a tag's end at `at`, with the white space that it removes after it; 0 if there is none.
  size_t end_from(size_t at, std::string_view end, bool keeps_with_plus, bool trims) const {
    const std::string_view rest = std::string_view(source_).substr(at);
    if (keeps_with_plus && rest.starts_with('+') && rest.substr(1).starts_with(end)) return 3;
    if (rest.starts_with('-') && rest.substr(1).starts_with(end)) return 3 + white_from(at + 3);
    if (!rest.starts_with(end)) return 0;
    return 2 + (trims && rest.substr(2).starts_with('\n'));
  }

  /// Adds the text before a tag. The tag's sign says which white space at the end of the text is removed.
  void put_data(std::string_view text, char sign, bool may_strip) {
    if (sign == '-') {
      text = strip_white(text, false, true);
    } else if (sign != '+' && may_strip) {
      const size_t line = text.rfind('\n') + 1;  // npos + 1 is 0
      if ((line > 0 || starts_line_) && strip_white(text.substr(line), true, false).empty())
        text = text.substr(0, line);
    }
    if (!text.empty()) tokens_.push_back({TokenKind::Data, line_, std::string(text)});
  }

  char sign_at(size_t at) const {
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : ' ';
  }

  void data() {
    size_t tag = at_;
    do {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        tokens_.push_back({TokenKind::Data, line_, source_.substr(at_)});
        return advance(source_.size() - at_);
      }
      const char next = source_[tag + 1];
      if (next == '%' || next == '{' || next == '#') break;
      ++tag;
    } while (true);
    const char kind = source_[tag + 1], sign = sign_at(tag + 2);
    put_data(std::string_view(source_).substr(at_, tag - at_), sign, kind != '{');
    advance(tag - at_);
    if (kind == '%') {
      if (const size_t raw_begin = raw_begin_length()) return raw(raw_begin);
    }
    const int line = line_;
    advance(2 + (sign != ' '));
    if (kind == '#') return comment();
    tokens_.push_back({kind == '%' ? TokenKind::BlockBegin : TokenKind::PrintBegin, line, ""});
    inside(kind == '%');
  }

  size_t raw_begin_length() const {
    size_t at = at_ + 2 + (sign_at(at_ + 2) != ' ');
    at += white_from(at);
    if (source_.compare(at, 3, "raw") != 0) return 0;
    at += 3;
    at += white_from(at);
    const size_t end = end_from(at, "%}", false, false);
    return end == 0 ? 0 : at + end - at_;
  }

  void comment() {
    if (at_ == source_.size()) return;  // as in jinja2, which looks for the end only in the text that follows
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) refuse("Missing end of comment tag");
    const size_t begin = end > at_ && (source_[end - 1] == '-' || source_[end - 1] == '+') ? end - 1 : end;
    advance(begin + end_from(begin, "#}", true, true) - at_);
  }

  void raw(size_t begin_length) {
    advance(begin_length);
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos; tag = source_.find("{%", tag + 2)) {
      const char sign = sign_at(tag + 2);
      size_t at = tag + 2 + (sign != ' ');
      at += white_from(at);
      if (source_.compare(at, 6, "endraw") != 0) continue;
      at += 6;
      at += white_from(at);
      const size_t end = end_from(at, "%}", true, true);
      if (end == 0) continue;
      put_data(std::string_view(source_).substr(at_, tag - at_), sign, true);
      return advance(at + end - at_);
    }
    refuse("Missing end of raw directive");
  }

  /// Reads the tokens of a block or a print, up to and including its end.
  void inside(bool is_block) {
    std::string closing;  // closing brackets that are still expected
    while (at_ < source_.size()) {
      if (closing.empty()) {
        if (const size_t end = end_from(at_, is_block ? "%}" : "}}", is_block, is_block)) {
          tokens_.push_back({is_block ? TokenKind::BlockEnd : TokenKind::PrintEnd, line_, ""});
          return advance(end);
        }
      }
      if (const size_t white = white_from(at_))
        advance(white);
      else
        token(closing);
    }
  }

  void token(std::string& closing) {
    const char c = source_[at_];
    if (is_digit(c)) return number();
    if (c == '\'' || c == '"') return text(c);
    if (const size_t length = name_length()) {
      tokens_.push_back({TokenKind::Name, line_, source_.substr(at_, length)});
      return advance(length);
    }
    for (const std::string_view sign : kOperators) {
      if (!is_at(sign)) continue;
      balance(closing, c);
      tokens_.push_back({TokenKind::Operator, line_, std::string(sign)});
      return advance(sign.size());
    }
    const size_t length = character_length(source_, at_);
    refuse(concat("unexpected char ", repr_of_text(source_.substr(at_, length)), " at ",
                  count_characters(source_.substr(0, at_))));
  }

  void balance(std::string& closing, char c) const {
    if (c == '{' || c == '(' || c == '[') closing += c == '{' ? '}' : c == '(' ? ')' : ']';
    if (c != '}' && c != ')' && c != ']') return;
    if (closing.empty()) refuse(concat("unexpected '", c, "'"));
    const char expected = closing.back();
    closing.pop_back();
    if (expected != c) refuse(concat("unexpected '", c, "', expected '", expected, "'"));
  }

  size_t name_length() const {
    size_t at = at_;
    while (at < source_.size()) {
      const char c = source_[at];
      const size_t length = character_length(source_, at);
      const bool is_ascii_part = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_';
      if (!is_ascii_part &&
          (static_cast<unsigned char>(c) < 0x80 || !is_word(first_code_point(source_.substr(at, length)).value)))
        break;
      at += length;
    }
    return at - at_;
  }

  /// Returns the length of the float at the front: digits with a fraction, an exponent or both; 0 if there is none.
  size_t real_length() const {
    if (at_ > 0 && source_[at_ - 1] == '.') return 0;
    size_t at = at_ + digits_from(source_, at_, 10);
    bool is_real = false;
    if (at < source_.size() && source_[at] == '.') {
      if (const size_t digits = digits_from(source_, at + 1, 10)) {
        at += 1 + digits;
        is_real = true;
      }
    }
    if (at < source_.size() && (source_[at] == 'e' || source_[at] == 'E')) {
      const size_t sign = at + 1 < source_.size() && (source_[at + 1] == '+' || source_[at + 1] == '-');
      if (const size_t digits = digits_from(source_, at + 1 + sign, 10)) {
        at += 1 + sign + digits;
        is_real = true;
      }
    }
    return is_real ? at - at_ : 0;
  }

  void number() {
    if (const size_t length = real_length()) {
      const std::string text = without_underscores(source_.substr(at_, length));
      Token token{TokenKind::Real, line_, ""};
      token.real = std::strtod(text.c_str(), nullptr);
      tokens_.push_back(std::move(token));
      return advance(length);
    }
    int base = 10;
    size_t prefix = 0;
    if (source_[at_] == '0' && at_ + 1 < source_.size()) {
      const char c = static_cast<char>(source_[at_ + 1] | 0x20);
      const int other = c == 'b' ? 2 : c == 'o' ? 8 : c == 'x' ? 16 : 10;
      if (other != 10 && digits_from(source_, at_ + 2, other, true) > 0) base = other, prefix = 2;
    }
    size_t length = prefix + digits_from(source_, at_ + prefix, base, prefix > 0);
    if (base == 10 && source_[at_] == '0') {  // only zeros may follow a zero
      length = 1;
      while (at_ + length < source_.size() && source_[at_ + length] == '0') ++length;
    }
    const std::string digits = without_underscores(source_.substr(at_ + prefix, length - prefix));
    Token token{TokenKind::Integer, line_, ""};
    if (std::from_chars(digits.data(), digits.data() + digits.size(), token.integer, base).ec != std::errc())
      throw Failure(Cause::Unsupported, "integers must fit 64 bits: got " + digits.substr(0, 40), line_);
    tokens_.push_back(std::move(token));
    advance(length);
  }

  void text(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size())
      refuse(concat("unexpected char ", repr_of_text(std::string(1, quote)), " at ",
                    count_characters(source_.substr(0, at_))));
    const std::string_view inner = std::string_view(source_).substr(at_ + 1, end - at_ - 1);
    tokens_.push_back({TokenKind::Text, line_, Unescaper(inner, line_).run()});
    advance(end + 1 - at_);
  }

  const std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool starts_line_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::Data:
      return "template data / text";
    case TokenKind::BlockBegin:
      return "begin of statement block";
    case TokenKind::BlockEnd:
      return "end of statement block";
    case TokenKind::PrintBegin:
      return "begin of print statement";
    case TokenKind::PrintEnd:
      return "end of print statement";
    case TokenKind::Name:
    case TokenKind::Operator:
      return token.text;
    case TokenKind::Text:
      return "string";
    case TokenKind::Integer:
      return "integer";
    case TokenKind::Real:
      return "float";
    case TokenKind::End:
      return "end of template";
  }
  return "";
}

std::vector<Token> tokenize(std::string_view source) { return Lexer(with_plain_lines(source)).run(); }

}  // namespace colossal::text::jinja
