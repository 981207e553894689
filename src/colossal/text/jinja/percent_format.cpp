#include <algorithm>
#include <cmath>

#include "colossal/text/jinja/characters.h"
#include "colossal/text/jinja/format.h"
#include "colossal/text/jinja/print.h"
#include "colossal/text/unicode.h"

namespace colossal::text::jinja {
namespace {

/// A formatter of "%..." that reads the text once.
class PercentFormatter {
 public:
  PercentFormatter(Budget& budget, const String& text, const Value& value)
      : budget_(budget), text_(text.bytes), value_(value) {}

  std::string run() {
    while (at_ < text_.size()) {
      const size_t percent = std::min(text_.find('%', at_), text_.size());
      out_ += text_.substr(at_, percent - at_);
      at_ = percent + 1;
      if (percent < text_.size()) field();
    }
    const bool is_range = value_.items() && value_.items()->kind == Sequence::Range;
    const bool is_mapping = value_.dict() || value_.is_list() || is_range;  // a mapping in Python's sense: it has
                                                                            // elements
    const size_t given = value_.is_tuple() ? value_.items()->values.size() : is_mapping ? 0 : 1;
    if (used_ < given && !by_key_) fail(Cause::Type, "not all arguments converted during string formatting");
    return std::move(out_);
  }

 private:
  char next() {
    if (at_ >= text_.size()) fail(Cause::Value, "incomplete format");
    return text_[at_++];
  }

  Value argument() {
    if (value_.is_tuple()) {
      if (used_ >= value_.items()->values.size()) fail(Cause::Type, "not enough arguments for format string");
      return value_.items()->values[used_++];
    }
    if (used_++ > 0) fail(Cause::Type, "not enough arguments for format string");
    return value_;
  }

  Value by_key() {
    const size_t end = text_.find(')', at_);
    if (end == std::string_view::npos) fail(Cause::Value, "incomplete format key");
    const std::string_view key = text_.substr(at_, end - at_);
    at_ = end + 1;
    by_key_ = true;
    if (!value_.dict()) fail(Cause::Type, "format requires a mapping");
    const Value* found = value_.dict()->find(key);
    if (!found) fail(Cause::Key, repr_of_text(key));
    return *found;
  }

  int64_t number() {
    if (at_ < text_.size() && text_[at_] == '*') {
      ++at_;
      const Value given = argument();
      if (!given.is_whole()) fail(Cause::Type, "* wants int");
      return given.whole();
    }
    int64_t value = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      value = value * 10 + (text_[at_++] - '0');
      if (value > INT32_MAX) fail(Cause::Value, "width too big");
    }
    return value;
  }

  void field() {
    Field field;
    Value value;
    bool has_value = false, is_left = false;
    if (at_ < text_.size() && text_[at_] == '(') {
      ++at_;
      value = by_key();
      has_value = true;
    }
    for (bool more = true; more && at_ < text_.size();) {
      const char c = text_[at_];
      if (c == '-')
        is_left = true;
      else if (c == '+' || (c == ' ' && field.sign != '+'))
        field.sign = c;
      else if (c == '#')
        field.alternate = true;
      else if (c == '0')
        field.zero = true;
      else if (c != ' ')
        more = false;
      at_ += more;
    }
    field.width = std::clamp<int64_t>(number(), -(int64_t{1} << 50), int64_t{1} << 50);
    if (field.width < 0) is_left = true, field.width = -field.width;
    if (at_ < text_.size() && text_[at_] == '.') {
      ++at_;
      field.precision = std::max<int64_t>(number(), 0);
    }
    while (at_ < text_.size() && (text_[at_] == 'l' || text_[at_] == 'h' || text_[at_] == 'L')) ++at_;
    field.type = next();
    if (is_left) field.align = '<';
    if (field.type == '%') {
      out_ += '%';
      return;
    }
    put(field, has_value ? value : argument());
  }

