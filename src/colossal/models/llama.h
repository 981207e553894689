// LLaMA 1 to 3 (arXiv:2302.13971): pre-norm blocks, RMSNorm, SwiGLU, rotary positions, grouped queries; with a sliding
// window Mistral (arXiv:2310.06825).
#pragma once
#include "colossal/models/registry.h"
#include "colossal/models/rotary_keys.h"

namespace colossal::models {

/// A model that has a window is a Mistral to transformers, which has no biases.
struct LlamaSizes {
  RotaryKeys rotary{};
  bool attention_bias = false, mlp_bias = false;
  int64_t window = 0;  ///< positions that a token sees, itself the last of them; 0: all before it
  void fields(Fields& f);
  bool operator==(const LlamaSizes&) const = default;
};

Architecture llama_architecture();

}  // namespace colossal::models
