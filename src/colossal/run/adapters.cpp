#include "colossal/run/adapters.h"

#include <utility>

#include "colossal/base/error.h"
#include "colossal/run/low_rank_adapter.h"

namespace colossal::run {

Adapters& Adapters::add(AdapterRow row) {
  require(!row.table.empty() && row.make, "adapter", "an adapter must have a table and a make: got ",
          row.table.empty() ? "no table" : "[" + row.table + "] without make");
  for (const AdapterRow& other : rows_)
    require(other.table != row.table, "adapter", "the table of an adapter must be new: [", row.table,
            "] is registered already; choose another table");
  require(!is_common_section(row.table), "adapter", "the table of an adapter must be new: every config has [",
          row.table, "]; choose another table");
  rows_.push_back(std::move(row));
  return *this;
}

Adapters built_in_adapters() { return Adapters().add(low_rank_row()); }

std::vector<OwnTable> tables_of(const Adapters& adapters) {
  std::vector<OwnTable> tables;
  for (const AdapterRow& row : adapters.rows()) tables.push_back({row.table, row.keys});
  return tables;
}

ChosenAdapter choose_adapter(const Config& config, const Adapters& adapters, const models::ModelShape& shape,
                             const std::vector<OwnTable>& others) {
  std::vector<OwnTable> tables = tables_of(adapters);
  const size_t own = tables.size();
  for (const OwnTable& other : others)
    for (size_t i = 0; i < own; ++i)
      require(tables[i].name != other.name, "adapter", "the table of an adapter must be new: [", other.name,
              "] belongs to an objective; choose another table");
  tables.insert(tables.end(), others.begin(), others.end());
  read_tables(config, tables);
  ChosenAdapter chosen;
  std::string first;
  for (size_t i = 0; i < own; ++i) {
    if (!has_table(config, tables[i].name)) continue;
    require(first.empty(), "config", "a config must have the table of one adapter: got [", first, "] and [",
            tables[i].name, "]; leave one out");
    first = tables[i].name;
    const AdapterRow& row = adapters.rows()[i];
    OwnKeys& keys = tables[i].keys;
    if (row.complete) keys = row.complete(config, keys, shape);
    chosen = {row.make(config, keys, shape), document_of({tables[i]})};
    if (keys.holds<LowRankKeys>()) chosen.low_rank = keys.as<LowRankKeys>();
    if (chosen.low_rank && !chosen.low_rank->is_low_rank()) chosen.low_rank.reset();
  }
  return chosen;
}

}  // namespace colossal::run
