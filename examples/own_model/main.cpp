// `colossal` with one more architecture. Every command, layout and format works for it as for the library's own ones.
//
//   own_model train examples/own_model/own_model.toml --parallel.tensor=2 --parallel.pipeline=2 --parallel.zero=1
//   own_model generate --from runs/own_model --prompt "TEST("
//   own_model export --from runs/own_model --to out/stablelm       # StableLmForCausalLM of transformers reads it
#include <colossal.h>

#include "stablelm.h"

int main(int argc, char** argv) {
  colossal::models::Registry models = colossal::models::built_in();
  models.add(stablelm_architecture());
  return colossal::main(argc, argv, models);
}
