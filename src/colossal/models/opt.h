// OPT (arXiv:2205.01068): learned positions that begin at row 2 of their table, relu.
#pragma once
#include <cstdint>
#include <string>

#include "colossal/models/registry.h"

namespace colossal::models {

struct OptSizes {
  std::string activation = "relu";
  bool norm_first =
      true;  ///< norms before the branches; otherwise behind the sums, and none in front of the head (350m)
  bool final_norm = true;  ///< one in front of the head, where norms come first
  bool bias = true;        ///< of linear layers
  int64_t word_features =
      0;  ///< of the rows of the embedding, projected to hidden ones and back; 0: hidden (350m: 512)
  void fields(Fields& f);
  bool operator==(const OptSizes&) const = default;
};

Architecture opt_architecture();

}  // namespace colossal::models