  void put(Field field, const Value& value) {
    if (std::string_view("sra").find(field.type) != std::string_view::npos) {
      std::string text = field.type == 's'   ? str(budget_, value)
                         : field.type == 'r' ? repr(budget_, value)
                                             : ascii_repr(budget_, value);
      if (field.precision >= 0) text = first_characters(text, field.precision);
      out_ += padded(budget_, "", text, field, '>');
      return;
    }
    if (field.type == 'c' && value.text() && value.text()->characters == 1) {
      out_ += padded(budget_, "", value.text()->bytes, field, '>');
      return;
    }
    if (field.zero && field.align != '<') field.fill = "0";
    if (field.precision > kMaxPrecision) fail(Cause::Value, "precision too large");
    if (std::string_view("eEfFgG").find(field.type) != std::string_view::npos) return put_real(field, value);
    if (std::string_view("diuoxXc").find(field.type) == std::string_view::npos)
      fail(Cause::Value, "unsupported format character '", field.type, "' at index ",
           count_characters(text_.substr(0, at_)) - 1);
    put_integer(field, value);
  }

  void put_real(const Field& field, const Value& value) {
    require_defined(value);
    if (!value.is_number()) fail(Cause::Type, "must be real number, not ", type_name(value));
    out_ += format_real(budget_, value.number(), field);
  }

  void put_integer(Field field, const Value& value) {
    require_defined(value);
    const bool is_decimal = field.type == 'd' || field.type == 'i' || field.type == 'u';
    if (!value.is_number() || (value.is_real() && !is_decimal))
      fail(Cause::Type, "%", field.type, " format: ", is_decimal ? "a real number" : "an integer", " is required, not ",
           type_name(value));
    const double real = value.number();
    if (value.is_real() && !(std::fabs(real) < 9.2e18))
      fail(Cause::Overflow, "cannot convert float to a 64-bit integer");
    const int64_t whole = value.is_real() ? static_cast<int64_t>(real) : value.whole();
    if (field.type == 'c') {
      std::string character;
      if (whole < 0 || whole > 0x10FFFF) fail(Cause::Overflow, "%c arg not in range(0x110000)");
      append_utf8(character, static_cast<uint32_t>(whole));
      out_ += padded(budget_, "", character, field, '>');
      return;
    }
    if (is_decimal) field.type = 'd';
    const int64_t digits = std::exchange(field.precision, -1);
    if (digits < 0) {
      out_ += format_integer(budget_, whole, field);
      return;
    }
    std::string body = digits_of(whole, field.type == 'o' ? 8 : field.type == 'd' ? 10 : 16, field.type == 'X');
    if (static_cast<int64_t>(body.size()) < digits) body.insert(0, static_cast<size_t>(digits) - body.size(), '0');
    std::string sign = sign_text(whole < 0, field.sign);
    if (field.alternate && field.type != 'd') sign += concat('0', field.type);
    out_ += padded(budget_, sign, body, field, field.zero ? '=' : '>');
  }

  Budget& budget_;
  std::string_view text_;
  const Value& value_;
  size_t at_ = 0, used_ = 0;
  bool by_key_ = false;
  std::string out_;
};

/// Returns the value with every text that is not markup escaped for HTML.
Value escaped_values(Budget& budget, const Value& value) {
  if (value.is_tuple()) {
    std::vector<Value> values;
    for (const Value& item : value.items()->values) values.push_back(escaped_values(budget, item));
    return make_items(budget, std::move(values), Sequence::Tuple);
  }
  if (!value.text() || value.text()->markup) return value;
  return make_text(budget, escape_html(value.text()->bytes), true);
}

}  // namespace

Value format_percent(Budget& budget, const String& text, const Value& value) {
  const Value shown = text.markup ? escaped_values(budget, value) : value;
  return make_text(budget, PercentFormatter(budget, text, shown).run(), text.markup);
}

}  // namespace colossal::text::jinja
