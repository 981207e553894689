#include "colossal/serve/written_calls.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/serve/call_forms.h"

namespace colossal::serve {
namespace {

using nlohmann::ordered_json;

constexpr const char* kBlank = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlank);
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

bool consume(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

/// Removes the text up to `end`, and `end`. Returns what was before `end`; no value if there is no `end`.
std::optional<std::string_view> take_until(std::string_view& text, std::string_view end) {
  const size_t at = text.find(end);
  if (at == std::string_view::npos) return {};
  const std::string_view taken = text.substr(0, at);
  text.remove_prefix(at + end.size());
  return taken;
}

/// Escapes line breaks and other control characters in strings. JSON forbids them there, but their meaning is certain,
/// unless a backslash precedes them.
std::string with_escaped_breaks(std::string_view json) {
  std::string out;
  bool in_text = false, is_escaped = false;
  for (const char c : json) {
    if (in_text && !is_escaped && static_cast<unsigned char>(c) < 0x20) {
      constexpr const char* kHex = "0123456789abcdef";
      out += concat("\\u00", kHex[c >> 4], kHex[c & 15]);
      continue;
    }
    if (c == '"' && !is_escaped) in_text = !in_text;
    is_escaped = in_text && !is_escaped && c == '\\';
    out += c;
  }
  return out;
}

/// Returns the value; null if the text is not JSON.
ordered_json json_or_null(std::string_view text) {
  try {
    return parse_ordered_json(with_escaped_breaks(text), "a call", "serve", {.members = 1024});
  } catch (const Error&) {
    return {};
  }
}

/// Returns the member with one of two names; null if it has neither, or both.
const ordered_json* either(const ordered_json& json, const char* name, const char* other) {
  const auto first = json.find(name), second = json.find(other);
  if ((first != json.end()) == (second != json.end())) return nullptr;
  return first != json.end() ? &*first : &*second;
}

std::optional<ToolCall> call_of(const ordered_json& json, bool is_marked, const ToolCallOptions& options) {
  if (!json.is_object()) return {};
  const ordered_json* name = either(json, "name", "function");
  if (name && name->is_object()) return call_of(*name, true, options);  // {"type": "function", "function": {...}}
  ToolCall call;
  ordered_json arguments;
  if (name && name->is_string()) {
    call.name = name_of_function(name->get_ref<const std::string&>(), options);
    const bool has_some = json.contains("arguments") || json.contains("parameters");
    const ordered_json* given = either(json, "arguments", "parameters");
    const bool is_typed = json.contains("type") && json["type"] == "function";
    if (given ? false : has_some || !(is_marked || is_typed)) return {};
    if (given) arguments = *given;
  } else if (!name && is_marked && json.size() == 1 && json.front().is_object()) {
    call.name = name_of_function(json.begin().key(), options);
    arguments = json.front();
  }
  if (call.name.empty()) return {};
  if (arguments.is_string()) {
    const std::string text(trimmed(arguments.get_ref<const std::string&>()));
    arguments = text.empty() ? ordered_json() : json_or_null(text);
    if (!text.empty() && !arguments.is_object()) return {};
  }
  if (arguments.is_null()) arguments = ordered_json::object();
  if (!arguments.is_object()) return {};
  call.arguments = arguments.dump();
  return call;
}

/// Adds the names of the types that a schema allows.
void add_types(const ordered_json& schema, std::set<std::string>& types, int depth = 0) {
  if (!schema.is_object() || depth > 4) return;
  for (const auto& [keyword, value] : schema.items()) {
    if (keyword == "type" && value.is_string()) types.insert(value.get<std::string>());
    if (keyword == "type" && value.is_array())
      for (const ordered_json& one : value)
        if (one.is_string()) types.insert(one.get<std::string>());
    if (keyword == "enum" && value.is_array())
      for (const ordered_json& one : value) types.insert(one.is_number() ? "number" : one.type_name());
    if ((keyword == "anyOf" || keyword == "oneOf") && value.is_array())
      for (const ordered_json& one : value) add_types(one, types, depth + 1);
  }
}

/// Returns the types that the parameters of a function allow for a member; empty = unknown.
std::set<std::string> types_of_parameter(const std::string& function, const std::string& name,
                                         const ToolCallOptions& options) {
  std::set<std::string> types;
  if (!options.tools) return types;
  for (const ordered_json& tool : *options.tools) {
    const ordered_json* own = &tool.at("function");
    if (own->value("name", "") != function) continue;
    for (const std::string& step : {std::string("parameters"), std::string("properties"), name}) {
      const auto found = own->find(step);  // none in a value that is no object
      if (found == own->end()) return types;
      own = &*found;
    }
    add_types(*own, types);
  }
  return types;
}

/// Returns true if a schema that allows `types` may allow the value.
bool is_of(const std::set<std::string>& types, const ordered_json& value) {
  return types.contains(value.type_name()) || (value.is_number_integer() && types.contains("integer"));
}

/// Returns the value that a tag holds. Text stays text if it is not JSON, or if text is allowed and JSON of its type is
/// not.
ordered_json value_of(std::string_view text, std::string_view attributes, const std::set<std::string>& types) {
  for (const std::string_view line_break : {"\r\n", "\n"})
    if (consume(text, line_break)) break;
  if (text.ends_with('\n')) text.remove_suffix(text.ends_with("\r\n") ? 2 : 1);
  if (text.starts_with("<![CDATA[") && text.ends_with("]]>")) text = text.substr(9, text.size() - 12);
  const bool is_text = attributes.find("string=\"true\"") != std::string_view::npos ||
                       attributes.find("type=\"string\"") != std::string_view::npos;
  const bool is_json = attributes.find("string=\"false\"") != std::string_view::npos;
  const bool allows_text = types.empty() || types.contains("string");
  const ordered_json value(std::string{text});
  if (is_text || (!is_json && types.size() == 1 && allows_text)) return value;
  constexpr std::pair<const char*, const char*> kPython[] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
  std::string_view json = trimmed(text);
  for (const auto& [python, spelling] : kPython)
    if (json == python) json = spelling;
  ordered_json parsed = json_or_null(json);
  if (parsed.is_null() && json != "null") return value;
  const bool fits = !parsed.is_string() && (types.empty() || is_of(types, parsed));
  return fits || !allows_text || is_json ? parsed : value;
}

/// Removes the first call from `rest`.
std::optional<ToolCall> take_tagged(std::string_view& rest, const TagSyntax& tags, const ToolCallOptions& options) {
  if (!consume(rest, tags.call)) return {};
  std::optional<std::string_view> name;
  if (tags.call.empty()) {
    name = rest.substr(0, rest.find_first_of("<\n"));
    rest.remove_prefix(name->size());
  } else {
    name = take_until(rest, tags.name_end);
    if (!take_until(rest, tags.open_end)) return {};
  }
  ToolCall call{.name = name ? name_of_function(trimmed(*name), options) : "", .arguments = ""};
  if (call.name.empty()) return {};
  ordered_json arguments = ordered_json::object();
  for (rest = trimmed(rest); consume(rest, tags.key); rest = trimmed(rest)) {
    const auto key = take_until(rest, tags.key_end);
    const auto attributes = key ? take_until(rest, tags.value) : key;
    const auto text = attributes ? take_until(rest, tags.value_end) : attributes;
    if (!text) return {};
    const std::string own(trimmed(*key));
    arguments[own] = value_of(*text, *attributes, types_of_parameter(call.name, own, options));
  }
  if (tags.call.empty() ? !rest.empty() : !consume(rest, tags.call_end)) return {};
  call.arguments = arguments.dump();
  return call;
}

}  // namespace

std::vector<ToolCall> json_calls(std::string_view json, bool is_marked, const ToolCallOptions& options) {
  ordered_json list = json_or_null(json);
  if (!list.is_array()) list = ordered_json::array({std::move(list)});
  std::vector<ToolCall> calls;
  for (const ordered_json& one : list) {
    std::optional<ToolCall> call = call_of(one, is_marked, options);
    if (!call) return {};
    calls.push_back(std::move(*call));
  }
  return calls;
}

std::vector<ToolCall> named_call(std::string_view head, std::string_view separator, std::string_view arguments,
                                 const ToolCallOptions& options) {
  const size_t at = head.find(separator);
  if (at == std::string_view::npos) return {};
  std::string_view name = head.substr(0, at);
  std::string_view after = trimmed(head.substr(at + separator.size()));  // DeepSeek-V3: function SEPARATOR NAME ```json
  if (after.ends_with("```json")) after.remove_suffix(7);
  if (!trimmed(after).empty()) name = after;
  if (const size_t id = name.find("<|tool_call:name|>"); id != std::string_view::npos) name = name.substr(id + 18);
  name = trimmed(name);
  name = name.substr(0, std::min(name.find_first_of(" <"), name.find("[CALL_ID]")));
  ToolCall call{.name = name_of_function(name, options), .arguments = ""};
  const ordered_json json = json_or_null(arguments);
  if (call.name.empty() || !json.is_object()) return {};
  call.arguments = json.dump();
  return {std::move(call)};
}

std::vector<ToolCall> tagged_calls(std::string_view section, const ToolCallOptions& options) {
  section = trimmed(section);
  for (const TagSyntax& tags : kTagSyntaxes) {
    if (!section.starts_with(tags.call)) continue;
    std::vector<ToolCall> calls;
    for (std::string_view rest = section; !rest.empty(); rest = trimmed(rest)) {
      std::optional<ToolCall> call = take_tagged(rest, tags, options);
      if (!call) return {};
      calls.push_back(std::move(*call));
    }
    return calls;
  }
  return {};
}

bool may_be_tagged(std::string_view section, const ToolCallOptions& options) {
  const auto agrees = [section](std::string_view begin) { return !begin.empty() && agree(section, begin); };
  return std::any_of(options.functions.begin(), options.functions.end(), agrees) ||
         std::any_of(std::begin(kTagSyntaxes), std::end(kTagSyntaxes),
                     [&](const TagSyntax& tags) { return agrees(tags.call); });
}

std::string name_of_function(std::string_view written, const ToolCallOptions& options) {
  const auto is_known = [&](std::string_view name) {
    return std::find(options.functions.begin(), options.functions.end(), name) != options.functions.end();
  };
  if (is_known(written)) return std::string(written);
  consume(written, "functions.");
  const size_t colon = written.rfind(':');
  if (colon != std::string_view::npos && written.find_first_not_of("0123456789", colon + 1) == std::string_view::npos)
    written = written.substr(0, colon);
  return is_known(written) ? std::string(written) : "";
}

bool agree(std::string_view a, std::string_view b) {
  const size_t length = std::min(a.size(), b.size());
  return a.substr(0, length) == b.substr(0, length);
}

}  // namespace colossal::serve
