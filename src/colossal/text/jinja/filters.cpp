#include "colossal/text/jinja/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>

#include "colossal/text/jinja/characters.h"
#include "colossal/text/jinja/format.h"
#include "colossal/text/jinja/operators.h"
#include "colossal/text/jinja/print.h"
#include "colossal/text/jinja/text_parts.h"
#include "colossal/text/unicode.h"

namespace colossal::text::jinja {
namespace {

/// The value as markupsafe's soft_str() has it.
Value soft_text(Interpreter& interpreter, const Value& value) {
  return value.text() ? value : interpreter.make(str(interpreter.budget(), value));
}

/// A filter that is a method of the value's text.
Value by_method(Interpreter& interpreter, const Value& value, const char* method, Arguments& arguments) {
  return text_method(method)(interpreter, soft_text(interpreter, value), arguments);
}

Value upper_(Interpreter& i, const Value& v, Arguments& a) { return by_method(i, v, "upper", a); }
Value lower_(Interpreter& i, const Value& v, Arguments& a) { return by_method(i, v, "lower", a); }
Value capitalize_(Interpreter& i, const Value& v, Arguments& a) { return by_method(i, v, "capitalize", a); }
Value trim(Interpreter& i, const Value& v, Arguments& a) { return by_method(i, v, "strip", a); }
Value string(Interpreter& i, const Value& v, Arguments&) { return soft_text(i, v); }

Value center(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_center", arguments, {"width"});
  const Value text = soft_text(interpreter, value);
  return interpreter.make(justified(interpreter.budget(), *text.text(), bound.integer(0, 80), " ", '^'));
}

/// Words begin behind white space and - ( { [ <.
Value title(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_title", arguments, {});
  const Value soft = soft_text(interpreter, value);
  const std::string_view text = soft.text()->bytes;
  interpreter.budget().step_characters(text.size());
  std::string out;
  bool begins = true;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = first_code_point(text.substr(i));
    const bool separates =
        is_white(c.value) ||
        (c.value < 0x80 && std::string_view("-({[<").find(static_cast<char>(c.value)) != std::string_view::npos);
    const std::string_view character = text.substr(i, c.length);
    out += begins || separates ? upper(character) : lower(character);
    begins = separates;
    i += c.length;
  }
  return interpreter.make(std::move(out));
}

Value replace(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_replace", arguments, {"old", "new", "count"}, 2);
  Budget& budget = interpreter.budget();
  const int64_t most = bound.is_none(2) ? -1 : bound.integer(2, -1);
  return interpreter.make(
      replaced(budget, str(budget, value), str(budget, bound.at(0)), str(budget, bound.at(1)), most));
}

Value length(Interpreter&, const Value& value, Arguments&) { return Value::integer(length_of(value)); }

Value default_(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_default", arguments, {"default_value", "boolean"});
  if (!value.undefined() && (!bound.truth(1, false) || is_true(value))) return value;
  return bound.has(0) ? bound.at(0) : interpreter.make("");
}

Value indent(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_indent", arguments, {"width", "first", "blank"});
  Budget& budget = interpreter.budget();
  require_defined(value);
  if (!value.text()) fail(Cause::Type, "unsupported operand type(s) for +=: '", type_name(value), "' and 'str'");
  std::string margin = "    ";
  if (bound.has(0) && bound.at(0).text()) {
    margin = bound.text(0);
  } else if (bound.has(0)) {
    const int64_t width = std::max<int64_t>(bound.integer(0, 4), 0);
    budget.take_bytes(width);
    margin.assign(static_cast<size_t>(width), ' ');
  }
  const bool first = bound.truth(1, false), blank = bound.truth(2, false);
  const std::string text = value.text()->bytes + "\n";
  budget.take_bytes(static_cast<int64_t>(text.size()), 2);
  std::string out;
  bool is_first = true;
  for (const std::string_view line : lines_of(text, false)) {
    budget.take_bytes(static_cast<int64_t>(margin.size() + line.size()) + 1);
    if (!is_first) out += '\n';
    if (is_first ? first : blank || !line.empty()) out += margin;
    out += line;
    is_first = false;
  }
  return interpreter.make(std::move(out));
}

Value truncate(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_truncate", arguments, {"length", "killwords", "end", "leeway"});
  constexpr int64_t kLongest = int64_t{1} << 40;  // sums of these fit
  const int64_t most = std::clamp(bound.integer(0, 255), -kLongest, kLongest);
  const int64_t leeway = bound.is_none(3) ? 5 : std::min(bound.integer(3, 5), kLongest);
  const std::string end = bound.has(2) ? bound.text(2) : "...";
  const int64_t kept = most - count_characters(end);
  if (kept < 0) fail(Cause::Value, "expected length >= ", count_characters(end), ", got ", most);
  if (leeway < 0) fail(Cause::Value, "expected leeway >= 0, got ", leeway);
  if (length_of(value) <= most + leeway) return value;
  if (!value.text()) fail(Cause::Type, "only texts can be truncated, got ", type_name(value));
  const String& text = *value.text();
  std::string out = text.bytes.substr(0, byte_of_character(text.bytes, kept, text.is_ascii()));
  if (!bound.truth(1, false)) out = out.substr(0, out.rfind(' '));
  return interpreter.make(out + end);
}

Value word_count(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_wordcount", arguments, {});
  const Value soft = soft_text(interpreter, value);
  interpreter.budget().step_characters(soft.text()->bytes.size());
  int64_t words = 0;
  bool in_word = false;
  for (size_t i = 0; i < soft.text()->bytes.size();) {
    const CodePoint c = first_code_point(std::string_view(soft.text()->bytes).substr(i));
    const bool is_part = is_letter(c.value) || is_number(c.value) || c.value == '_';
    words += is_part && !in_word;
    in_word = is_part;
    i += c.length;
  }
  return Value::integer(words);
}

/// A number in a text, as int() and float() read it: white space around it, underscores within.
std::optional<std::string> number_text(std::string_view text) {
  text = strip_white(text, true, true);
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_')
      out += text[i];
    else if (i == 0 || i + 1 == text.size() || text[i - 1] == '_')
      return std::nullopt;
  }
  if (out.empty()) return std::nullopt;
  return out;
}

