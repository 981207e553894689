// Prints the pages of `colossal help --markdown` and `colossal help config --markdown`: docs/reference/cli.md and
// docs/reference/config.md.
#pragma once
#include <vector>

#include "colossal/base/config.h"
#include "colossal/cli/commands.h"
#include "colossal/run/data_keys.h"

namespace colossal::cli {

/// Prints every command with its options as Markdown. A command prints its own section if it is run with kMarkdownHelp.
int print_command_reference(const std::vector<Command>& commands);

/// Prints every key of a config file as Markdown. Then prints the keys of [data] that only some objectives of `program`
/// have, and the keys of [model] that only some of its architectures have (null = the built-in ones). Last come the
/// keys of the program's own tables.
int print_config_reference(const run::Program* program);

/// Returns the keys of the tables that the objectives and adapters of `program` have. A null program is the
/// library's own.
std::vector<KeyHelp> own_table_keys(const run::Program* program);
/// Returns the names of these tables, including tables without keys.
std::vector<std::string> own_table_names(const run::Program* program);
/// Returns the keys of [data] of each objective of `program`; null = the library's.
std::vector<run::DataKeys> own_data_keys(const run::Program* program);

}  // namespace colossal::cli
