// The own keys of GPT-J.
#pragma once
#include <cstdint>
#include <string>

#include "colossal/base/fields.h"

namespace colossal::models {

struct GptjSizes {
  std::string activation = "gelu_new";
  int64_t rotary_features = 64;  ///< rotated features of each head; its folders store them as pairs of neighbours
  void fields(Fields& f);
  bool operator==(const GptjSizes&) const = default;
};

}  // namespace colossal::models
