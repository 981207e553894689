// Vision Transformer (arXiv:2010.11929): patches, a class token, learned positions, pre-norm blocks without a causal
// mask, exact GELU. Also DeiT (arXiv:2012.12877), which has a second learned token after the first, for distillation.
#pragma once
#include "colossal/models/registry.h"

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

Architecture vit_architecture();
/// Returns the architecture DeiT, whose attention includes the distillation token. The head reads the class token, as
/// in DeiTForImageClassification. With VitSizes::distillation_head a second head reads the distillation token, and the
/// logits are the mean of both heads, as in DeiTForImageClassificationWithTeacher.
Architecture deit_architecture();

}  // namespace colossal::models
