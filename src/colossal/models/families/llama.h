// LLaMA 1 to 3 (arXiv:2302.13971): pre-norm blocks, RMSNorm, SwiGLU, rotary positions, grouped queries. With a sliding
// window, it is Mistral (arXiv:2310.06825); with experts, Mixtral (arXiv:2401.04088).
#pragma once
#include "colossal/models/expert_keys.h"
#include "colossal/models/llama_layout.h"
#include "colossal/models/registry.h"

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

Architecture llama_architecture();

}  // namespace colossal::models
