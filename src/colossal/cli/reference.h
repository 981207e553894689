// `colossal help --markdown` and `colossal help config --markdown`: docs/reference/cli.md and docs/reference/config.md.
#pragma once
#include <vector>

#include "colossal/cli/commands.h"

namespace colossal::cli {

/// Prints every command with its options as Markdown. A command describes itself if it is run with kMarkdownHelp.
int print_command_reference(const std::vector<Command>& commands);

/// Prints every key of a config file as Markdown, then the keys of [model] that single architectures of `models` have
/// (null: those of the library).
int print_config_reference(const models::Registry* models);

}  // namespace colossal::cli
