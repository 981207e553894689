// Phi-3 (arXiv:2404.14219): LLaMA's blocks, whose folders have q, k and v in one tensor, and gate and up in another;
// a part of each head may be turned, and a window seen.
#pragma once
#include "colossal/models/llama_layout.h"
#include "colossal/models/registry.h"

namespace colossal::models {

struct Phi3Sizes {
  LlamaLayoutKeys layout{};
  double rotary = 1;   ///< share of each head that positions turn
  int64_t window = 0;  ///< positions that a token sees, itself the last of them; 0: all before it
  void fields(Fields& f);
  bool operator==(const Phi3Sizes&) const = default;
};

Architecture phi3_architecture();

}  // namespace colossal::models
