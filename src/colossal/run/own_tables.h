// Tables of the config that a program adds to the library's sections, such as tables of objectives.
//
//   std::vector<run::OwnTable> tables{{"regression", RegressionKeys{}}, {"ranking", RankingKeys{}}};
//   run::read_tables(config, tables);                 // refuses a table or key that none of them has
//   config.tables = run::document_of(tables);         // every key with its value
#pragma once
#include <string>
#include <vector>

#include "colossal/base/own_keys.h"
#include "colossal/run/config.h"
#include "colossal/run/data_keys.h"

namespace colossal::run {

/// A table of the config: its name, and its keys with their values or defaults.
struct OwnTable {
  std::string name;
  OwnKeys keys;
};

/// The tables and the keys of [data] that an objective reads, with their values.
class OwnTables {
 public:
  OwnTables() = default;
  explicit OwnTables(std::vector<OwnTable> tables, OwnKeys data = {})
      : tables_(std::move(tables)), data_(std::move(data)) {}
  bool has(const std::string& name) const { return find(name) != nullptr; }
  /// Returns the keys of a table. Errors ("objective"): no table of that name; ("model") keys of another type.
  template <class Keys>
  Keys as(const std::string& name) const {
    const OwnTable* const table = find(name);
    require(table != nullptr, "objective", "an objective reads only tables that its row names: got [", name,
            "]; add it to ObjectiveRow::tables");
    return table->keys.as<Keys>();
  }
  /// Returns the keys of [data] that only some objectives have (run/data_keys.h). Errors ("model"): keys of another
  /// type.
  template <class Keys>
  Keys data() const {
    return data_.as<Keys>();
  }
  const std::vector<OwnTable>& all() const { return tables_; }

 private:
  const OwnTable* find(const std::string& name) const;
  std::vector<OwnTable> tables_;
  OwnKeys data_;
};

/// Returns true if the config has this table, with or without keys.
bool has_table(const Config& config, const std::string& name);

/// Returns true for the name of a section that every config has, such as "training".
bool is_common_section(const std::string& name);

/// Reads the tables of the config into `known`, which must list all tables of the program.
/// Errors ("config"): an unknown table or key (the message names the nearest); values out of range. Each message names
///                    the place.
void read_tables(const Config& config, std::vector<OwnTable>& known);

/// Checks the tables of a config and its keys of [data] for commands that have no objective. `tables`: the tables of
/// the program; their keys are not read. `data`: the keys of [data] of its objectives. Errors ("config"): a table that
/// is not in `tables` (the message names the nearest section that every config has); errors of
/// refuse_other_data_keys().
void refuse_other_keys(const Config& config, const std::vector<std::string>& tables, const std::vector<DataKeys>& data);

/// Returns the tables with every key, in the form in which a run saves its config.
ConfigDocument document_of(const std::vector<OwnTable>& tables);

}  // namespace colossal::run
