// LLaMA 1 to 3 (arXiv:2302.13971): pre-norm blocks, RMSNorm, SwiGLU, rotary positions, grouped queries; with a sliding
// window Mistral (arXiv:2310.06825).
#pragma once
#include "colossal/models/registry.h"

namespace colossal::models {

/// Rotary positions, with LLaMA-3's stretching of low frequencies when rope_factor > 1 (ops::RotaryScaling), and
/// Mistral's window. A model that has one is a Mistral to transformers.
struct LlamaSizes {
  double rope_theta = 10000;
  double rope_factor = 1, rope_low_frequency_factor = 1, rope_high_frequency_factor = 4;
  int64_t rope_original_positions = 8192;
  int64_t window = 0;  ///< positions that a token sees, itself the last of them; 0: all before it
  void fields(Fields& f);
  bool operator==(const LlamaSizes&) const = default;
};

Architecture llama_architecture();

}  // namespace colossal::models
