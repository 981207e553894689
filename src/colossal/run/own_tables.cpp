#include "colossal/run/own_tables.h"

#include <algorithm>

#include "colossal/base/config.h"

namespace colossal::run {
namespace {

/// The sections that every config has, for suggestions, and the tables of the program.
struct AllSections {
  Config common;
  std::vector<OwnTable>& tables;
  void fields(Fields& f) {
    common.common_fields(f);
    for (OwnTable& table : tables) f.section(table.name.c_str(), table.keys, "");
  }
};

}  // namespace

const OwnTable* OwnTables::find(const std::string& name) const {
  const auto found =
      std::find_if(tables_.begin(), tables_.end(), [&](const OwnTable& table) { return table.name == name; });
  return found == tables_.end() ? nullptr : &*found;
}

bool has_table(const Config& config, const std::string& name) {
  const auto& values = config.tables.values();
  return std::any_of(values.begin(), values.end(),
                     [&](const auto& entry) { return entry.first == name || entry.first.starts_with(name + "."); });
}

bool is_common_section(const std::string& name) {
  const std::vector<KeyHelp> keys = describe_config(Config());
  return std::any_of(keys.begin(), keys.end(),
                     [&](const KeyHelp& key) { return key.section == name || key.section.starts_with(name + "."); });
}

void read_tables(const Config& config, std::vector<OwnTable>& known) {
  AllSections all{{}, known};
  config.tables.read(all);
}

void refuse_other_keys(const Config& config, const std::vector<std::string>& known, const std::vector<DataKeys>& data) {
  ConfigDocument others;
  for (const auto& [key, entry] : config.tables.values())
    if (std::find(known.begin(), known.end(), key.substr(0, key.find('.'))) == known.end()) others.put(key, entry);
  std::vector<OwnTable> none;
  AllSections all{{}, none};
  others.read(all);
  refuse_other_data_keys(config.data.own, data);
}

ConfigDocument document_of(const std::vector<OwnTable>& tables) {
  const std::string toml = fields_to_toml([copies = tables](Fields& f) mutable {
    for (OwnTable& table : copies) f.section(table.name.c_str(), table.keys, "");
  });
  ConfigDocument document = ConfigDocument::parse(toml, "the config");
  for (const OwnTable& table : tables)  // a table may have no keys
    if (!document.values().contains(table.name))
      document.put(table.name, {.value = ConfigValue::Table{}, .where = "the config"});
  return document;
}

}  // namespace colossal::run
