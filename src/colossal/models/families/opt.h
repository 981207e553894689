// The own keys of OPT.
#pragma once
#include <cstdint>
#include <string>

#include "colossal/base/fields.h"

namespace colossal::models {

struct OptSizes {
  std::string activation = "relu";
  /// True = norms before the branches; false = norms after the sums, and none before the head (350m)
  bool norm_first = true;
  bool final_norm = true;  ///< a norm before the head, if norm_first
  bool bias = true;        ///< whether linear layers have biases
  /// Number of features in the embedding's rows, projected to hidden features and back; 0 = hidden (350m: 512)
  int64_t word_features = 0;
  void fields(Fields& f);
  bool operator==(const OptSizes&) const = default;
};

}  // namespace colossal::models
