// LLaMA 1-3 (arXiv:2302.13971, 2307.09288, 2407.21783): RMSNorm, rotary positions, SwiGLU, grouped queries, no biases.
#pragma once
#include "colossal/models/registry.h"

namespace colossal::models {

Architecture llama_architecture();

}  // namespace colossal::models