std::optional<double> real_of(std::string_view text) {
  const auto number = number_text(text);
  if (!number || number->find_first_of("xXpP(") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(number->c_str(), &end);
  return *end == 0 ? std::optional<double>(value) : std::nullopt;
}

std::optional<int64_t> integer_of(std::string_view text, int64_t base) {
  auto number = number_text(text);
  if (!number || base < 2 || base > 36) return std::nullopt;
  std::string_view digits = *number;
  const bool is_negative = digits.starts_with('-');
  if (is_negative || digits.starts_with('+')) digits.remove_prefix(1);
  const char mark = digits.size() > 2 && digits[0] == '0' ? static_cast<char>(digits[1] | 0x20) : 0;
  if ((mark == 'x' && base == 16) || (mark == 'o' && base == 8) || (mark == 'b' && base == 2)) digits.remove_prefix(2);
  if (digits.starts_with('-')) return std::nullopt;
  std::string signed_digits = (is_negative ? "-" : "") + std::string(digits);
  int64_t value = 0;
  const char* const end = signed_digits.data() + signed_digits.size();
  const auto result = std::from_chars(signed_digits.data(), end, value, static_cast<int>(base));
  if (result.ec == std::errc::result_out_of_range) fail(Cause::Unsupported, "integers must fit 64 bits");
  return result.ec == std::errc() && result.ptr == end ? std::optional<int64_t>(value) : std::nullopt;
}

int64_t whole_part(double value) {
  if (!(std::fabs(value) < 9.2e18))
    fail(Cause::Overflow, "cannot convert float to a 64-bit integer: ", repr_of_real(value));
  return static_cast<int64_t>(value);
}

Value int_(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_int", arguments, {"default", "base"});
  require_defined(value);
  if (value.is_whole()) return Value::integer(value.whole());
  const Value otherwise = bound.at(0, Value::integer(0));
  if (value.is_real()) return std::isnan(value.number()) ? otherwise : Value::integer(whole_part(value.number()));
  if (!value.text()) return otherwise;
  interpreter.budget().step_characters(value.text()->bytes.size());
  if (const auto whole = integer_of(value.text()->bytes, bound.integer(1, 10))) return Value::integer(*whole);
  const auto real = real_of(value.text()->bytes);
  return real && std::isfinite(*real) ? Value::integer(whole_part(*real)) : otherwise;
}

Value float_(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_float", arguments, {"default"});
  require_defined(value);
  if (value.is_number()) return Value::real(value.number());
  if (value.text()) interpreter.budget().step_characters(value.text()->bytes.size());
  const auto real = value.text() ? real_of(value.text()->bytes) : std::nullopt;
  return real ? Value::real(*real) : bound.at(0, Value::real(0.0));
}

Value abs_(Interpreter& interpreter, const Value& value, Arguments&) {
  require_defined(value);
  if (!value.is_number()) fail(Cause::Type, "bad operand type for abs(): '", type_name(value), "'");
  const bool is_negative = value.is_real() ? std::signbit(value.number()) : value.whole() < 0;
  return unary(interpreter.budget(), is_negative ? NodeKind::Negative : NodeKind::Positive, value);
}

Value round_(Interpreter&, const Value& value, Arguments& arguments) {
  const Bound bound("do_round", arguments, {"precision", "method"});
  const int64_t precision = bound.integer(0, 0);
  const std::string method = bound.has(1) ? bound.text(1) : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    fail(Cause::Argument, "method must be common, ceil or floor");
  require_defined(value);
  if (!value.is_number()) fail(Cause::Type, "type ", type_name(value), " doesn't define __round__ method");
  const double number = value.number();
  if (method == "common" && value.is_whole() && precision >= 0) return Value::integer(value.whole());
  if (method == "common" && precision >= 0) {
    if (!std::isfinite(number) || precision > 330) return value;
    return Value::real(std::strtod(print_real(number, 'f', static_cast<int>(precision)).c_str(), nullptr));
  }
  const double unit = std::pow(10.0, static_cast<double>(precision));
  if (method != "common") {
    const double scaled = number * unit;
    return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
  }
  const double rounded = std::nearbyint(number * unit) / unit;
  return value.is_whole() ? Value::integer(whole_part(rounded)) : Value::real(rounded);
}

Value format(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty())
    fail(Cause::Argument, "can't handle positional and keyword arguments at the same time");
  Value given = interpreter.make(arguments.positional, Sequence::Tuple);
  if (!arguments.named.empty()) {
    Dict dict;
    for (const auto& [name, named] : arguments.named) dict.set(interpreter.make(name), named);
    given = make_dict(interpreter.budget(), std::move(dict));
  }
  return format_percent(interpreter.budget(), *soft_text(interpreter, value).text(), given);
}

