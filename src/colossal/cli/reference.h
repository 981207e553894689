// `colossal help --markdown` and `colossal help config --markdown`: docs/reference/cli.md and docs/reference/config.md.
#pragma once
#include <vector>

#include "colossal/base/config.h"
#include "colossal/cli/commands.h"

namespace colossal::cli {

/// Prints every command with its options as Markdown. A command describes itself if it is run with kMarkdownHelp.
int print_command_reference(const std::vector<Command>& commands);

/// Prints every key of a config file as Markdown, then the keys of [model] that single architectures of `program`
/// have (null: those of the library), and the keys of its own tables.
int print_config_reference(const run::Program* program);

/// The keys of the tables that the objectives and adapters of `program` have. A null program, the library's own, has no
/// such tables.
std::vector<KeyHelp> own_table_keys(const run::Program* program);
/// The names of these tables, also of those without keys.
std::vector<std::string> own_table_names(const run::Program* program);

}  // namespace colossal::cli
