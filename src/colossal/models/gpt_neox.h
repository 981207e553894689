// GPT-NeoX and Pythia (arXiv:2204.06745, arXiv:2304.01373): attention and feed-forward layer side by side, rotary
// positions of a part of each head.
#pragma once
#include <string>

#include "colossal/models/registry.h"
#include "colossal/models/rotary_keys.h"

namespace colossal::models {

struct NeoxSizes {
  std::string activation = "gelu";
  bool parallel = true;        ///< both branches read the block's input, each through a norm of its own
  bool attention_bias = true;  ///< of q, k, v and of what comes out of attention
  double rotary_share = 0.25;  ///< of each head's features that positions turn
  RotaryKeys rotary{};
  void fields(Fields& f);
  bool operator==(const NeoxSizes&) const = default;

  /// Features of a head that are turned.
  int64_t turned(int64_t head_dim) const;
};

Architecture gpt_neox_architecture();

}  // namespace colossal::models