Value safe(Interpreter& interpreter, const Value& value, Arguments&) {
  return make_text(interpreter.budget(), str(interpreter.budget(), value), true);
}

Value escape(Interpreter& interpreter, const Value& value, Arguments&) {
  if (value.text() && value.text()->markup) return value;
  const std::string text = str(interpreter.budget(), value);
  interpreter.budget().take_bytes(static_cast<int64_t>(text.size()), 5);
  return make_text(interpreter.budget(), escape_html(text), true);
}

Value force_escape(Interpreter& interpreter, const Value& value, Arguments&) {
  const std::string text = str(interpreter.budget(), value);
  interpreter.budget().take_bytes(static_cast<int64_t>(text.size()), 5);
  return make_text(interpreter.budget(), escape_html(text), true);
}

Value to_json_(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound.truth(0, false);
  style.sort_keys = bound.truth(3, false);
  if (!bound.is_none(1)) {
    const Value width = bound.at(1);
    if (!width.text() && !width.is_whole())
      fail(Cause::Type, "can't multiply sequence by non-int of type '", type_name(width), "'");
    const int64_t spaces = width.text() ? 0 : std::max<int64_t>(width.whole(), 0);
    interpreter.budget().take_bytes(spaces);
    style.indent = width.text() ? width.text()->bytes : std::string(static_cast<size_t>(spaces), ' ');
    style.between_items = ",";
  }
  if (!bound.is_none(2)) {
    const std::vector<Value> separators = walk(interpreter.budget(), bound.at(2));
    if (separators.size() != 2 || !separators[0].text() || !separators[1].text())
      fail(Cause::Value, "separators must be two texts, (between items, behind a key)");
    style.between_items = separators[0].text()->bytes;
    style.behind_key = separators[1].text()->bytes;
  }
  return interpreter.make(to_json(interpreter.budget(), value, style));
}

Value attr(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_attr", arguments, {"name"}, 1);
  return attribute_only(interpreter, value, bound.text(0));
}

