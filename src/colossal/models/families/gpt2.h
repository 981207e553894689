// The own keys of GPT-2.
#pragma once
#include <string>

#include "colossal/models/expert_keys.h"

namespace colossal::models {

struct Gpt2Sizes {
  std::string activation = "gelu_new";
  bool scale_scores = true;            ///< scores are multiplied by 1 / sqrt(head_dim)
  bool scale_scores_by_layer = false;  ///< scores are also multiplied by 1 / (index of the layer + 1)
  ExpertKeys experts{};
  void fields(Fields& f);
  bool operator==(const Gpt2Sizes&) const = default;
};

}  // namespace colossal::models
