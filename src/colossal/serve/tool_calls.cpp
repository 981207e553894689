#include "colossal/serve/tool_calls.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"

namespace colossal::serve {
namespace {

using nlohmann::ordered_json;

/// A written form of calls. `opening` "" = the answer begins with the call. Each form is a row here.
struct CallForm {
  std::string_view opening, closing;
  bool is_list;           ///< a list of calls, not one call
  const char* arguments;  ///< member that has the arguments
};

constexpr CallForm kMarkedForms[] = {
    {"<tool_call>", "</tool_call>", false, "arguments"},  // Hermes, Qwen
    {"[TOOL_CALLS]", "", true, "arguments"},              // Mistral
};
constexpr CallForm kObjectForm{"", "", false, "parameters"};  // Llama 3
constexpr CallForm kForcedForm{"", "", false, "arguments"};   // forced_call_schema()

constexpr const char* kSpace = " \t\r\n";
constexpr size_t kNone = std::string::npos;

size_t skip_space(std::string_view text, size_t from) {
  return std::min(text.find_first_not_of(kSpace, from), text.size());
}

/// Returns the length of the longest end of `text` that is the beginning of `word`, but not all of it.
size_t begun(std::string_view text, std::string_view word) {
  for (size_t length = std::min(text.size(), word.size() - 1); length > 0; --length)
    if (text.substr(text.size() - length) == word.substr(0, length)) return length;
  return 0;
}

/// Returns true if one text begins with the other.
bool agree(std::string_view a, std::string_view b) {
  const size_t length = std::min(a.size(), b.size());
  return a.substr(0, length) == b.substr(0, length);
}

std::optional<ToolCall> call_of(const ordered_json& json, const CallForm& form,
                                const std::vector<std::string>& functions) {
  if (!json.is_object() || !json.contains("name") || !json.contains(form.arguments)) return {};
  const ordered_json &name = json["name"], &arguments = json[form.arguments];
  if (!name.is_string() || !arguments.is_object()) return {};
  if (std::find(functions.begin(), functions.end(), name.get<std::string>()) == functions.end()) return {};
  return ToolCall{name.get<std::string>(), arguments.dump()};
}

/// Returns the calls that the text of a JSON value describes; none = it is something else.
std::vector<ToolCall> calls_of(std::string_view text, const CallForm& form, const std::vector<std::string>& functions) {
  ordered_json json;
  try {
    json = parse_ordered_json(text, "a call", "serve", {.members = 1024});
  } catch (const Error&) {
    return {};
  }
  if (form.is_list != json.is_array()) return {};
  if (!form.is_list) json = ordered_json::array({std::move(json)});
  std::vector<ToolCall> calls;
  for (const ordered_json& one : json) {
    std::optional<ToolCall> call = call_of(one, form, functions);
    if (!call) return {};
    calls.push_back(std::move(*call));
  }
  return calls;
}

ordered_json schema_of_call(const ordered_json& function, size_t number) {
  ordered_json parameters = ordered_json::object();
  const auto given = function.find("parameters");
  if (given != function.end() && given->is_object()) parameters = *given;
  if (given == function.end() || given->is_null())
    parameters = {{"type", "object"}, {"properties", ordered_json::object()}, {"additionalProperties", false}};
  const auto has = [&](const char* keyword) { return parameters.contains(keyword); };
  if (!has("type") && !has("$ref") && !has("anyOf") && !has("oneOf") && !has("allOf")) parameters["type"] = "object";
  // References such as # and #/$defs/name start at the nearest schema with an $id, which may have no $ref beside it.
  if (!has("$id") && !(has("$ref") && has("allOf")) && parameters.dump().find("\"$ref\"") != kNone) {
    if (has("$ref")) parameters["allOf"] = ordered_json::array({{{"$ref", parameters["$ref"]}}});
    parameters.erase("$ref");
    parameters["$id"] = concat("tool-", number);
  }
  return {{"type", "object"},
          {"properties", {{"name", {{"const", function["name"]}}}, {"arguments", std::move(parameters)}}},
          {"required", {"name", "arguments"}},
          {"additionalProperties", false}};
}

}  // namespace

struct ToolCallReader::Opening {
  const CallForm* form = nullptr;
  size_t at = kNone;
};

bool ToolCallReader::JsonEnd::advance(std::string_view text) {
  while (at < text.size()) {
    const char c = text[at++];
    if (member == 0 && at > 1 && std::string_view(kSpace).find(c) == kNone) member = at - 1;
    if (in_text) {
      if (!is_escaped && c == '"') in_text = false;
      is_escaped = !is_escaped && c == '\\';
      continue;
    }
    if (c == '"') in_text = true;
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth == 0) return true;
  }
  return false;
}

// Returns the first opening in waiting_. Does not search after one that waiting_ begins with, because such a call may
// be long. Other text does not wait.
ToolCallReader::Opening ToolCallReader::find_opening() {
  spaces_ = skip_space(waiting_, spaces_);
  const std::string_view text = std::string_view(waiting_).substr(spaces_);
  if (options_.is_forced) return text.starts_with('{') && !has_content_ ? Opening{&kForcedForm, spaces_} : Opening{};
  if (text.starts_with('{') && !has_content_) return {&kObjectForm, spaces_};
  for (const CallForm& form : kMarkedForms)
    if (text.starts_with(form.opening)) return {&form, spaces_};
  Opening first;
  for (const CallForm& form : kMarkedForms)
    if (const size_t at = waiting_.find(form.opening, spaces_); at < first.at) first = {&form, at};
  return first;
}

