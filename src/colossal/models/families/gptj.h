// GPT-J (Wang and Komatsuzaki 2021): attention and feed-forward layer read one norm, rotary positions rotate the first
// features of each head, and the head has a bias.
#pragma once
#include <cstdint>
#include <string>

#include "colossal/models/registry.h"

namespace colossal::models {

struct GptjSizes {
  std::string activation = "gelu_new";
  int64_t rotary_features = 64;  ///< rotated features of each head; its folders store them as pairs of neighbours
  void fields(Fields& f);
  bool operator==(const GptjSizes&) const = default;
};

Architecture gptj_architecture();

}  // namespace colossal::models
