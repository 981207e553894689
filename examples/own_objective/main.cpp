// `colossal` with a model that reads numbers instead of text, and an objective that predicts numbers.
//
//   own_objective train examples/own_objective/own_objective.toml
//   own_objective train examples/own_objective/own_objective.toml --parallel.tensor=2 --parallel.pipeline=2
//   own_objective help config regression
#include <colossal.h>

#include "network.h"
#include "regression.h"

int main(int argc, char** argv) {
  colossal::Program program = colossal::built_in();
  program.models.add(network());
  program.objectives.add(regression());
  return colossal::main(argc, argv, program);
}
