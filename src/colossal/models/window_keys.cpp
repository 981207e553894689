#include "colossal/models/window_keys.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/shape.h"
#include "colossal/models/shape_parts.h"

namespace colossal::models {
namespace {

constexpr const char *kSliding = "sliding_attention", *kFull = "full_attention";

void check_types(const std::vector<std::string>& types, int64_t layers) {
  require(static_cast<int64_t>(types.size()) == layers, "model", "layer_types must be one for each of the layers: got ",
          types.size(), " for ", layers, " layers; set model.layer_types, or [] for those of the family");
  for (const std::string& type : types)
    require(type == kSliding || type == kFull, "model", "layer_types must be ", kSliding, " or ", kFull, ": got ",
            printable(type));
}

std::vector<std::string> types_of(const WindowKeys& keys, WindowRule rule, int64_t layers) {
  if (!keys.layer_types.empty()) return keys.layer_types;
  std::vector<std::string> types;
  for (int64_t i = 0; i < layers; ++i) types.emplace_back(keys.window > 0 && rule(i) ? kSliding : kFull);
  return types;
}

WindowKeys made_of(const std::vector<std::string>& types, const FolderConfig& config, int64_t window, int64_t layers,
                   WindowRule rule) {
  check_types(types, layers);
  if (std::find(types.begin(), types.end(), kSliding) == types.end()) return {};
  require(window > 0, "model", "layer_types of a ", config.family(), " without a window must all be ", kFull,
          ": got one that is ", kSliding);
  const bool is_rule = types == types_of({.window = window}, rule, layers);
  return {.window = window, .layer_types = is_rule ? std::vector<std::string>() : types};
}

/// The row of layer_types. `types`: those of the layers if it is written, and the default if it is read.
void types_key(FolderKeys& k, WindowKeys& keys, std::vector<std::string> types, int64_t window, int64_t layers,
               WindowRule rule) {
  k.optional("layer_types", types, types);
  if (k.reads()) keys = made_of(types, k.config(), window, layers, rule);
}

}  // namespace

void WindowKeys::fields(Fields& f) {
  f.integer("window", window, "tokens",
            "attention window of layers that have one, including the token itself; 0 = no layer has a window", 0,
            kMaxSize);
  f.texts("layer_types", layer_types,
          "type of each layer, sliding_attention (a window) or full_attention; empty = the family's default");
}

BlockVariants with_windows(const BlockVariant& block, const WindowKeys& keys, WindowRule rule) {
  return [=](int64_t layer) {
    BlockVariant its = block;
    const bool slides =
        keys.layer_types.empty() ? rule(layer) : keys.layer_types.at(static_cast<size_t>(layer)) == kSliding;
    its.attention.window = slides ? keys.window : 0;
    return its;
  };
}

void settle_windows(const WindowKeys& keys, WindowRule rule, ModelShape& shape) {
  const std::vector<std::string> types = types_of(keys, rule, shape.layers);
  shape.set(SlidingWindow{std::count(types.begin(), types.end(), kSliding) == shape.layers ? keys.window : 0});
  if (keys.layer_types.empty()) return;
  check_types(keys.layer_types, shape.layers);
  const bool slides = std::find(keys.layer_types.begin(), keys.layer_types.end(), kSliding) != keys.layer_types.end();
  require(slides == (keys.window > 0), "model", "window and layer_types that are ", kSliding,
          " must be set together: got a window of ", keys.window, " and ", slides ? "such layers" : "no such layer");
}

void layer_types_key(FolderKeys& k, WindowKeys& keys, int64_t window, int64_t layers, WindowRule rule) {
  const WindowKeys usual{.window = window};
  types_key(k, keys, types_of(k.reads() ? usual : keys, rule, layers), window, layers, rule);
}

void qwen_window_size_keys(FolderKeys& k, WindowKeys& keys) {
  bool slides = keys.window > 0;
  k.optional("use_sliding_window", slides, false);
  if (k.reads()) keys = {};
  if (k.writes() || slides) k.or_null("sliding_window", keys.window, 4096);
}

void qwen_window_keys(FolderKeys& k, WindowKeys& keys, int64_t layers) {
  qwen_window_size_keys(k, keys);
  std::vector<std::string> types;
  if (k.writes()) types = types_of(keys, every_layer, layers);
  int64_t first = std::find(types.begin(), types.end(), kSliding) - types.begin();
  if (k.writes() || keys.window > 0) k.optional("max_window_layers", first, 28);
  if (k.reads())
    for (int64_t i = 0; i < layers; ++i) types.emplace_back(keys.window > 0 && i >= first ? kSliding : kFull);
  types_key(k, keys, std::move(types), keys.window, layers, every_layer);
}

}  // namespace colossal::models
