// The extensions of a program: its models, objectives and adapters. It is a value; there is no global registry.
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

/// The models, objectives and adapters that the commands of a program can use.
struct Program {
  /// Makes a program with these models, and the objectives and adapters of the library.
  Program(models::Registry known = models::built_in()) : models(std::move(known)) {}

  models::Registry models;  ///< architectures that [model] can name
  /// Objectives that a table of the config or an architecture can select
  Objectives objectives = built_in_objectives();
  Adapters adapters = built_in_adapters();  ///< adapters that a table of the config can select
};

/// Returns the program of the `colossal` command: only the library's own models, objectives and adapters.
inline Program built_in() { return {}; }

}  // namespace colossal::run

namespace colossal {
using run::built_in;
using run::Program;
}  // namespace colossal
