// Qwen2 and Qwen2.5 (arXiv:2407.10671, arXiv:2412.15115): LLaMA's blocks with biases of q, k and v, and optional
// windows in some layers.
#pragma once
#include "colossal/models/llama_layout.h"
#include "colossal/models/registry.h"
#include "colossal/models/window_keys.h"

namespace colossal::models {

struct Qwen2Sizes {
  LlamaLayoutKeys layout{};
  WindowKeys windows{};
  void fields(Fields& f);
  bool operator==(const Qwen2Sizes&) const = default;
};

Architecture qwen2_architecture();

}  // namespace colossal::models
