// Layers that see a window of tokens beside layers that see all, as keys of [model] and of config.json.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/models/transformer_block.h"

namespace colossal::models {

class FolderConfig;

/// A part of a family's own sizes.
struct WindowKeys {
  int64_t window = 0;  ///< tokens that a layer with a window sees, itself the last of them; 0: no layer has one
  /// The name that transformers gives each layer, sliding_attention or full_attention; empty = as the family has it
  std::vector<std::string> layer_types{};

  void fields(Fields& f);
  bool operator==(const WindowKeys&) const = default;
};

/// Which layers have a window where layer_types is empty.
using WindowRule = bool (*)(int64_t layer);
inline bool every_layer(int64_t) { return true; }
inline bool every_second_layer(int64_t layer) { return layer % 2 == 0; }  ///< the first has one

/// `block` in every layer, with that layer's window.
BlockVariants with_windows(const BlockVariant& block, const WindowKeys& keys, WindowRule rule);

/// What a family calls in its `settle`; shape.window follows.
/// Errors ("model"): layer_types that are not one for each layer, of other names, or that have layers with a window
///                   where there is none, or none where there is one.
void settle_windows(const WindowKeys& keys, WindowRule rule, ModelShape& shape);

/// The types of `layers` layers, those of config.json's layer_types or, where that is not there, of the rule.
/// Errors ("model"): layer_types as above, and a window of 0 where a layer is to have one.
WindowKeys read_windows(const FolderConfig& config, int64_t window, int64_t layers, WindowRule rule);
/// layer_types, one for each layer.
void write_layer_types(const WindowKeys& keys, WindowRule rule, int64_t layers, nlohmann::json& config);

/// As Qwen2 and 3 say it: use_sliding_window, sliding_window, and layer_types or max_window_layers, the first with one.
/// Every layer has a window where layer_types is empty.
WindowKeys read_qwen_windows(const FolderConfig& config, int64_t layers);
void write_qwen_windows(const WindowKeys& keys, int64_t layers, nlohmann::json& config);

}  // namespace colossal::models
