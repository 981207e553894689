// Tables of the config that a program adds to those of the library: of objectives, for example.
//
//   std::vector<run::OwnTable> tables{{"regression", RegressionKeys{}}, {"ranking", RankingKeys{}}};
//   run::read_tables(config, tables);                 // refuses a table or key that none of them has
//   config.tables = run::document_of(tables);         // every key with its value
#pragma once
#include <string>
#include <vector>

#include "colossal/base/own_keys.h"
#include "colossal/run/config.h"

namespace colossal::run {

struct OwnTable {
  std::string name;
  OwnKeys keys;
};

/// Returns true if the config has this table, with or without keys.
bool has_table(const Config& config, const std::string& name);

/// Returns true for the name of a section that every config has, such as "training".
bool is_common_section(const std::string& name);

/// Reads the tables of the config into `known`, all that the program knows.
/// Errors ("config"): a table or key that is unknown, with the nearest name; values out of range; each with its place.
void read_tables(const Config& config, std::vector<OwnTable>& known);

/// For commands that do not use the tables of a program. Errors ("config"): a table that is not in `known`, with the
/// nearest section that every config has.
void refuse_other_tables(const Config& config, const std::vector<std::string>& known);

/// The tables with every key, as the config of a run keeps them.
ConfigDocument document_of(const std::vector<OwnTable>& tables);

}  // namespace colossal::run
