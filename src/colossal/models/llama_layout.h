// The parts that the families based on LLaMA share: RMSNorm, gated feed-forward layers, rotary positions and grouped
// queries, the names in their folders and the sizes in their config.json. Each family adds its own parts.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "colossal/models/decoder.h"
#include "colossal/models/folder_names.h"
#include "colossal/models/rotary_keys.h"

namespace colossal::models {

class FolderConfig;

/// The sizes that presets set.
struct LlamaLayoutSizes {
  int64_t vocabulary, hidden, layers, heads, kv_heads, ffn, positions;
  bool tied = false;
  int64_t head_dim = 0;  ///< 0 = hidden / heads
  double norm_epsilon = 1e-5;
};
/// Returns the shape with these sizes and own keys.
ModelShape llama_layout(const LlamaLayoutSizes& sizes, const OwnSizes& own);

/// Own keys that all of these families have.
struct LlamaLayoutKeys {
  RotaryKeys rotary{};
  std::string activation = "silu";  ///< activation of the gates, named as in transformers

  void fields(Fields& f);
  bool operator==(const LlamaLayoutKeys&) const = default;
};

/// Returns the block of a LLaMA: norms before the branches, gates, no biases. `rotated`: number of features of a head
/// that are rotated; 0 = all.
BlockVariant llama_block(const ModelShape& shape, const LlamaLayoutKeys& keys, int64_t rotated = 0);

/// Returns the names of these families, with norms of heads. Rows of `particular` take precedence.
FolderNames llama_layout_names(const std::vector<nn::ExternalName>& particular = {});

/// The defaults of a family's config class, for keys that a folder omits.
struct LlamaLayoutDefaults {
  bool tied = false;
  int64_t kv_heads = 0;  ///< 0 = as many as heads
  /// True = a num_key_value_heads of null means as many as heads; false = null is refused
  bool null_means_all_heads = true;
  double norm_epsilon = 1e-6;
};
/// Reads the sizes that config.json has in all of these families, without own keys.
ModelShape read_llama_layout(const FolderConfig& config, const LlamaLayoutDefaults& defaults = {});
/// Reads the own keys. `activation`: the family's name for the key, and its default.
LlamaLayoutKeys read_llama_keys(const FolderConfig& config, const RotaryReading& reading = {.whole = true},
                                std::pair<const char*, const char*> activation = {"hidden_act", "silu"});
/// Writes all of these, for a folder of `model_type` that the class `architecture` of transformers reads.
nlohmann::json write_llama_layout(const ModelShape& shape, const LlamaLayoutKeys& keys, const char* model_type,
                                  const char* architecture);

}  // namespace colossal::models
