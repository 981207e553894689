#pragma once
#include "colossal/schedule/make.h"

namespace colossal::schedule {

/// Two pipes that run through the ranks against each other, each with half of the micro-batches and its own copy of the
/// weights. With m = p the bubble is (p-2) T_F at T_B = T_F. See: Chimera, arXiv:2107.06925.
Family chimera();

}  // namespace colossal::schedule
