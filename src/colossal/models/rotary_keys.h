// Rotary positions as keys of [model] and of config.json, for all families that have them.
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

/// A part of a family's own sizes.
struct RotaryKeys {
  double theta = 10000;
  std::string type = "default";  ///< how they reach further: default (not), linear, dynamic, yarn, llama3, longrope
  ops::RotaryScaling scaling{};  ///< the numbers of that type, without its kind

  void fields(Fields& f);
  bool operator==(const RotaryKeys&) const = default;

  /// What turns the first `rotated` features of a head.
  std::shared_ptr<const ops::RotaryTable> table(int64_t rotated) const;
};

/// What a family calls in its `settle`: of type dynamic the positions follow, original_positions times the factor.
/// Errors ("model"): an odd number of `rotated` features, or one that is not above 0 or above the head's; a factor or
/// other numbers of a type where the type is another, or that have no effect (mscale beside attention_factor, or one of
/// the two mscales alone), a factor of dynamic below 1, or no original_positions where it needs them; factors of
/// longrope that are not one for each pair of features.
void settle_rotary(const RotaryKeys& keys, int64_t rotated, ModelShape& shape);

/// How a family's config class differs from the others in what it makes of a folder's rotary positions.
struct RotaryReading {
  std::vector<std::pair<std::string, std::string>> renamed{};  ///< types by another name, and the name they have here
  bool whole = false;    ///< all of each head is turned: partial_rotary_factor must be 1
  int64_t original = 0;  ///< original_max_position_embeddings where config.json has none outside of them; 0: as inside
};

/// The key of config.json that has the scaling: rope_scaling (transformers 4) where it is there, as transformers 5 has
/// it, too; else rope_parameters (5).
const char* rotary_object(const FolderConfig& config);
/// Of rope_parameters (transformers 5, with the base inside) or rope_theta and rope_scaling (4).
/// Errors ("model"): a type that is none of ours, rope_parameters that differ among layers, a part of a head where
///                   `reading` says that whole ones are turned.
RotaryKeys read_rotary(const FolderConfig& config, const RotaryReading& reading = {});
/// Which share of each head is turned: partial_rotary_factor of rope_parameters or, outside of them, `key`.
double read_rotary_share(const FolderConfig& config, const char* key, double otherwise);
/// As rope_theta and rope_scaling, which both read; of type dynamic max_position_embeddings, too.
void write_rotary(const RotaryKeys& keys, nlohmann::json& config);

}  // namespace colossal::models
