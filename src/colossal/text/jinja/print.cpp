#include "colossal/text/jinja/print.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "colossal/text/jinja/characters.h"
#include "colossal/text/unicode.h"

namespace colossal::text::jinja {
namespace {

void append_hex(std::string& out, const char* format, uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, format, value);
  out += text;
}

/// Writes values as repr() does, and takes the output from the budget.
class Printer {
 public:
  explicit Printer(Budget& budget) : budget_(budget) {}

  void put(std::string_view text) {
    budget_.take_bytes(static_cast<int64_t>(text.size()));
    out_ += text;
  }

  void put_value(const Value& value) {
    budget_.step();
    const Budget::Level level(budget_);
    if (value.is_none())
      put("None");
    else if (value.is_boolean())
      put(value.truth_of_boolean() ? "True" : "False");
    else if (value.is_integer())
      put(std::to_string(value.whole()));
    else if (value.is_real())
      put(repr_of_real(value.number()));
    else if (value.text())
      put_text(*value.text());
    else if (value.items())
      put_items(*value.items());
    else if (value.dict())
      put_dict(*value.dict());
    else if (value.undefined())
      put("Undefined");
    else
      put(value.object()->repr(budget_));
  }

  std::string take() { return std::move(out_); }

 private:
  void put_text(const String& text) {
    budget_.step_characters(text.bytes.size());
    const std::string quoted = repr_of_text(text.bytes);
    put(text.markup ? "Markup(" + quoted + ")" : quoted);
  }

  void put_row(const std::vector<Value>& values, const char* open, const char* close) {
    put(open);
    for (size_t i = 0; i < values.size(); ++i) {
      if (i > 0) put(", ");
      put_value(values[i]);
    }
    put(close);
  }

  void put_items(const Items& items) {
    switch (items.kind) {
      case Sequence::List:
        return put_row(items.values, "[", "]");
      case Sequence::Tuple:
        return put_row(items.values, "(", items.values.size() == 1 ? ",)" : ")");
      case Sequence::Keys:
        return put_row(items.values, "dict_keys([", "])");
      case Sequence::Values:
        return put_row(items.values, "dict_values([", "])");
      case Sequence::Pairs:
        return put_row(items.values, "dict_items([", "])");
      case Sequence::Generator:
        return put("<generator object>");
      case Sequence::Reversed:
        return put("<list_reverseiterator object>");
      case Sequence::Range:
        return put(concat("range(", items.start, ", ", items.stop,
                          items.step == 1 ? std::string() : concat(", ", items.step), ")"));
    }
  }

  void put_dict(const Dict& dict) {
    put("{");
    bool is_first = true;
    for (const auto& [key, value] : dict.entries()) {
      if (!is_first) put(", ");
      is_first = false;
      put_value(key);
      put(": ");
      put_value(value);
    }
    put("}");
  }

  Budget& budget_;
  std::string out_;
};

class JsonPrinter {
 public:
  JsonPrinter(Budget& budget, const JsonStyle& style) : budget_(budget), style_(style) {}

  void put_value(const Value& value) {
    budget_.step();
    const Budget::Level level(budget_);
    if (value.is_none())
      put("null");
    else if (value.is_boolean())
      put(value.truth_of_boolean() ? "true" : "false");
    else if (value.is_integer())
      put(std::to_string(value.whole()));
    else if (value.is_real())
      put(real(value.number()));
    else if (value.text())
      put_text(value.text()->bytes);
    else if (value.is_list() || value.is_tuple())
      put_list(value.items()->values);
    else if (value.dict())
      put_dict(*value.dict());
    else
      fail(Cause::Type, "Object of type ", type_name(value), " is not JSON serializable");
  }

  std::string take() { return std::move(out_); }

 private:
  void put(std::string_view text) {
    budget_.take_bytes(static_cast<int64_t>(text.size()));
    out_ += text;
  }

  static std::string real(double number) {
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
    return repr_of_real(number);
  }

  void put_escape(uint32_t c) {
    if (c > 0xFFFF) {
      append_hex(out_, "\\u%04x", 0xD800 + ((c - 0x10000) >> 10));
      c = 0xDC00 + ((c - 0x10000) & 0x3FF);
    }
    append_hex(out_, "\\u%04x", c);
  }

