// The own keys of the LLaMA family.
#pragma once
#include "colossal/models/expert_keys.h"
#include "colossal/models/llama_layout.h"

namespace colossal::models {

/// Keys of the LLaMA family. transformers stores a model with a window as a Mistral, which has no biases.
struct LlamaSizes {
  LlamaLayoutKeys layout{};
  bool attention_bias = false, mlp_bias = false;
  int64_t window = 0;  ///< positions to which a token attends, including itself; 0 = all before it
  ExpertKeys experts{};
  void fields(Fields& f);
  bool operator==(const LlamaSizes&) const = default;
};

}  // namespace colossal::models
