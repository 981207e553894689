// What the families that follow LLaMA have in common: RMSNorm, gated feed-forward layers, rotary positions and grouped
// queries, the names of their folders and the sizes in their config.json. Each says what it has beside.
#pragma once
#include <nlohmann/json_fwd.hpp>

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

/// The block of a LLaMA: norms before, silu gates, no biases.
BlockVariant llama_block(const ModelShape& shape, const RotaryKeys& rotary);

/// What all call in their `settle`. Errors ("model"): heads of an odd size.
void check_rotary_heads(const ModelShape& shape);

/// With biases wherever a shape has them, norms of heads too.
FolderNames llama_layout_names();

/// The sizes that config.json has in all of these families, without own ones. Where it does not say whether the head is
/// tied, `tied`.
ModelShape read_llama_layout(const FolderConfig& config, bool tied = false);
/// The same sizes, for a folder of `model_type` that `architecture` of transformers reads.
nlohmann::json write_llama_layout(const ModelShape& shape, const char* model_type, const char* architecture);

}  // namespace colossal::models
