#pragma once
#include "colossal/schedule/make.h"

namespace colossal::schedule {

/// One forward, one backward: bubble (p-1)/m as in GPipe, but rank s holds at most p-s live activations. See:
/// PipeDream-Flush, arXiv:2006.09503.
Family one_f_one_b();

}  // namespace colossal::schedule
