// Vision Transformer (arXiv:2010.11929): patches, a class token, learned positions, pre-norm blocks without a causal
// mask, exact GELU.
#pragma once
#include "colossal/models/registry.h"

namespace colossal::models {

Architecture vit_architecture();

}  // namespace colossal::models
