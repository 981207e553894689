// Gemma 2 (arXiv:2408.00118): norms with a unit offset around both branches of a block, GELU gates, windows in every
// second layer, capped scores and logits, and a scaled embedding.
#pragma once
#include "colossal/models/llama_layout.h"
#include "colossal/models/registry.h"
#include "colossal/models/window_keys.h"

namespace colossal::models {

struct Gemma2Sizes {
  LlamaLayoutKeys layout{.activation = "gelu_pytorch_tanh"};
  bool attention_bias = false;
  int64_t query_scale = 256;  ///< scores are divided by its square root
  double score_cap = 50, logit_cap = 30;
  WindowKeys windows{.window = 4096};
  void fields(Fields& f);
  bool operator==(const Gemma2Sizes&) const = default;
};

Architecture gemma2_architecture();

}  // namespace colossal::models
