#pragma once
#include "colossal/schedule/make.h"

namespace colossal::schedule {

/// Two pipes that run through the ranks in opposite directions, each with half of the micro-batches and its own copy
/// of the weights. The bubble is (p-2) T_F for m = p and T_B = T_F. See: Chimera, arXiv:2107.06925.
Family chimera();

}  // namespace colossal::schedule
