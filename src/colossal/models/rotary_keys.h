// Rotary positions as keys of [model] and of config.json, for all families that have them.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "colossal/base/fields.h"

namespace colossal::ops {
class RotaryTable;
}

namespace colossal::models {

class FolderConfig;

/// A part of a family's own sizes. With a factor above 1 low frequencies are stretched as in LLaMA 3.
struct RotaryKeys {
  double theta = 10000;
  double factor = 1, low_frequency_factor = 1, high_frequency_factor = 4;
  int64_t original_positions = 8192;

  void fields(Fields& f);
  bool operator==(const RotaryKeys&) const = default;

  std::shared_ptr<const ops::RotaryTable> table(int64_t head_dim) const;
};

/// Of rope_parameters (transformers 5, with the base inside) or rope_theta and rope_scaling (4).
/// Errors ("model"): a scaling that is none of ours.
RotaryKeys read_rotary(const FolderConfig& config);
/// As rope_theta and rope_scaling, which both read.
void write_rotary(const RotaryKeys& keys, nlohmann::json& config);

}  // namespace colossal::models
