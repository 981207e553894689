// Options of commands that render chats.
//
//   ChatOptions options;
//   add_chat_options(app, options, "system message, the first of the conversation");
//   parse(app, arguments);
//   const auto variables = template_variables(options, "chat");
//   const std::optional<text::ChatTemplate> chat_template = find_template(options, from);
#pragma once
#include <optional>
#include <string>

#include "colossal/base/json.h"
#include "colossal/cli/arguments.h"
#include "colossal/text/chat_template.h"

namespace colossal::cli {

struct ChatOptions {
  std::string system;         ///< system message; "" = none
  std::string template_file;  ///< Jinja file; "" = the template of the model
  std::string variables;      ///< a JSON object with variables of the template; "" = none
};

/// Adds --system with the help `system_help`, --chat-template and --variables.
void add_chat_options(CLI::App& app, ChatOptions& options, const std::string& system_help);
/// Returns the variables of the template. Errors (of `command`): text that is not a JSON object.
nlohmann::ordered_json template_variables(const ChatOptions& options, const char* command);
/// Returns the template of --chat-template, with the special tokens of `model`, or else that of `model`, a folder or
/// GGUF file; nothing if the model has none.
/// Errors: a file that cannot be read; errors of text::ChatTemplate.
std::optional<text::ChatTemplate> find_template(const ChatOptions& options, const std::string& model);

}  // namespace colossal::cli
