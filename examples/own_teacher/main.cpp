// `colossal` with an objective that trains a student on a text and on what a frozen teacher thinks of it.
//
//   own_teacher train examples/own_teacher/distill.toml
//   own_teacher train examples/own_teacher/distill.toml --parallel.tensor=2 --parallel.pipeline=2 --run.folder=runs/tp
//   own_teacher plan examples/own_teacher/distill.toml --check
//   own_teacher export --from runs/distill --to out
#include <colossal.h>

#include "distillation.h"

int main(int argc, char** argv) {
  colossal::Program program = colossal::built_in();
  program.objectives.add(distillation());
  return colossal::main(argc, argv, program);
}
