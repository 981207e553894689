// Models with windowed and full attention layers, as keys of [model] and of config.json.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/models/transformer_block.h"

namespace colossal::models {

class FolderConfig;

/// The keys of attention windows, a part of a family's own keys.
struct WindowKeys {
  /// Tokens to which a windowed layer attends, including the token itself; 0 = no layer has a window
  int64_t window = 0;
  /// Type of each layer as transformers names it, sliding_attention or full_attention; empty = the family's rule
  std::vector<std::string> layer_types{};

  void fields(Fields& f);
  bool operator==(const WindowKeys&) const = default;
};

/// Returns true if a layer has a window, for models with empty layer_types.
using WindowRule = bool (*)(int64_t layer);
inline bool every_layer(int64_t) { return true; }
inline bool every_second_layer(int64_t layer) { return layer % 2 == 0; }  ///< layers 0, 2, 4, ...

/// Returns `block` for every layer, with that layer's window.
BlockVariants with_windows(const BlockVariant& block, const WindowKeys& keys, WindowRule rule);

/// Checks the keys for a family's `settle`. Sets SlidingWindow to the window if all layers have it, else to 0.
/// Errors ("model"): layer_types that are not one per layer or have unknown names. If they are given: sliding layers
///                   with a `window` of 0; no sliding layer with another `window`.
void settle_windows(const WindowKeys& keys, WindowRule rule, ModelShape& shape);

/// Returns the types of `layers` layers: layer_types of config.json, or the rule's types if that is missing.
/// Errors ("model"): layer_types as above; a window of 0 if a layer must have one.
WindowKeys read_windows(const FolderConfig& config, int64_t window, int64_t layers, WindowRule rule);
/// Writes layer_types, one per layer.
void write_layer_types(const WindowKeys& keys, WindowRule rule, int64_t layers, nlohmann::json& config);

/// Reads the keys of Qwen2 and Qwen3: use_sliding_window, sliding_window, and layer_types or max_window_layers, the
/// index of the first layer with a window. If layer_types is empty, every layer has a window.
WindowKeys read_qwen_windows(const FolderConfig& config, int64_t layers);
void write_qwen_windows(const WindowKeys& keys, int64_t layers, nlohmann::json& config);

}  // namespace colossal::models
