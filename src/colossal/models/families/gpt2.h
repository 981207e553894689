// GPT-2 (Radford et al. 2019) and the GPT-3 sizes (arXiv:2005.14165): pre-norm blocks, LayerNorm, GELU, learned
// positions. With experts, it is a mixture (arXiv:2101.03961).
#pragma once
#include <string>

#include "colossal/models/expert_keys.h"
#include "colossal/models/registry.h"

namespace colossal::models {

struct Gpt2Sizes {
  std::string activation = "gelu_new";
  bool scale_scores = true;            ///< scores are multiplied by 1 / sqrt(head_dim)
  bool scale_scores_by_layer = false;  ///< scores are also multiplied by 1 / (index of the layer + 1)
  ExpertKeys experts{};
  void fields(Fields& f);
  bool operator==(const Gpt2Sizes&) const = default;
};

Architecture gpt2_architecture();

}  // namespace colossal::models
