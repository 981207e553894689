// The keys of models that encode and decode pictures. This header needs no LibTorch.
//
//   [reconstruction]
//   l1 = 1                       # weight of the distance of pixels
//   kl = 1e-6                    # weight of the divergence of latents from normal numbers
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/base/fields.h"

namespace colossal::run {

/// Name of the objective and of its table.
inline constexpr char kReconstruction[] = "reconstruction";

/// The table [reconstruction].
struct ReconstructionKeys {
  double l1 = 1, kl = 1e-6;
  void fields(Fields& f);
  bool operator==(const ReconstructionKeys&) const = default;
};

/// The keys of [data] for pictures that a model reconstructs.
struct ReconstructionDataKeys {
  std::vector<int64_t> size;  ///< width and height in pixels; empty = those of the model
  bool mirror = false;
  void fields(Fields& f);
  bool operator==(const ReconstructionDataKeys&) const = default;
};

}  // namespace colossal::run
