// The extensions of a program: its models, objectives, adapters and verifiers. It is a value; there is no global
// registry.
//
//   int main(int argc, char** argv) {
//     colossal::Program program = colossal::built_in();
//     program.models.add(network());                // a models::Architecture
//     program.objectives.add(regression());         // a run::ObjectiveRow
//     return colossal::main(argc, argv, program);
//   }
#pragma once
#include <memory>
#include <utility>

#include "colossal/models/registry.h"
#include "colossal/run/adapters.h"
#include "colossal/run/objective.h"
#include "colossal/text/verifiers/verifier.h"

namespace colossal {
class Descriptor;
}

namespace colossal::run {

/// The models, objectives, adapters and verifiers that the commands of a program can use.
struct Program {
  /// Makes a program with these models, and the objectives, adapters and verifiers of the library.
  Program(models::Registry known = models::built_in()) : models(std::move(known)) {}

  models::Registry models;  ///< architectures that [model] can name
  /// Objectives that a table of the config or an architecture can select
  Objectives objectives = built_in_objectives();
  Adapters adapters = built_in_adapters();  ///< adapters that a table of the config can select
  /// Verifiers that reward.verifiers can name
  text::Verifiers verifiers = text::built_in_verifiers();
  /// Connected stream socket of a function that scores the answers of a run; its other end answers lines as
  /// align/rewards/reward_lines.h describes. Null = none. `colossal train` sets it for colossal.train of Python
  std::shared_ptr<const Descriptor> reward_function{};
};

/// Returns the program of the `colossal` command: only what the library itself has.
inline Program built_in() { return {}; }

}  // namespace colossal::run

namespace colossal {
using run::built_in;
using run::Program;
}  // namespace colossal