// Decides whether waiting_, which has white space before the opening, begins with a call, and if so removes the call.
ToolCallReader::Found ToolCallReader::read_call(const Opening& opening, bool is_end, CallsAndContent& out) {
  const CallForm& form = *opening.form;
  const Found if_cut_off = is_end ? Found::kNoCall : Found::kUndecided;
  Begun& known = begun_;
  known.value = skip_space(waiting_, std::max(known.value, opening.at + form.opening.size()));
  if (known.value == waiting_.size()) return if_cut_off;
  const std::string_view json = std::string_view(waiting_).substr(known.value);
  if (json.front() != (form.is_list ? '[' : '{')) return Found::kNoCall;
  const bool is_complete = known.json.is_complete() || known.json.advance(json);
  // A call of a form without an opening begins with its name, and other JSON need not wait for its end.
  if (form.opening.empty() && known.json.member > 0 && !agree(json.substr(known.json.member), "\"name\""))
    return Found::kNoCall;
  if (!is_complete) return if_cut_off;
  size_t end = known.value + known.json.at;
  if (!form.closing.empty()) {
    known.closing = skip_space(waiting_, std::max(known.closing, end));
    const std::string_view rest = std::string_view(waiting_).substr(known.closing, form.closing.size());
    if (rest != form.closing) {
      if (!agree(rest, form.closing)) return Found::kNoCall;
      if (!is_end) return Found::kUndecided;
    }
    end = known.closing + rest.size();
  }
  std::vector<ToolCall> calls = calls_of(json.substr(0, known.json.at), form, options_.functions);
  if (calls.empty()) return Found::kNoCall;
  for (ToolCall& call : calls) {
    if (options_.only_one && calls_ > 0) break;
    out.calls.push_back(std::move(call));
    ++calls_;
  }
  drop(end);
  after_call_ = true;
  return Found::kCall;
}

void ToolCallReader::drop(size_t bytes) {
  if (bytes == 0) return;  // the call is still being read
  waiting_.erase(0, bytes);
  spaces_ = 0;
  begun_ = {};
}

// Returns the first bytes of waiting_ as content.
void ToolCallReader::pass(size_t bytes, CallsAndContent& out) {
  if (bytes == 0) return;
  const std::string_view text = std::string_view(waiting_).substr(0, bytes);
  if (text.find_first_not_of(kSpace) != kNone) has_content_ = true;
  out.content += text;
  after_call_ = false;
  drop(bytes);
}

CallsAndContent ToolCallReader::read(bool is_end) {
  CallsAndContent out;
  while (!waiting_.empty()) {
    if (after_call_) drop(skip_space(waiting_, 0));
    const Opening opening = find_opening();
    if (spaces_ == waiting_.size() && !is_end) return out;
    if (!opening.form) break;
    const size_t content = opening.at == spaces_ ? 0 : waiting_.find_last_not_of(kSpace, opening.at - 1) + 1;
    pass(content, out);
    const Opening here{opening.form, opening.at - content};
    const Found found = read_call(here, is_end, out);
    if (found == Found::kUndecided) return out;
    if (found == Found::kNoCall) pass(here.at + std::max<size_t>(here.form->opening.size(), 1), out);
  }
  size_t held = 0;
  if (!is_end) {
    if (!options_.is_forced)
      for (const CallForm& form : kMarkedForms) held = std::max(held, begun(waiting_, form.opening));
    const size_t last = waiting_.find_last_not_of(kSpace, waiting_.size() - held - 1);
    held = waiting_.size() - (held == waiting_.size() || last == kNone ? 0 : last + 1);
  }
  pass(waiting_.size() - held, out);
  return out;
}

CallsAndContent ToolCallReader::push(std::string_view text) {
  waiting_ += text;
  return read(false);
}

CallsAndContent ToolCallReader::finish() { return read(true); }

std::vector<int64_t> call_tokens(const text::Tokenizer& tokenizer) {
  std::vector<int64_t> ids;
  for (const CallForm& form : kMarkedForms)
    for (const std::string_view word : {form.opening, form.closing}) {
      const std::vector<int64_t> encoded = tokenizer.encode(word);
      if (encoded.size() == 1 && tokenizer.piece(encoded[0]).empty()) ids.push_back(encoded[0]);
    }
  return ids;
}

std::string SpelledTokens::piece(int64_t id) const {
  const bool is_spelled = std::find(spelled_.begin(), spelled_.end(), id) != spelled_.end();
  return is_spelled ? tokenizer_.spelling(id) : tokenizer_.piece(id);
}

std::string forced_call_schema(const ordered_json& tools, const ToolChoice& choice) {
  ordered_json calls = ordered_json::array();
  for (const ordered_json& tool : tools) {
    const ordered_json& function = tool.at("function");
    if (choice.kind != ToolChoice::kNamed || function.at("name") == choice.name)
      calls.push_back(schema_of_call(function, calls.size()));
  }
  return calls.size() == 1 ? calls[0].dump() : ordered_json{{"anyOf", std::move(calls)}}.dump();
}

}  // namespace colossal::serve
