// PaLM (Chowdhery et al. 2022, arXiv:2204.02311): attention with one key and value head beside a gated feed-forward
// layer, no biases at all, one table for embedding and head. There is no Hugging Face folder of it.
#pragma once
#include "colossal/models/registry.h"

namespace colossal::models {

Architecture palm_architecture();

}  // namespace colossal::models
