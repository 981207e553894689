// The adapters that a config can select: those of the library, and those that a program adds. Each has a table of the
// config and decides which parameters of a model train and what wraps its linear layers.
//
//   struct AdapterKeys {                                                // the table [low_rank]
//     int64_t rank = 4;
//     void fields(colossal::Fields& f) { f.integer("rank", rank, "", "columns of each adapter", 1, 1024); }
//     bool operator==(const AdapterKeys&) const = default;
//   };
//
//   colossal::Program program = colossal::built_in();
//   program.adapters.add({.table = "low_rank", .keys = AdapterKeys{}, .make = make_adapter});   // examples/own_adapter
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/own_keys.h"
#include "colossal/models/shape.h"
#include "colossal/nn/adapter.h"
#include "colossal/run/config.h"
#include "colossal/run/low_rank_keys.h"
#include "colossal/run/own_tables.h"

namespace colossal::run {

/// A kind of adapter. Required: table, make.
struct AdapterRow {
  std::string table{};  ///< its own table of the config; a config with this table selects the adapter
  OwnKeys keys{};       ///< the keys of that table, with their defaults
  /// Returns the keys with those that another source gives, such as a folder that one of them names; null = the keys
  /// stay. The run saves what it returns
  std::function<OwnKeys(const Config&, const OwnKeys&, const models::ModelShape&)> complete{};
  /// Makes the adapter of a run: treatment and product. It is called on every rank.
  std::function<nn::Adapter(const Config&, const OwnKeys&, const models::ModelShape&)> make{};
};

/// The set of adapters of a program.
class Adapters {
 public:
  /// Adds an adapter and returns this set.
  /// Errors ("adapter"): no table or make; a table that another adapter has, or that every config has.
  Adapters& add(AdapterRow row);
  const std::vector<AdapterRow>& rows() const { return rows_; }

 private:
  std::vector<AdapterRow> rows_;
};

/// Returns the adapters of the library: the table [adapter] (run/low_rank_adapter.h).
Adapters built_in_adapters();

/// Returns the tables of all adapters, with their defaults.
std::vector<OwnTable> tables_of(const Adapters& adapters);

/// The adapter of a run, and its keys to be saved in the run's config.
struct ChosenAdapter {
  nn::Adapter adapter{};                  ///< changes nothing if the config has no table of an adapter
  ConfigDocument tables{};                ///< every key of its table
  std::optional<LowRankKeys> low_rank{};  ///< keys of the table [adapter], if it is that one and has adapters
};

/// Makes the adapter whose table the config has. `others`: the program's tables that do not belong to adapters.
/// Errors ("config"): tables of two adapters; errors of read_tables().
/// Errors ("adapter"): a table that is among `others`; errors of AdapterRow::complete
/// and make.
ChosenAdapter choose_adapter(const Config& config, const Adapters& adapters, const models::ModelShape& shape,
                             const std::vector<OwnTable>& others = {});

}  // namespace colossal::run
