// BLOOM (arXiv:2211.05100): ALiBi instead of positions, and a norm after the embedding.
#pragma once
#include "colossal/models/registry.h"

namespace colossal::models {

Architecture bloom_architecture();

}  // namespace colossal::models
