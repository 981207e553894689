#pragma once
#include "colossal/schedule/make.h"

namespace colossal::schedule {

/// W waves: 2W chunks per rank, down and up the ranks W times, without Chimera's second copy of the weights; at most p
/// live activations. The bubble is 2(p-1)/W T_F for m = p and T_B = 2 T_F. Each doubling of W doubles the messages.
/// See: Hanayo, arXiv:2308.15762.
Family hanayo();

}  // namespace colossal::schedule
