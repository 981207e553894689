#include "colossal/cli/chat_options.h"

#include <CLI/CLI.hpp>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"

namespace colossal::cli {

void add_chat_options(CLI::App& app, ChatOptions& options, const std::string& system_help) {
  app.add_option("--system", options.system, system_help);
  app.add_option("--chat-template", options.template_file, "Jinja file to use instead of the folder's template");
  app.add_option("--variables", options.variables,
                 "variables of the template, as a JSON object: '{\"enable_thinking\": false}'");
}

nlohmann::ordered_json template_variables(const ChatOptions& options, const char* command) {
  if (options.variables.empty()) return nlohmann::ordered_json::object();
  nlohmann::ordered_json variables = parse_ordered_json(options.variables, "--variables", command);
  require(variables.is_object(), command, "--variables must be a JSON object: got ", options.variables);
  return variables;
}

}  // namespace colossal::cli
