// The own keys of GPT-NeoX.
#pragma once
#include <string>

#include "colossal/models/rotary_keys.h"

namespace colossal::models {

struct NeoxSizes {
  std::string activation = "gelu";
  bool parallel = true;        ///< true = both branches read the block's input, each through its own norm
  bool attention_bias = true;  ///< whether the projections to q, k, v and from the heads have biases
  double rotary_share = 0.25;  ///< share of each head's features that is rotated
  RotaryKeys rotary{};
  void fields(Fields& f);
  bool operator==(const NeoxSizes&) const = default;

  /// Returns the number of features of a head that are rotated.
  int64_t turned(int64_t head_dim) const;
};

}  // namespace colossal::models
