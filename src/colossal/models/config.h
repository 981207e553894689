// [model]: the config section that chooses the sizes of a model. Needs no LibTorch.
#pragma once
#include <cstdint>
#include <string>

#include "colossal/base/fields.h"
#include "colossal/models/shape.h"

namespace colossal::models {

/// [model]: a preset, and what to change in it. 0 (dropout: -1) keeps the preset's value.
struct ModelConfig {
  std::string name = "gpt2-tiny";
  std::string from;
  int64_t vocabulary = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, ffn = 0, positions = 0;
  ImageShape image;
  double dropout = -1;
  void fields(Fields& f);
};

}  // namespace colossal::models
