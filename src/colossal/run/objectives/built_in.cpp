// The objectives of the library. They have no tables of their own: the architecture of the model names its default.
#include "colossal/run/objectives/classes.h"
#include "colossal/run/objectives/data_keys.h"
#include "colossal/run/objectives/target.h"
#include "colossal/run/objectives/tokens.h"

namespace colossal::run {
namespace {

template <class Kind>
std::unique_ptr<Objective> make(const Config& config, const OwnTables& tables, const models::ModelShape& shape) {
  return std::make_unique<Kind>(config, shape, tables.data<typename Kind::Keys>());
}

/// Makes the objective for pairs of texts or, with data.noise_density, for spans of one text.
std::unique_ptr<Objective> make_target(const Config& config, const OwnTables& tables, const models::ModelShape& shape) {
  return tables.data<TargetKeys>().noise_density > 0 ? make<SpanCorruption>(config, tables, shape)
                                                     : make<Target>(config, tables, shape);
}

}  // namespace

Objectives built_in_objectives() {
  std::vector<ObjectiveRow> rows{{.name = "next-token", .make = make<NextToken>},
                                 {.name = "masked-token", .make = make<MaskedToken>},
                                 {.name = "target", .make = make_target},
                                 {.name = "class", .make = make<Class>}};
  const std::vector<DataKeys> keys = built_in_data_keys();
  Objectives objectives;
  for (ObjectiveRow& row : rows) {
    for (const DataKeys& own : keys)
      if (own.objective == row.name) row.data = own.keys;
    objectives.add(std::move(row));
  }
  return objectives;
}

}  // namespace colossal::run