  void put_text(std::string_view text) {
    budget_.take_bytes(static_cast<int64_t>(text.size()) + 2);
    out_ += '"';
    for (size_t i = 0; i < text.size();) {
      const size_t length = character_length(text, i);
      const auto c = static_cast<unsigned char>(text[i]);
      if (c == '"' || c == '\\')
        (out_ += '\\') += static_cast<char>(c);
      else if (c == '\n')
        out_ += "\\n";
      else if (c == '\r')
        out_ += "\\r";
      else if (c == '\t')
        out_ += "\\t";
      else if (c == '\b')
        out_ += "\\b";
      else if (c == '\f')
        out_ += "\\f";
      else if (c < 0x20 || (style_.ensure_ascii && c >= 0x80))
        put_escape(first_code_point(text.substr(i)).value);
      else
        out_ += text.substr(i, length);
      i += length;
    }
    out_ += '"';
  }

  void put_line() {
    put("\n");
    for (int i = 0; i < level_; ++i) put(*style_.indent);
  }

  void put_list(const std::vector<Value>& values) {
    if (values.empty()) return put("[]");
    put("[");
    ++level_;
    for (size_t i = 0; i < values.size(); ++i) {
      if (i > 0) put(style_.between_items);
      if (style_.indent) put_line();
      put_value(values[i]);
    }
    --level_;
    if (style_.indent) put_line();
    put("]");
  }

  void put_key(const Value& key) {
    if (key.text()) return put_text(key.text()->bytes);
    if (!key.is_none() && !key.is_number())
      fail(Cause::Type, "keys must be str, int, float, bool or None, not ", type_name(key));
    put("\"");
    put_value(key);
    put("\"");
  }

  void put_dict(const Dict& dict) {
    if (dict.size() == 0) return put("{}");
    auto entries = dict.entries();
    if (style_.sort_keys)
      std::stable_sort(entries.begin(), entries.end(),
                       [&](const auto& a, const auto& b) { return is_less(budget_, a.first, b.first); });
    put("{");
    ++level_;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) put(style_.between_items);
      if (style_.indent) put_line();
      put_key(entries[i].first);
      put(style_.behind_key);
      put_value(entries[i].second);
    }
    --level_;
    if (style_.indent) put_line();
    put("}");
  }

  Budget& budget_;
  const JsonStyle& style_;
  std::string out_;
  int level_ = 0;
};

}  // namespace

std::string str(Budget& budget, const Value& value) {
  if (value.text()) {
    budget.take_bytes(static_cast<int64_t>(value.text()->bytes.size()));
    return value.text()->bytes;
  }
  return value.undefined() ? std::string() : repr(budget, value);
}

std::string repr(Budget& budget, const Value& value) {
  Printer printer(budget);
  printer.put_value(value);
  return printer.take();
}

std::string repr_of_text(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = first_code_point(text.substr(i));
    if (c.value == static_cast<unsigned char>(quote) || c.value == '\\')
      (out += '\\') += static_cast<char>(c.value);
    else if (c.value == '\n')
      out += "\\n";
    else if (c.value == '\r')
      out += "\\r";
    else if (c.value == '\t')
      out += "\\t";
    else if (is_printable(c.value))
      out += text.substr(i, c.length);
    else if (c.value < 0x100)
      append_hex(out, "\\x%02x", c.value);
    else if (c.value < 0x10000)
      append_hex(out, "\\u%04x", c.value);
    else
      append_hex(out, "\\U%08x", c.value);
    i += c.length;
  }
  return out + quote;
}

std::string repr_of_real(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, number, std::chars_format::scientific).ptr;
  std::string digits(text, end);  // d.ddde+xx, the shortest digits that read back as the same number
  const size_t e = digits.find('e');
  const int exponent = std::stoi(digits.substr(e + 1));
  if (exponent < -4 || exponent >= 16) return digits;
  const auto fixed = std::to_chars(text, text + sizeof text, number, std::chars_format::fixed).ptr;
  std::string out(text, fixed);
  return out.find('.') == std::string::npos ? out + ".0" : out;
}

std::string to_json(Budget& budget, const Value& value, const JsonStyle& style) {
  JsonPrinter printer(budget, style);
  printer.put_value(value);
  return printer.take();
}

}  // namespace colossal::text::jinja
