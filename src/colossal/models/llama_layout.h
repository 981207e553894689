// What the families that follow LLaMA have in common: RMSNorm, gated feed-forward layers, rotary positions and grouped
// queries, the names of their folders and the sizes in their config.json. Each says what it has beside.
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

/// The numbers that presets give.
struct LlamaLayoutSizes {
  int64_t vocabulary, hidden, layers, heads, kv_heads, ffn, positions;
  bool tied = false;
  int64_t head_dim = 0;  ///< 0: hidden / heads
  double norm_epsilon = 1e-5;
};
ModelShape llama_layout(const LlamaLayoutSizes& sizes, const OwnSizes& own);

/// A part of the own sizes of all of them.
struct LlamaLayoutKeys {
  RotaryKeys rotary{};
  std::string activation = "silu";  ///< of gates, by transformers' name

  void fields(Fields& f);
  bool operator==(const LlamaLayoutKeys&) const = default;
};

/// The block of a LLaMA: norms before, gates, no biases; `rotated` features of a head are turned, 0: all.
BlockVariant llama_block(const ModelShape& shape, const LlamaLayoutKeys& keys, int64_t rotated = 0);

/// Theirs where a row of `particular` does not say otherwise; with norms of heads.
FolderNames llama_layout_names(const std::vector<nn::ExternalName>& particular = {});

/// What a family's config class has where a folder does not say it.
struct LlamaLayoutDefaults {
  bool tied = false;
  int64_t kv_heads = 0;              ///< 0: as many as heads
  bool null_means_all_heads = true;  ///< a num_key_value_heads of null is as many as heads; or it is refused
};
/// The sizes that config.json has in all of these families, without own ones.
ModelShape read_llama_layout(const FolderConfig& config, const LlamaLayoutDefaults& defaults = {});
/// `activation`: what the family calls its key, and what it is where that is not there.
LlamaLayoutKeys read_llama_keys(const FolderConfig& config, const RotaryReading& reading = {.whole = true},
                                std::pair<const char*, const char*> activation = {"hidden_act", "silu"});
/// All of these, for a folder of `model_type` that `architecture` of transformers reads.
nlohmann::json write_llama_layout(const ModelShape& shape, const LlamaLayoutKeys& keys, const char* model_type,
                                  const char* architecture);

}  // namespace colossal::models
