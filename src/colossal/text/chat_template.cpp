#include "colossal/text/chat_template.h"

#include <cctype>

#include "colossal/base/checksum.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/text/jinja/interpreter.h"
#include "colossal/text/jinja/json_value.h"
#include "colossal/text/tokenizer.h"

namespace colossal::text {
namespace {

using jinja::Budget;
using jinja::Value;
using nlohmann::ordered_json;

const char* remedy(jinja::Cause cause) {
  switch (cause) {
    case jinja::Cause::Syntax:
    case jinja::Cause::Assertion:
      return "fix the template";
    case jinja::Cause::Refused:
      return "the template refuses these messages: change them";
    case jinja::Cause::Limit:
      return "the template is hostile or its input too large; otherwise raise the limit";
    case jinja::Cause::Unsupported:
      return "docs/reference/chat-templates.md lists what is supported";
    default:
      return "the template does not fit these messages, tools or variables: change either";
  }
}

std::string message_of(const std::string& name, const jinja::Failure& failure) {
  const std::string line = failure.line > 0 ? concat(", line ", failure.line) : "";
  const bool has_name = failure.cause != jinja::Cause::Refused && failure.cause != jinja::Cause::Limit &&
                        failure.cause != jinja::Cause::Unsupported;
  return concat(printable(name), line, ": ", has_name ? concat(cause_name(failure.cause), ": ") : "",
                printable(failure.message), "; ", remedy(failure.cause));
}

/// Fields in which a message's reasoning is passed; templates read the first or the second.
constexpr const char* kReasoning[] = {"reasoning_content", "thinking", "reasoning"};

/// Returns a message as transformers passes it to templates: the reasoning is stored under both names that templates
/// read.
Value message_value(Budget& budget, const ordered_json& message, bool keeps_null) {
  const ordered_json* reasoning = nullptr;
  for (const char* field : kReasoning) {
    const auto found = message.find(field);
    if (found != message.end() && !found->is_null() && !reasoning) reasoning = &*found;
  }
  jinja::Dict dict;
  if (reasoning) dict.set(make_text(budget, "thinking"), from_json(budget, *reasoning));
  for (const auto& [key, value] : message.items())
    if (keeps_null || !value.is_null()) dict.set(make_text(budget, key), from_json(budget, value, 2));
  if (reasoning) dict.set(make_text(budget, "reasoning_content"), from_json(budget, *reasoning));
  return make_dict(budget, std::move(dict));
}

void require_objects(const ordered_json& list, const char* what) {
  require(list.is_array(), "chat template", what, " must be a list, got ", list.type_name());
  for (const auto& item : list)
    require(item.is_object(), "chat template", what, " must be objects, got ", item.type_name());
}

Value messages_value(Budget& budget, const Chat& chat) {
  std::vector<Value> messages;
  for (const auto& message : chat.messages) messages.push_back(message_value(budget, message, chat.keeps_null));
  return make_items(budget, std::move(messages));
}

}  // namespace

TemplateError::TemplateError(const std::string& name, const jinja::Failure& failure)
    : Error("chat template", message_of(name, failure)),
      line_(failure.line),
      kind_(cause_name(failure.cause)),
      reason_(failure.message),
      nameless_message_(message_of("the chat template", failure)) {}

ChatTemplate::ChatTemplate(const std::string& source, const std::string& name, ordered_json variables,
                           const TemplateLimits& limits)
    : variables_(std::move(variables)), where_(name), limits_(limits) {
  add("default", name, source);
}

void ChatTemplate::add(const std::string& name, const std::string& shown_name, const std::string& source) {
  require(valid_utf8(source) == source, "chat template", printable(shown_name), " must be UTF-8");
  try {
    templates_[name] = {shown_name, std::make_shared<const jinja::Tree>(jinja::parse(source, limits_)), source};
  } catch (const jinja::Failure& failure) {
    throw TemplateError(shown_name, failure);
  }
}

std::vector<std::string> ChatTemplate::names() const {
  std::vector<std::string> names;
  for (const auto& one : templates_) names.push_back(one.first);
  return names;
}

std::string ChatTemplate::source() const {
  const auto found = templates_.find("default");
  return found == templates_.end() ? "" : found->second.source;
}

std::string ChatTemplate::checksum() const {
  ordered_json all = {variables_};
  for (const auto& [name, one] : templates_) all.push_back({name, one.source});
  return colossal::checksum(all.dump());
}

const ChatTemplate::Template& ChatTemplate::choose(const Chat& chat) const {
  std::string name = chat.template_name;
  if (name.empty()) name = !chat.tools.is_null() && templates_.count("tool_use") ? "tool_use" : "default";
  const auto found = templates_.find(name);
  if (found != templates_.end()) return found->second;
  throw Error("chat template",
              concat(printable(where_), " has no template named ", printable(name), "; name one of these: ",
                     join(templates_, ", ", [](const auto& one) { return printable(one.first); })));
}

bool ChatTemplate::mentions(const Chat& chat, std::string_view word) const {
  const std::string& source = choose(chat).source;
  const auto is_letter = [&source](size_t at) {
    return at < source.size() && (std::isalnum(static_cast<unsigned char>(source[at])) != 0 || source[at] == '_');
  };
  for (size_t at = source.find(word); at != std::string::npos; at = source.find(word, at + 1))
    if ((at == 0 || !is_letter(at - 1)) && !is_letter(at + word.size())) return true;
  return false;
}

RenderedChat ChatTemplate::render(const Chat& chat) const {
  const Template& chosen = choose(chat);
  require_objects(chat.messages, "messages");
  if (!chat.tools.is_null()) require_objects(chat.tools, "tools");
  if (!chat.documents.is_null()) require_objects(chat.documents, "documents");
  require(chat.variables.is_object(), "chat template", "variables must be an object, got ", chat.variables.type_name());
  try {
    jinja::Interpreter interpreter(*chosen.tree, limits_, chat.now);
    Budget& budget = interpreter.budget();
    for (const ordered_json* variables : {&variables_, &chat.variables})
      for (const auto& [name, value] : variables->items()) interpreter.set_variable(name, from_json(budget, value));
    interpreter.set_variable("messages", messages_value(budget, chat));
    interpreter.set_variable("tools", from_json(budget, chat.tools));
    interpreter.set_variable("documents", from_json(budget, chat.documents));
    interpreter.set_variable("add_generation_prompt", Value::boolean(chat.add_generation_prompt));
    jinja::Rendered rendered = interpreter.render();
    RenderedChat out{std::move(rendered.text), {}};
    for (const jinja::RenderedSpan& span : rendered.generated) out.assistant.push_back({span.begin, span.end});
    return out;
  } catch (const jinja::Failure& failure) {
    throw TemplateError(chosen.shown_name, failure);
  }
}

Chat parse_chat(std::string_view text) {
  ordered_json json = parse_ordered_json(text, "a chat must be JSON, an object with \"messages\" or a list", "chat");
  Chat chat;
  if (json.is_array()) {
    chat.messages = std::move(json);
    return chat;
  }
  require(json.is_object() && json.contains("messages"), "chat",
          "a chat must be an object with \"messages\", or a list of messages");
  chat.messages = std::move(json["messages"]);
  if (json.contains("tools")) chat.tools = std::move(json["tools"]);
  if (json.contains("documents")) chat.documents = std::move(json["documents"]);
  if (json.contains("chat_template_kwargs")) chat.variables = std::move(json["chat_template_kwargs"]);
  if (json.contains("add_generation_prompt")) {
    require(json["add_generation_prompt"].is_boolean(), "chat", "\"add_generation_prompt\" must be true or false");
    chat.add_generation_prompt = json["add_generation_prompt"].get<bool>();
  }
  return chat;
}

}  // namespace colossal::text
