#include "colossal/text/jinja/filters.h"

#include <algorithm>
#include <map>

#include "colossal/text/jinja/characters.h"
#include "colossal/text/jinja/format.h"
#include "colossal/text/jinja/operators.h"
#include "colossal/text/jinja/print.h"
#include "colossal/text/jinja/text_parts.h"
#include "colossal/text/tokenizers/regex.h"
#include "colossal/text/unicode.h"

namespace colossal::text::jinja {
namespace {

/// Returns the value as a text, as markupsafe's soft_str() does.
Value soft_text(Interpreter& interpreter, const Value& value) {
  return value.text() ? value : interpreter.make(str(interpreter.budget(), value));
}

/// Implements a filter that is a method of the value's text.
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

/// A word starts after white space and after any of - ( { [ <.
Value title(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_title", arguments, {});
  const Value soft = soft_text(interpreter, value);
  const std::string_view text = soft.text()->bytes;
  interpreter.budget().step_characters(2 * text.size());
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
  const int64_t max = bound.is_none(2) ? -1 : bound.integer(2, -1);
  return interpreter.make(
      replaced(budget, str(budget, value), str(budget, bound.at(0)), str(budget, bound.at(1)), max));
}

/// A filter of lm-evaluation-harness, for templates of tasks (docs/how-to/evaluate.md).
Value regex_replace(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("regex_replace", arguments, {"pattern", "repl"}, 2);
  Budget& budget = interpreter.budget();
  const std::string text = str(budget, value);
  const std::string& with = bound.text(1);
  if (with.find('\\') != std::string::npos)
    fail(Cause::Unsupported, "regex_replace must have a plain text as its second argument: got a backslash");
  budget.step_characters(16 * (text.size() + bound.text(0).size()));
  try {
    std::string out;
    size_t end = 0;
    for (const Regex::Match& match : Regex(bound.text(0), Dialect::Rust).find_all(text)) {
      budget.take_bytes(static_cast<int64_t>(with.size()));
      out += text.substr(end, match.begin - end) + with;
      end = match.end;
    }
    return interpreter.make(out + text.substr(end));
  } catch (const Error& error) {
    fail(Cause::Value, error.message());
  }
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
  for (const std::string_view line : lines_of(budget, text, false)) {
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
  constexpr int64_t kMaxLength = int64_t{1} << 40;  // sums of such lengths do not overflow
  const int64_t max = std::clamp(bound.integer(0, 255), -kMaxLength, kMaxLength);
  const int64_t leeway = bound.is_none(3) ? 5 : std::min(bound.integer(3, 5), kMaxLength);
  const std::string end = bound.has(2) ? bound.text(2) : "...";
  const int64_t kept = max - count_characters(end);
  if (kept < 0) fail(Cause::Value, "expected length >= ", count_characters(end), ", got ", max);
  if (leeway < 0) fail(Cause::Value, "expected leeway >= 0, got ", leeway);
  if (length_of(value) <= max + leeway) return value;
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
      fail(Cause::Value, "separators must be two strings, (between items, after a key)");
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
      if (both.size() != 2) fail(Cause::Value, "urlencode needs pairs of key and value");
      pairs.emplace_back(both[0], both[1]);
    }
  }
  for (const auto& [key, of] : pairs) out += concat(out.empty() ? "" : "&", part(key), "=", part(of));
  return interpreter.make(std::move(out));
}

void require_known(const Node& node, bool in_choice);
void require_known(const std::vector<NodePtr>& nodes, bool in_choice);

void require_known_arguments(const CallArguments& call, bool in_choice) {
  require_known(call.positional, in_choice);
  for (const auto& [name, value] : call.named) require_known(*value, in_choice);
  if (call.spread) require_known(*call.spread, in_choice);
  if (call.spread_named) require_known(*call.spread_named, in_choice);
}

void require_known(const Node& node, bool in_choice) {
  const bool is_filter = node.kind == NodeKind::Filter, is_test = node.kind == NodeKind::Test;
  const bool is_unknown = (is_filter && !find_filter(node.text)) || (is_test && !find_test(node.text));
  if (is_unknown && !in_choice)
    throw Failure(Cause::Assertion,
                  concat("No ", is_filter ? "filter" : "test", " named ", repr_of_text(node.text), "."), node.line);
  const bool chooses = node.kind == NodeKind::If || node.kind == NodeKind::Choice;
  const bool is_for = node.kind == NodeKind::For;
  for (size_t i = 0; i < node.parts.size(); ++i) {
    const bool is_inner =
        (is_for && i == 2) || (node.kind == NodeKind::SetBlock && i == 1) || node.kind == NodeKind::FilterBlock;
    if (node.parts[i]) require_known(*node.parts[i], chooses || (in_choice && !is_inner));
  }
  if (node.call) require_known_arguments(*node.call, in_choice);
  if (node.macro) require_known(node.macro->defaults, false);
  require_known(node.body, chooses);
  require_known(node.otherwise, chooses);
}

void require_known(const std::vector<NodePtr>& nodes, bool in_choice) {
  for (const NodePtr& node : nodes) require_known(*node, in_choice);
}

}  // namespace

Native find_filter(std::string_view name) {
  static const std::map<std::string_view, Native> filters{
      {"attr", attr},
      {"capitalize", capitalize_},
      {"center", center},
      {"count", length},
      {"d", default_},
      {"default", default_},
      {"e", escape},
      {"escape", escape},
      {"forceescape", force_escape},
      {"format", format},
      {"indent", indent},
      {"length", length},
      {"lower", lower_},
      {"regex_replace", regex_replace},
      {"replace", replace},
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
  if (found != filters.end()) return found->second;
  const Native of_numbers = find_number_filter(name);
  return of_numbers ? of_numbers : find_sequence_filter(name);
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

void require_known_filters(const Tree& tree) { require_known(tree.body, false); }

}  // namespace colossal::text::jinja
