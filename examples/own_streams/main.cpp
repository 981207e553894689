// `colossal` with a model whose blocks read and change two hidden states of different sizes.
//
//   own_streams train examples/own_streams/own_streams.toml --parallel.tensor=2 --parallel.pipeline=2 --parallel.zero=1
#include <colossal.h>

#include "streams.h"

int main(int argc, char** argv) {
  colossal::models::Registry models = colossal::models::built_in();
  models.add(streams_architecture());
  return colossal::main(argc, argv, models);
}
