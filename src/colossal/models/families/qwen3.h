// The own keys of Qwen3.
#pragma once
#include "colossal/models/expert_keys.h"
#include "colossal/models/llama_layout.h"
#include "colossal/models/window_keys.h"

namespace colossal::models {

struct Qwen3Sizes {
  LlamaLayoutKeys layout{};
  bool attention_bias = false;
  WindowKeys windows{};
  ExpertKeys experts{};
  void fields(Fields& f);
  bool operator==(const Qwen3Sizes&) const = default;
};

}  // namespace colossal::models
