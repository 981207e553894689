// Qwen3 (arXiv:2505.09388), dense models and mixtures of experts: LLaMA's blocks with norms of the q and k heads, a
// free head size, and optional windows in some layers.
#pragma once
#include "colossal/models/expert_keys.h"
#include "colossal/models/llama_layout.h"
#include "colossal/models/registry.h"
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

Architecture qwen3_architecture();

}  // namespace colossal::models
