// BLOOM (arXiv:2211.05100): ALiBi in place of positions, a norm behind the embedding.
#pragma once
#include "colossal/models/registry.h"

namespace colossal::models {

Architecture bloom_architecture();

}  // namespace colossal::models
