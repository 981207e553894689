// The parts that the families based on LLaMA share: RMSNorm, gated feed-forward layers, rotary positions and grouped
// queries, the names in their folders and the sizes in their config.json. Each family adds its own parts.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "colossal/models/decoder.h"
#include "colossal/models/folder_names.h"
#include "colossal/models/rotary_keys.h"

namespace colossal::models {

class FolderKeys;

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

/// How a family's config class differs from others: its defaults for keys that a folder omits, and its names.
struct LlamaLayoutReading {
  bool tied = false;
  int64_t kv_heads = 0;  ///< 0 = as many as heads
  /// True = a num_key_value_heads of null means as many as heads; false = null is refused
  bool null_means_all_heads = true;
  double norm_epsilon = 1e-6;
  int64_t head_dim = 0;  ///< 0 = hidden / heads
  RotaryReading rotary{.whole = true};
  /// Name of the key of the activation, and its default
  std::pair<const char*, const char*> activation{"hidden_act", "silu"};
};
/// The rows of the sizes and own keys that config.json has in all of these families.
void llama_layout_keys(FolderKeys& k, ModelShape& shape, LlamaLayoutKeys& own, const LlamaLayoutReading& reading = {});

}  // namespace colossal::models
