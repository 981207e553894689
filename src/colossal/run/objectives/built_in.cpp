// The objectives of the library. They have no tables of their own: the architecture of the model names its default.
#include "colossal/run/objectives/classes.h"
#include "colossal/run/objectives/target.h"
#include "colossal/run/objectives/tokens.h"

namespace colossal::run {
namespace {

template <class Kind>
std::unique_ptr<Objective> make(const Config& config, const OwnTables&, const models::ModelShape& shape) {
  return std::make_unique<Kind>(config, shape);
}

/// Makes the objective for pairs of texts or, with data.noise_density, for spans of one text.
std::unique_ptr<Objective> make_target(const Config& config, const OwnTables& tables, const models::ModelShape& shape) {
  return config.data.noise_density > 0 ? make<SpanCorruption>(config, tables, shape)
                                       : make<Target>(config, tables, shape);
}

}  // namespace

Objectives built_in_objectives() {
  Objectives objectives;
  objectives.add({.name = "next-token", .make = make<NextToken>})
      .add({.name = "masked-token", .make = make<MaskedToken>})
      .add({.name = "target", .make = make_target})
      .add({.name = "class", .make = make<Class>});
  return objectives;
}

}  // namespace colossal::run
