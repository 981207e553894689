// PaLM (Chowdhery et al. 2022, arXiv:2204.02311): attention with one key and value head parallel to a gated
// feed-forward layer, no biases, one table for embedding and head. It has no Hugging Face folder.
#pragma once
#include "colossal/models/registry.h"

namespace colossal::models {

Architecture palm_architecture();

}  // namespace colossal::models
