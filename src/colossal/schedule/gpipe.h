#pragma once
#include "colossal/schedule/make.h"

namespace colossal::schedule {

/// All forwards, then all backwards: bubble (p-1)/m, m live activations. See: GPipe, arXiv:1811.06965.
Family gpipe();

}  // namespace colossal::schedule
