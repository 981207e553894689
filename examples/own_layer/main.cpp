// `colossal` with a model whose blocks have layers that the library lacks.
//
//   own_layer train examples/own_layer/hybrid.toml --parallel.sequence.size=2 --parallel.sequence.mode=ring
//   own_layer generate --from runs/own_layer --prompt "TEST("
#include <colossal.h>

#include "hybrid.h"

int main(int argc, char** argv) {
  colossal::models::Registry models = colossal::models::built_in();
  models.add(hybrid_architecture());
  return colossal::main(argc, argv, models);
}
