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
class FolderKeys;
struct ModelShape;

/// The keys of rotary positions, a part of a family's own keys.
struct RotaryKeys {
  double theta = 10000;          ///< base of the rotary frequencies
  std::string type = "default";  ///< method for longer texts: default (none), linear, dynamic, yarn, llama3, longrope
  ops::RotaryScaling scaling{};  ///< parameters of that type; their `kind` stays None, because `type` names it

  void fields(Fields& f);
  bool operator==(const RotaryKeys&) const = default;

  /// Returns the table that rotates the first `rotated` features of a head.
  std::shared_ptr<const ops::RotaryTable> table(int64_t rotated) const;
};

/// Returns true for the name of a key of RotaryKeys, such as "rope_factor".
bool is_rotary_key(const std::string& name);

/// Returns true if a folder of this shape has a table with a row for each position, so that another number of positions
/// needs other weights. Models with rotary positions, ALiBi or relative positions have none.
bool has_position_table(const ModelShape& shape);

/// Checks `keys` and sets the sizes in `shape` that follow from them; a family calls it in Architecture::settle.
/// Type dynamic sets positions = original_positions * factor. Types dynamic and longrope set LongTexts.
/// Errors ("model"): an unknown type; a `rotated` that is odd, not positive or larger than head_dim; a factor or
///                   another parameter that belongs to another type or has no effect (mscale together with
///                   attention_factor, or only one of the two mscales); a factor of dynamic below 1; no
///                   original_positions for a type other than default and linear; factors of longrope that are not
///                   one per pair of features.
void settle_rotary(const RotaryKeys& keys, int64_t rotated, ModelShape& shape);

/// How a family's config class differs from others in reading a folder's rotary positions.
struct RotaryReading {
  /// Names of types in the family's folders that differ from ours, each with our name (RotaryKeys::type)
  std::vector<std::pair<std::string, std::string>> renamed{};
  bool whole = false;  ///< true = whole heads are rotated, so partial_rotary_factor must be 1
  /// original_max_position_embeddings, in tokens, if config.json has none outside the rotary object; 0 = the object's
  int64_t original = 0;
  double theta = 10000;  ///< base of the rotary frequencies if config.json has none
};

/// Returns the key of the rotary object, the object of config.json that has the scaling. It is rope_scaling
/// (transformers 4) if config.json has it; transformers 5 prefers it, too. Otherwise it is rope_parameters (5).
const char* rotary_object(const FolderConfig& config);
/// The rows of rotary positions. Reads rope_parameters (transformers 5, which includes the base), or rope_theta and
/// rope_scaling (4). Writes the latter two, which both versions read. With type dynamic it also writes
/// max_position_embeddings = original_positions, so the row of that key must come before.
/// Errors ("model"): an unsupported type; rope_parameters that differ among layers; a partial_rotary_factor other than
///                   1 if `reading` says that whole heads are rotated.
void rotary_keys(FolderKeys& k, RotaryKeys& keys, const RotaryReading& reading = {});
/// The row of the fraction of each head's features that is rotated. It reads partial_rotary_factor of the rotary
/// object; if absent, `key` of config.json; if absent too, it is `otherwise`. It writes `key`.
void rotary_share_key(FolderKeys& k, const char* key, double& share, double otherwise);

}  // namespace colossal::models
