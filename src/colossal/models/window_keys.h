// Models with windowed and full attention layers, as keys of [model] and of config.json.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/models/transformer_block.h"

namespace colossal::models {

class FolderKeys;

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

/// The row of layer_types, one per layer, for `layers` layers; if config.json has none, those of the rule. Reading sets
/// `keys`; its window is `window`.
/// Errors ("model"): layer_types as above; a `window` of 0 if a layer must have one.
void layer_types_key(FolderKeys& k, WindowKeys& keys, int64_t window, int64_t layers, WindowRule rule);

/// The rows of Qwen2 and Qwen3: use_sliding_window, sliding_window, and layer_types or max_window_layers, the index of
/// the first layer with a window. If layer_types is empty, every layer has a window.
void qwen_window_keys(FolderKeys& k, WindowKeys& keys, int64_t layers);
/// The first two of these rows, for a config class that reads no others: all layers have the window, or none.
void qwen_window_size_keys(FolderKeys& k, WindowKeys& keys);

}  // namespace colossal::models
