// GPT-2 (Radford et al. 2019) and GPT-3's dense shapes: pre-norm blocks, learned positions, gelu, tied head.
#pragma once
#include "colossal/models/registry.h"

namespace colossal::models {

Architecture gpt2_architecture();

}  // namespace colossal::models
