// The sizes that a T5 has beside those of all models: what the model (t5.h) and its folders (t5_folder.h) share.
#pragma once
#include <cstdint>
#include <string>

#include "colossal/base/fields.h"

namespace colossal::models {

struct T5Sizes {
  int64_t decoder_layers = 0;            ///< of ModelShape::layers, behind those of the encoder; 0: half
  int64_t source_tokens = 0;             ///< of a row that nobody says more of; 0: half
  int64_t start_id = 0;                  ///< what the decoder reads in front of an answer, and what fills up rows
  int64_t buckets = 32, farthest = 128;  ///< of relative positions (nn::RelativeBuckets)
  std::string activation = "relu";
  bool gated = false;
  bool scaled_head = true;  ///< what the head reads is divided by the root of hidden
  void fields(Fields& f);
  bool operator==(const T5Sizes&) const = default;
};

}  // namespace colossal::models
