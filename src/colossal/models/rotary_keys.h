// Rotary positions as keys of [model] and of config.json, for all families that use them.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/ops/rotary.h"

namespace colossal::models {

class FolderConfig;
struct ModelShape;

/// The keys of rotary positions, a part of a family's own keys.
struct RotaryKeys {
  double theta = 10000;
  std::string type = "default";  ///< method for longer texts: default (none), linear, dynamic, yarn, llama3, longrope
  ops::RotaryScaling scaling{};  ///< parameters of that type, without its kind

  void fields(Fields& f);
  bool operator==(const RotaryKeys&) const = default;

  /// Returns the table that rotates the first `rotated` features of a head.
  std::shared_ptr<const ops::RotaryTable> table(int64_t rotated) const;
};

/// Check for a family's `settle`. If the type is dynamic, it also sets positions = original_positions x factor.
/// Errors ("model"): a `rotated` that is odd, not positive or larger than a head; a factor or another parameter that
///                   belongs to another type or has no effect (mscale together with attention_factor, or only one of
///                   the two mscales); a factor of dynamic below 1; no original_positions for a type that needs them;
///                   factors of longrope that are not one per pair of features.
void settle_rotary(const RotaryKeys& keys, int64_t rotated, ModelShape& shape);

/// How a family's config class differs from others in reading a folder's rotary positions.
struct RotaryReading {
  /// Types with another name in this family, and their name here
  std::vector<std::pair<std::string, std::string>> renamed{};
  bool whole = false;  ///< whole heads are rotated: partial_rotary_factor must be 1
  /// Default of original_max_position_embeddings outside the rotary object; 0 = as in the object
  int64_t original = 0;
};

/// Returns the key of config.json that has the scaling: rope_scaling if it exists (transformers 4, also accepted by 5),
/// otherwise rope_parameters (5).
const char* rotary_object(const FolderConfig& config);
/// Reads rope_parameters (transformers 5, which includes the base), or rope_theta and rope_scaling (4).
/// Errors ("model"): an unsupported type; rope_parameters that differ among layers; a part of a head if `reading`
///                   requires whole heads.
RotaryKeys read_rotary(const FolderConfig& config, const RotaryReading& reading = {});
/// Returns the share of each head that is rotated: partial_rotary_factor of rope_parameters or, outside of them, `key`.
double read_rotary_share(const FolderConfig& config, const char* key, double otherwise);
/// Writes rope_theta and rope_scaling, which both versions read; with type dynamic also max_position_embeddings.
void write_rotary(const RotaryKeys& keys, nlohmann::json& config);

}  // namespace colossal::models
