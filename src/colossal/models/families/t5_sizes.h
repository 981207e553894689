// The own keys of T5, shared by the model (t5.h) and its folders (t5_folder.h).
#pragma once
#include <cstdint>
#include <string>

#include "colossal/base/fields.h"

namespace colossal::models {

struct T5Sizes {
  int64_t decoder_layers = 0;  ///< decoder layers, the last ones of ModelShape::layers; 0 = half
  int64_t source_tokens = 0;   ///< source tokens of a row if no step sets them; 0 = half
  int64_t start_id = 0;        ///< token id that the decoder reads before an answer, and padding of rows
  /// Number of buckets of relative positions, and the distance from which on all share the last (nn::RelativeBuckets)
  int64_t buckets = 32, max_distance = 128;
  std::string activation = "relu";
  bool gated = false;
  bool scaled_head = true;  ///< whether the head's input is divided by the square root of hidden
  void fields(Fields& f);
  bool operator==(const T5Sizes&) const = default;
};

}  // namespace colossal::models
