// What a program knows in addition to its commands: models, objectives and adapters. A value, no global.
//
//   int main(int argc, char** argv) {
//     colossal::Program program = colossal::built_in();
//     program.models.add(network());                // a models::Architecture
//     program.objectives.add(regression());         // a run::ObjectiveRow
//     return colossal::main(argc, argv, program);
//   }
#pragma once
#include <utility>

#include "colossal/models/registry.h"
#include "colossal/run/adapters.h"
#include "colossal/run/objective.h"

namespace colossal::run {

struct Program {
  /// The objectives of the library, and these models.
  Program(models::Registry known = models::built_in()) : models(std::move(known)) {}

  models::Registry models;                        ///< architectures that [model] may name
  Objectives objectives = built_in_objectives();  ///< that a table of the config or an architecture may name
  Adapters adapters{};                            ///< that a table of the config may name; the library has none
};

/// What `colossal` itself knows.
inline Program built_in() { return {}; }

}  // namespace colossal::run

namespace colossal {
using run::built_in;
using run::Program;
}  // namespace colossal
