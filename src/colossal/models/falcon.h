// Falcon (arXiv:2311.16867): multi-query or grouped attention beside the feed-forward layer, rotary positions or ALiBi.
#pragma once
#include <cstdint>
#include <string>

#include "colossal/models/registry.h"
#include "colossal/models/rotary_keys.h"

namespace colossal::models {

struct FalconSizes {
  std::string activation = "gelu";
  bool parallel = true;  ///< both branches read the block's input
  int64_t norms = 1;     ///< where they do: one for both (7B), or one each (40B, 180B)
  bool bias = false;     ///< of linear layers
  bool alibi = false;    ///< in place of rotary positions
  RotaryKeys rotary{};
  void fields(Fields& f);
  bool operator==(const FalconSizes&) const = default;
};

Architecture falcon_architecture();

}  // namespace colossal::models