Value url_encoded(Interpreter& interpreter, const std::string& text, std::string_view kept) {
  std::string out;
  interpreter.budget().take_bytes(static_cast<int64_t>(text.size()), 3);
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                       kept.find(c) != std::string_view::npos;
    constexpr char kDigits[] = "0123456789ABCDEF";
    const auto byte = static_cast<unsigned char>(c);
    if (plain)
      out += c;
    else
      (out += '%', out += kDigits[byte >> 4]) += kDigits[byte & 15];
  }
  return interpreter.make(std::move(out));
}

Value url_encode(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_urlencode", arguments, {});
  Budget& budget = interpreter.budget();
  if (value.text() || !is_iterable(value)) return url_encoded(interpreter, str(budget, value), "_.-~/");
  std::string out;
  const auto part = [&](const Value& of) {
    std::string text = url_encoded(interpreter, str(budget, of), "_.-~ ").text()->bytes;
    std::replace(text.begin(), text.end(), ' ', '+');
    return text;
  };
  std::vector<std::pair<Value, Value>> pairs;
  if (value.dict()) {
    pairs = value.dict()->entries();
  } else {
    for (const Value& item : walk(budget, value)) {
      const std::vector<Value> both = walk(budget, item);
      if (both.size() != 2) fail(Cause::Value, "urlencode wants pairs of key and value");
      pairs.emplace_back(both[0], both[1]);
    }
  }
  for (const auto& [key, of] : pairs) out += concat(out.empty() ? "" : "&", part(key), "=", part(of));
  return interpreter.make(std::move(out));
}

Value file_size(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_filesizeformat", arguments, {"binary"});
  const bool binary = bound.truth(0, false);
  const auto bytes = value.is_number() ? std::optional<double>(value.number())
                     : value.text()    ? real_of(value.text()->bytes)
                                       : std::nullopt;
  if (!bytes) fail(Cause::Value, "could not convert to float: ", repr(interpreter.budget(), value));
  const double base = binary ? 1024 : 1000;
  if (*bytes == 1) return interpreter.make("1 Byte");
  if (*bytes < base) return interpreter.make(concat(whole_part(*bytes), " Bytes"));
  double unit = base;
  constexpr std::string_view kPrefixes = "kMGTPEZY";
  for (const char prefix : kPrefixes) {
    unit *= base;
    if (*bytes >= unit && prefix != 'Y') continue;
    const std::string name = binary ? concat(prefix == 'k' ? 'K' : prefix, "iB") : concat(prefix, "B");
    return interpreter.make(print_real(base * *bytes / unit, 'f', 1) + " " + name);
  }
  return value;
}

}  // namespace

Native find_filter(std::string_view name) {
  static const std::map<std::string_view, Native> filters{
      {"abs", abs_},
      {"attr", attr},
      {"capitalize", capitalize_},
      {"center", center},
      {"count", length},
      {"d", default_},
      {"default", default_},
      {"e", escape},
      {"escape", escape},
      {"filesizeformat", file_size},
      {"float", float_},
      {"forceescape", force_escape},
      {"format", format},
      {"indent", indent},
      {"int", int_},
      {"length", length},
      {"lower", lower_},
      {"replace", replace},
      {"round", round_},
      {"safe", safe},
      {"string", string},
      {"title", title},
      {"tojson", to_json_},
      {"trim", trim},
      {"truncate", truncate},
      {"upper", upper_},
      {"urlencode", url_encode},
      {"wordcount", word_count},
  };
  const auto found = filters.find(name);
  return found == filters.end() ? find_sequence_filter(name) : found->second;
}

Value apply_filter(Interpreter& interpreter, const Value& name, const Value& value, Arguments& arguments) {
  interpreter.budget().step();
  const Native found = name.text() ? find_filter(name.text()->bytes) : nullptr;
  if (!found) fail(Cause::Runtime, "No filter named ", repr(interpreter.budget(), name), ".");
  return found(interpreter, value, arguments);
}

Value apply_test(Interpreter& interpreter, const Value& name, const Value& value, Arguments& arguments) {
  interpreter.budget().step();
  const Native found = name.text() ? find_test(name.text()->bytes) : nullptr;
  if (!found) fail(Cause::Runtime, "No test named ", repr(interpreter.budget(), name), ".");
  return found(interpreter, value, arguments);
}

}  // namespace colossal::text::jinja
