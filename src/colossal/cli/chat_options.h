// Options of commands that render chats.
//
//   ChatOptions options;
//   add_chat_options(app, options, "system message, the first of the conversation");
//   parse(app, arguments);
//   const auto variables = template_variables(options, "chat");
//   const std::optional<text::ChatTemplate> chat_template = model.chat_template(options.template_file);
#pragma once
#include <string>

#include "colossal/base/json.h"
#include "colossal/cli/arguments.h"

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

}  // namespace colossal::cli
