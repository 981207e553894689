#include <algorithm>
#include <charconv>

#include "colossal/text/jinja/attributes.h"
#include "colossal/text/jinja/characters.h"
#include "colossal/text/jinja/format.h"
#include "colossal/text/jinja/print.h"

namespace colossal::text::jinja {
namespace {

/// A formatter of "{...}" fields.
class BraceFormatter {
 public:
  BraceFormatter(Interpreter& interpreter, const Arguments& arguments, bool markup)
      : interpreter_(interpreter), budget_(interpreter.budget()), arguments_(arguments), markup_(markup) {}

  std::string run(std::string_view text, int nesting) {
    if (nesting < 0) fail(Cause::Value, "Max string recursion exceeded");
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (c != '{' && c != '}') {
        out += c;
      } else if (i + 1 < text.size() && text[i + 1] == c) {
        out += c;
        ++i;
      } else if (c == '}') {
        fail(Cause::Value, "Single '}' encountered in format string");
      } else {
        const size_t end = end_of_field(text, i + 1);
        out += field(text.substr(i + 1, end - i - 1), nesting);
        i = end;
      }
    }
    return out;
  }

 private:
  static size_t end_of_field(std::string_view text, size_t at) {
    int open = 1;
    bool in_brackets = false;
    for (; at < text.size(); ++at) {
      if (text[at] == '[') in_brackets = true;
      if (text[at] == ']') in_brackets = false;
      if (in_brackets) continue;
      if (text[at] == '{') ++open;
      if (text[at] == '}' && --open == 0) return at;
    }
    fail(Cause::Value,
         text.empty() || open == 1 ? "expected '}' before end of string" : "unmatched '{' in format spec");
  }

  std::string field(std::string_view text, int nesting) {
    size_t end = 0;
    for (bool in_brackets = false; end < text.size(); ++end) {
      if (text[end] == '[') in_brackets = true;
      if (text[end] == ']') in_brackets = false;
      if (!in_brackets && (text[end] == '!' || text[end] == ':')) break;
    }
    const std::string_view name = text.substr(0, end);
    char conversion = 0;
    if (end < text.size() && text[end] == '!') {
      if (end + 1 >= text.size()) fail(Cause::Value, "end of string while looking for conversion specifier");
      conversion = text[end + 1];
      end += 2;
      if (end < text.size() && text[end] != ':') fail(Cause::Value, "expected ':' after conversion specifier");
    }
    Value value = found(name);  // before the specification, whose fields take the numbers that follow
    const std::string specification = end < text.size() ? run(text.substr(end + 1), nesting - 1) : "";
    if (conversion == 'r')
      value = interpreter_.make(repr(budget_, value));
    else if (conversion == 's')
      value = interpreter_.make(str(budget_, value));
    else if (conversion == 'a')
      value = interpreter_.make(ascii_repr(budget_, value));
    else if (conversion)
      fail(Cause::Value, "Unknown conversion specifier ", conversion);
    const std::string shown = format_value(budget_, value, specification);
    budget_.take_bytes(static_cast<int64_t>(shown.size()));
    return markup_ && !(value.text() && value.text()->markup) ? escape_html(shown) : shown;
  }

  Value numbered(std::string_view name) {
    size_t index = next_++;
    if (!name.empty()) std::from_chars(name.data(), name.data() + name.size(), index);
    const bool is_automatic = name.empty();
    if (mode_ != 0 && mode_ != (is_automatic ? 1 : 2))
      fail(Cause::Value, "cannot switch from ",
           is_automatic ? "manual field specification to automatic field numbering"
                        : "automatic field numbering to manual field specification");
    mode_ = is_automatic ? 1 : 2;
    if (index >= arguments_.positional.size())
      fail(Cause::Index, "Replacement index ", index, " out of range for positional args tuple");
    return arguments_.positional[index];
  }

  /// Returns the value of a field name: name.attribute[element]...
  Value found(std::string_view name) {
    const size_t first = std::min(name.find_first_of(".["), name.size());
    const std::string_view head = name.substr(0, first);
    Value value;
    if (head.empty() && !name.empty()) fail(Cause::Key, "''");
    if (std::all_of(head.begin(), head.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      value = numbered(head);
    } else {
      const auto named = std::find_if(arguments_.named.begin(), arguments_.named.end(),
                                      [&](const auto& argument) { return argument.first == head; });
      if (named == arguments_.named.end()) fail(Cause::Key, repr_of_text(head));
      value = named->second;
    }
    for (size_t at = first; at < name.size();) {
      const bool is_attribute = name[at] == '.';
      if (!is_attribute && name[at] != '[')
        fail(Cause::Value, "Only '.' or '[' may follow ']' in format field specifier");
      const size_t end = is_attribute ? std::min(name.find_first_of(".[", at + 1), name.size()) : name.find(']', at);
      if (end == std::string_view::npos) fail(Cause::Value, "Missing ']' in format string");
      const std::string_view part = name.substr(at + 1, end - at - 1);
      if (part.empty()) fail(Cause::Value, "Empty attribute in format string");
      value = is_attribute ? attribute(interpreter_, value, part) : element(interpreter_, value, key_of(part));
      at = end + !is_attribute;
    }
    return value;
  }

  Value key_of(std::string_view text) {
    int64_t index = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
    if (error == std::errc() && end == text.data() + text.size() && text[0] != '-') return Value::integer(index);
    return interpreter_.make(std::string(text));
  }

  Interpreter& interpreter_;
  Budget& budget_;
  const Arguments& arguments_;
  bool markup_;
  size_t next_ = 0;
  int mode_ = 0;  // 1: fields are numbered in order; 2: fields have explicit numbers
};

}  // namespace

Value format_braces(Interpreter& interpreter, const String& text, const Arguments& arguments) {
  interpreter.budget().step(static_cast<int64_t>(text.bytes.size() / 64));
  return make_text(interpreter.budget(), BraceFormatter(interpreter, arguments, text.markup).run(text.bytes, 2),
                   text.markup);
}

}  // namespace colossal::text::jinja
