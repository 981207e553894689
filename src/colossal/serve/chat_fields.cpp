#include <set>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/serve/generation_fields.h"
#include "colossal/serve/refused_fields.h"

namespace colossal::serve {
namespace {

using nlohmann::ordered_json;

/// Joins the parts of a message's content.
std::string joined_parts(const ordered_json& parts, const std::string& path) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const BodyFields fields(parts[i], concat(path, "[", i, "]"));
    const std::string type = fields.required_text("type");
    if (type != "text")
      refuse(fields.path_of("type"), "\"text\", because this server reads no images, audio or files", type);
    text += fields.required_text("text");
  }
  return text;
}

ordered_json parsed_text(const ordered_json& text, const std::string& path, const ReaderLimits& limits) {
  try {
    return parse_ordered_json(text.get_ref<const std::string&>(), path, "serve",
                              {.depth = limits.depth, .members = limits.members});
  } catch (const Error& error) {
    throw http::RequestError(400, error.message(), path);
  }
}

/// Replaces the arguments of earlier calls, which OpenAI writes as a text that holds JSON, by that JSON: templates
/// write it themselves.
void read_earlier_calls(ordered_json& calls, const std::string& path, const ReaderLimits& limits) {
  if (!calls.is_array()) refuse(path, "a list", calls);
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string place = concat(path, "[", i, "]");
    const ordered_json* function = BodyFields(calls[i], place).object("function");
    if (!function) refuse(place + ".function", "an object", nullptr);
    const BodyFields fields(*function, place + ".function");
    fields.required_text("name");
    ordered_json& arguments = calls[i]["function"]["arguments"];
    if (arguments.is_null() || arguments == "") arguments = ordered_json::object();
    if (arguments.is_string()) arguments = parsed_text(arguments, fields.path_of("arguments"), limits);
    if (!arguments.is_object()) refuse(fields.path_of("arguments"), "a JSON object", arguments);
  }
}

ordered_json read_message(ordered_json message, const std::string& path, const ReaderLimits& limits) {
  const BodyFields fields(message, path);
  const std::string role = fields.required_text("role");
  const ordered_json* content = fields.find("content");
  const bool may_lack = role == "assistant";  // calls alone
  if (content && content->is_array())
    message["content"] = joined_parts(*content, fields.path_of("content"));
  else if (content ? !content->is_string() : !may_lack)
    refuse(fields.path_of("content"), "a text or a list of {\"type\": \"text\"} parts",
           content ? *content : ordered_json());
  // Many templates join the content to other text, or look into it, and fail without one.
  if (may_lack && !content) message["content"] = "";
  if (fields.find("tool_calls")) read_earlier_calls(message["tool_calls"], fields.path_of("tool_calls"), limits);
  // Some templates take an empty list for calls.
  if (message.contains("tool_calls") && message["tool_calls"].empty()) message.erase("tool_calls");
  return message;
}

void check_tool(const ordered_json& tool, const std::string& path, std::set<std::string>& names) {
  const BodyFields fields(tool, path);
  const std::string type = fields.text("type").value_or("function");
  if (type != "function") refuse(fields.path_of("type"), "\"function\"", type);
  const ordered_json* object = fields.object("function");
  if (!object) refuse(fields.path_of("function"), "an object", nullptr);
  const BodyFields function(*object, fields.path_of("function"));
  const std::string name = function.required_text("name");
  constexpr const char* kNameCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.";
  if (name.empty() || name.size() > 64 || name.find_first_not_of(kNameCharacters) != std::string::npos)
    refuse(function.path_of("name"), "1 to 64 letters, digits, \"_\", \"-\" or \".\"", name);
  if (!names.insert(name).second) refuse(function.path_of("name"), "different from the names of other tools", name);
  function.text("description");
  const ordered_json* parameters = function.object("parameters");
  if (!parameters) return;
  const BodyFields schema(*parameters, function.path_of("parameters"));
  if (const ordered_json* kind = schema.find("type"); kind && kind->is_string() && *kind != "object")
    refuse(schema.path_of("type"), "\"object\", because arguments have names", *kind);
}

/// Adds the variables that the request sets.
void read_variables(const BodyFields& fields, ChatRequest& request) {
  const auto set = [&request](const std::string& name, const ordered_json& value, const std::string& param) {
    // The template always gets these from the request itself.
    const bool is_own = name == "messages" || name == "tools" || name == "documents" || name == "add_generation_prompt";
    if (is_own && !(name == "add_generation_prompt" && value == true))
      throw http::RequestError(400, concat(param, " must not be a variable that the server sets: got ", name,
                                           "; leave it out"),
                               param);
    request.variables[name] = value;
    request.variable_params[name] = param;
  };
  if (const ordered_json* variables = fields.object("chat_template_kwargs"))
    for (const auto& [name, value] : variables->items())
      if (!value.is_null()) set(name, value, "chat_template_kwargs." + name);
  if (const auto effort = fields.text("reasoning_effort")) set("reasoning_effort", *effort, "reasoning_effort");
}

}  // namespace

void read_chat_input(const BodyFields& fields, const ReaderOptions& reader, ChatRequest& request) {
  const ordered_json* messages = fields.list("messages");
  if (!messages || messages->empty())
    refuse("messages", "a list of at least one message", messages ? *messages : ordered_json());
  for (size_t i = 0; i < messages->size(); ++i) {
    const std::string path = concat("messages[", i, "]");
    refuse_fields(BodyFields((*messages)[i], path), kMessages);
    request.messages.push_back(read_message((*messages)[i], path, reader.limits));
  }
  const ordered_json* tools = fields.list("tools");
  if (tools && !tools->empty()) {
    std::set<std::string> names;
    for (size_t i = 0; i < tools->size(); ++i) check_tool((*tools)[i], concat("tools[", i, "]"), names);
    request.tools = *tools;
  }
  request.variables = reader.defaults.variables;
  read_variables(fields, request);
}

}  // namespace colossal::serve
