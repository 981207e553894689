// The own keys of Falcon.
#pragma once
#include <cstdint>
#include <string>

#include "colossal/models/rotary_keys.h"

namespace colossal::models {

struct FalconSizes {
  std::string activation = "gelu";
  bool parallel = true;  ///< true = both branches read the block's input
  int64_t norms = 1;     ///< norms of parallel branches: 1 = one for both (7B), 2 = one each (40B, 180B)
  bool bias = false;     ///< whether linear layers have biases
  bool alibi = false;    ///< ALiBi instead of rotary positions
  RotaryKeys rotary{};
  void fields(Fields& f);
  bool operator==(const FalconSizes&) const = default;
};

}  // namespace colossal::models
