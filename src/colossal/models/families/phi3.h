// Phi-3 (arXiv:2404.14219): LLaMA's blocks. Its folders store q, k and v in one tensor, and gate and up in another. It
// may rotate a part of each head, and may have an attention window.
#pragma once
#include "colossal/models/llama_layout.h"
#include "colossal/models/registry.h"

namespace colossal::models {

struct Phi3Sizes {
  LlamaLayoutKeys layout{};
  double rotary = 1;   ///< share of each head that is rotated
  int64_t window = 0;  ///< positions to which a token attends, including itself; 0 = all before it
  void fields(Fields& f);
  bool operator==(const Phi3Sizes&) const = default;
};

Architecture phi3_architecture();

}  // namespace colossal::models
