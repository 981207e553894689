#include <algorithm>
#include <map>

#include "colossal/text/jinja/attributes.h"
#include "colossal/text/jinja/characters.h"
#include "colossal/text/jinja/format.h"
#include "colossal/text/jinja/text_parts.h"

namespace colossal::text::jinja {
namespace {

const std::string& bytes_of(const Value& self) { return self.text()->bytes; }

Value made(Interpreter& interpreter, const Value& self, std::string_view text) {
  return make_text(interpreter.budget(), std::string(text), self.text()->markup);
}

template <std::string (*change)(std::string_view)>
Value changed(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("this method", arguments, {});
  interpreter.budget().step_characters(2 * bytes_of(self).size());
  interpreter.budget().take_bytes(static_cast<int64_t>(bytes_of(self).size()));
  return made(interpreter, self, change(bytes_of(self)));
}

template <Class asked>
Value asks(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("this method", arguments, {});
  interpreter.budget().step_characters(bytes_of(self).size());
  return Value::boolean(is_class(bytes_of(self), asked));
}

Value is_ascii(Interpreter&, const Value& self, Arguments&) { return Value::boolean(self.text()->is_ascii()); }

Value strip(Interpreter& interpreter, const Value& self, Arguments& arguments, bool left, bool right) {
  const Bound bound("strip", arguments, {"chars"});
  if (bound.is_none(0)) {
    const std::string_view text = strip_white(bytes_of(self), left, right);
    interpreter.budget().step_characters(bytes_of(self).size() - text.size());
    return made(interpreter, self, text);
  }
  const std::string& chars = bound.text(0);
  interpreter.budget().step(static_cast<int64_t>(bytes_of(self).size() / 8 * (1 + chars.size() / 64)));
  return made(interpreter, self, strip_characters(bytes_of(self), chars, left, right));
}

Value strip_both(Interpreter& i, const Value& self, Arguments& a) { return strip(i, self, a, true, true); }
Value strip_left(Interpreter& i, const Value& self, Arguments& a) { return strip(i, self, a, true, false); }
Value strip_right(Interpreter& i, const Value& self, Arguments& a) { return strip(i, self, a, false, true); }

Value split(Interpreter& interpreter, const Value& self, Arguments& arguments, bool from_right) {
  const Bound bound("split", arguments, {"sep", "maxsplit"});
  const int64_t max = bound.integer(1, -1);
  std::vector<std::string_view> parts;
  if (bound.is_none(0)) {
    interpreter.budget().step_characters(bytes_of(self).size());
    parts = split_at_white(interpreter.budget(), bytes_of(self), max, from_right);
  } else {
    if (!bound.at(0).text()) fail(Cause::Type, "must be str or None, not ", type_name(bound.at(0)));
    if (bound.text(0).empty()) fail(Cause::Value, "empty separator");
    interpreter.budget().step_characters(bytes_of(self).size());
    parts = split_at(interpreter.budget(), bytes_of(self), bound.text(0), max, from_right);
  }
  std::vector<Value> values;
  for (const std::string_view part : parts) values.push_back(made(interpreter, self, part));
  return interpreter.make(std::move(values));
}

Value split_left(Interpreter& i, const Value& self, Arguments& a) { return split(i, self, a, false); }
Value split_right(Interpreter& i, const Value& self, Arguments& a) { return split(i, self, a, true); }

Value split_lines(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("splitlines", arguments, {"keepends"});
  const bool keeps = bound.truth(0, false);
  std::vector<Value> lines;
  interpreter.budget().step_characters(bytes_of(self).size());
  for (const std::string_view line : lines_of(interpreter.budget(), bytes_of(self), keeps))
    lines.push_back(made(interpreter, self, line));
  return interpreter.make(std::move(lines));
}

Value partition(Interpreter& interpreter, const Value& self, Arguments& arguments, bool from_right) {
  const Bound bound("partition", arguments, {"sep"}, 1);
  const std::string &text = bytes_of(self), &separator = bound.text(0);
  if (separator.empty()) fail(Cause::Value, "empty separator");
  interpreter.budget().take_bytes(static_cast<int64_t>(text.size()));
  const size_t at = from_right ? find_last(text, separator, text.size()) : find(text, separator);
  const bool found = at != std::string::npos;
  const std::string before = found ? text.substr(0, at) : from_right ? "" : text;
  const std::string after = found ? text.substr(at + separator.size()) : from_right ? text : "";
  return interpreter.make({made(interpreter, self, before), made(interpreter, self, found ? separator : ""),
                           made(interpreter, self, after)},
                          Sequence::Tuple);
}

Value partition_left(Interpreter& i, const Value& self, Arguments& a) { return partition(i, self, a, false); }
Value partition_right(Interpreter& i, const Value& self, Arguments& a) { return partition(i, self, a, true); }

Value replace_method(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("replace", arguments, {"old", "new", "count"}, 2);
  return made(interpreter, self,
              replaced(interpreter.budget(), bytes_of(self), bound.text(0), bound.text(1), bound.integer(2, -1)));
}

/// Returns the text between the arguments `first` and `first + 1`, which are character indices. Sets `begin` to its
/// start.
std::optional<std::string_view> part_of(Budget& budget, const Value& self, const Bound& bound, size_t first,
                                        int64_t& begin) {
  const int64_t size = self.text()->characters;
  const auto border = [&](size_t i, int64_t otherwise) {
    if (bound.is_none(i)) return otherwise;
    const int64_t at = bound.integer(i, otherwise);
    return at < 0 ? std::max<int64_t>(at + size, 0) : at;
  };
  begin = border(first, 0);
  const int64_t end = std::min(border(first + 1, size), size);
  if (begin > end || begin > size) return std::nullopt;
  const std::string_view text = self.text()->bytes;
  if (!self.text()->is_ascii()) budget.step_characters(text.size());
  budget.step(static_cast<int64_t>(text.size() / 256));
  const size_t from = byte_of_character(text, begin, self.text()->is_ascii());
  return text.substr(from, byte_of_character(text.substr(from), end - begin, self.text()->is_ascii()));
}

Value begins_or_ends(Interpreter& interpreter, const Value& self, Arguments& arguments, bool at_end) {
  const char* name = at_end ? "endswith" : "startswith";
  const Bound bound(name, arguments, {"affix", "start", "end"}, 1);
  int64_t begin = 0;
  const auto part = part_of(interpreter.budget(), self, bound, 1, begin);
  std::vector<Value> affixes{bound.at(0)};
  if (bound.at(0).is_tuple()) affixes = bound.at(0).items()->values;
  for (const Value& affix : affixes) {
    interpreter.budget().step(1 + static_cast<int64_t>(affix.text() ? affix.text()->bytes.size() / 256 : 0));
    require_defined(affix);
    if (!affix.text()) fail(Cause::Type, name, " first arg must be str or a tuple of str, not ", type_name(affix));
    if (part && (at_end ? part->ends_with(affix.text()->bytes) : part->starts_with(affix.text()->bytes)))
      return Value::boolean(true);
  }
  return Value::boolean(false);
}

Value starts_with(Interpreter& i, const Value& self, Arguments& a) { return begins_or_ends(i, self, a, false); }
Value ends_with(Interpreter& i, const Value& self, Arguments& a) { return begins_or_ends(i, self, a, true); }

Value found(Interpreter& interpreter, const Value& self, Arguments& arguments, bool from_right, bool must_be) {
  const Bound bound(must_be ? "index" : "find", arguments, {"sub", "start", "end"}, 1);
  const std::string& sub = bound.text(0);
  interpreter.budget().take_bytes(static_cast<int64_t>(bytes_of(self).size()));
  int64_t begin = 0;
  const auto part = part_of(interpreter.budget(), self, bound, 1, begin);
  const size_t at = !part        ? std::string_view::npos
                    : from_right ? find_last(*part, sub, part->size())
                                 : find(*part, sub);
  if (at != std::string_view::npos) return Value::integer(begin + count_characters(part->substr(0, at)));
  if (must_be) fail(Cause::Value, "substring not found");
  return Value::integer(-1);
}

Value find_left(Interpreter& i, const Value& self, Arguments& a) { return found(i, self, a, false, false); }
Value find_right(Interpreter& i, const Value& self, Arguments& a) { return found(i, self, a, true, false); }
Value index_left(Interpreter& i, const Value& self, Arguments& a) { return found(i, self, a, false, true); }
Value index_right(Interpreter& i, const Value& self, Arguments& a) { return found(i, self, a, true, true); }

Value count_parts(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("count", arguments, {"sub", "start", "end"}, 1);
  const std::string& sub = bound.text(0);
  interpreter.budget().step(static_cast<int64_t>(bytes_of(self).size() / 16));
  int64_t begin = 0;
  const auto part = part_of(interpreter.budget(), self, bound, 1, begin);
  return Value::integer(part ? count(*part, sub) : 0);
}

Value join_method(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("join", arguments, {"iterable"}, 1);
  if (!is_iterable(bound.at(0))) fail(Cause::Type, "can only join an iterable");
  std::string out;
  int64_t index = 0;
  for (const Value& item : walk(interpreter.budget(), bound.at(0))) {
    if (!item.text())
      fail(Cause::Type, "sequence item ", index, ": expected str instance, ", type_name(item), " found");
    interpreter.budget().take_bytes(static_cast<int64_t>(bytes_of(self).size() + item.text()->bytes.size()));
    if (index++ > 0) out += bytes_of(self);
    out += self.text()->markup && !item.text()->markup ? escape_html(item.text()->bytes) : item.text()->bytes;
  }
  return made(interpreter, self, out);
}

Value justify(Interpreter& interpreter, const Value& self, Arguments& arguments, const char* name, char side) {
  const Bound bound(name, arguments, {"width", "fillchar"}, 1);
  const std::string fill = bound.has(1) ? bound.text(1) : " ";
  if (count_characters(fill) != 1) fail(Cause::Type, "The fill character must be exactly one character long");
  return made(interpreter, self, justified(interpreter.budget(), *self.text(), bound.integer(0, 0), fill, side));
}

Value center_method(Interpreter& i, const Value& self, Arguments& a) { return justify(i, self, a, "center", '^'); }
Value ljust(Interpreter& i, const Value& self, Arguments& a) { return justify(i, self, a, "ljust", '<'); }
Value rjust(Interpreter& i, const Value& self, Arguments& a) { return justify(i, self, a, "rjust", '>'); }

Value zfill(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("zfill", arguments, {"width"}, 1);
  const std::string& text = bytes_of(self);
  const int64_t width = bound.integer(0, 0);
  if (width <= self.text()->characters) return self;
  const int64_t zeros = width - self.text()->characters;
  interpreter.budget().take_bytes(zeros);
  const size_t sign = !text.empty() && (text[0] == '+' || text[0] == '-');
  return made(interpreter, self,
              text.substr(0, sign) + std::string(static_cast<size_t>(zeros), '0') + text.substr(sign));
}

Value expand_tabs(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("expandtabs", arguments, {"tabsize"});
  const int64_t size = bound.integer(0, 8);
  std::string out;
  int64_t column = 0;
  const std::string& text = bytes_of(self);
  for (size_t i = 0; i < text.size(); i += character_length(text, i)) {
    if (text[i] == '\t') {
      const int64_t spaces = size > 0 ? size - column % size : 0;
      interpreter.budget().take_bytes(spaces);
      out.append(static_cast<size_t>(spaces), ' ');
      column += spaces;
      continue;
    }
    out += text.substr(i, character_length(text, i));
    column = text[i] == '\n' || text[i] == '\r' ? 0 : column + 1;
  }
  return made(interpreter, self, out);
}

Value remove_prefix(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("removeprefix", arguments, {"prefix"}, 1);
  const std::string &text = bytes_of(self), &prefix = bound.text(0);
  return text.starts_with(prefix) ? made(interpreter, self, text.substr(prefix.size())) : self;
}

Value remove_suffix(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("removesuffix", arguments, {"suffix"}, 1);
  const std::string &text = bytes_of(self), &suffix = bound.text(0);
  return text.ends_with(suffix) ? made(interpreter, self, text.substr(0, text.size() - suffix.size())) : self;
}

Value format_method(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  return format_braces(interpreter, *self.text(), arguments);
}

Value format_map(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("format_map", arguments, {"mapping"}, 1);
  Arguments named;
  if (!bound.at(0).dict()) fail(Cause::Type, "'", type_name(bound.at(0)), "' object is not a mapping");
  for (const auto& [key, value] : bound.at(0).dict()->entries())
    if (key.text()) named.named.emplace_back(key.text()->bytes, value);
  return format_braces(interpreter, *self.text(), named);
}

Value not_here(Interpreter&, const Value&, Arguments&) {
  fail(Cause::Unsupported, "encode, maketrans and translate of strings are not supported");
}

}  // namespace

Native text_method(std::string_view name) {
  static const std::map<std::string_view, Native> methods{
      {"capitalize", changed<capitalize>},
      {"casefold", changed<casefold>},
      {"center", center_method},
      {"count", count_parts},
      {"encode", not_here},
      {"endswith", ends_with},
      {"expandtabs", expand_tabs},
      {"find", find_left},
      {"format", format_method},
      {"format_map", format_map},
      {"index", index_left},
      {"isalnum", asks<Class::Alnum>},
      {"isalpha", asks<Class::Alpha>},
      {"isascii", is_ascii},
      {"isdecimal", asks<Class::Decimal>},
      {"isdigit", asks<Class::Digit>},
      {"isidentifier", asks<Class::Identifier>},
      {"islower", asks<Class::Lower>},
      {"isnumeric", asks<Class::Numeric>},
      {"isprintable", asks<Class::Printable>},
      {"isspace", asks<Class::Space>},
      {"istitle", asks<Class::Title>},
      {"isupper", asks<Class::Upper>},
      {"join", join_method},
      {"ljust", ljust},
      {"lower", changed<lower>},
      {"lstrip", strip_left},
      {"maketrans", not_here},
      {"partition", partition_left},
      {"removeprefix", remove_prefix},
      {"removesuffix", remove_suffix},
      {"replace", replace_method},
      {"rfind", find_right},
      {"rindex", index_right},
      {"rjust", rjust},
      {"rpartition", partition_right},
      {"rsplit", split_right},
      {"rstrip", strip_right},
      {"split", split_left},
      {"splitlines", split_lines},
      {"startswith", starts_with},
      {"strip", strip_both},
      {"swapcase", changed<swap_case>},
      {"title", changed<title>},
      {"translate", not_here},
      {"upper", changed<upper>},
      {"zfill", zfill},
  };
  const auto found_method = methods.find(name);
  return found_method == methods.end() ? nullptr : found_method->second;
}

}  // namespace colossal::text::jinja
