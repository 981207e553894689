// The tables of the config that the library itself adds to the sections that every config has. This header needs no
// LibTorch, so that every program can list them.
//
//   for (const run::DescribedTable& table : run::built_in_tables()) names.push_back(table.name);   // "adapter"
#pragma once
#include <string>
#include <vector>

#include "colossal/base/config.h"
#include "colossal/base/own_keys.h"

namespace colossal::run {

/// A table with its defaults, and the help of its section.
struct DescribedTable {
  std::string name;
  OwnKeys keys;
  std::string help;
};

/// Returns the tables of the library's adapters and objectives.
std::vector<DescribedTable> built_in_tables();

/// Returns the help of the keys of tables, table by table.
std::vector<KeyHelp> describe_tables(const std::vector<DescribedTable>& tables);

}  // namespace colossal::run
