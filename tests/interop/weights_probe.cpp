// Writes the weights of a file or folder as safetensors: colossal_weights_probe PATH OUT.safetensors
#include <ATen/ATen.h>

#include <cstdio>

#include "colossal/base/error.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/checkpoint/weight_source.h"

int main(int, char** arguments) {
  try {
    const auto weights = colossal::checkpoint::open_weights(arguments[1]);
    std::map<std::string, at::Tensor> all;
    for (const auto& [name, entry] : weights->entries()) all[name] = weights->tensor(name);
    colossal::checkpoint::write_safetensors(arguments[2], all);
  } catch (const colossal::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
