// The own keys of ViT and DeiT.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"

namespace colossal::models {

inline constexpr int64_t kMaxSide = 1 << 16;  ///< largest side of an image, in pixels

/// The sizes of a ViT: square images in square patches, and the classes that it predicts.
struct VitSizes {
  int64_t side = 0, channels = 0, patch = 0, classes = 0;
  std::vector<std::string> class_names{};
  std::string activation = "gelu";
  bool qkv_bias = true;
  bool distillation_head = false;  ///< DeiT only: a second head reads the distillation token
  int64_t patches() const { return (side / patch) * (side / patch); }
  void fields(Fields& f);
  bool operator==(const VitSizes&) const = default;
};

}  // namespace colossal::models
