#pragma once
#include "colossal/schedule/make.h"

namespace colossal::schedule {

/// 1F1B whose weight gradients fill the idle time, with the memory of 1F1B: bubble (p-1)(T_F + T_B - T_W), at most p
/// live activations. See: Zero Bubble Pipeline Parallelism, arXiv:2401.10241.
Family zero_bubble_h1();

/// The schedule of zero_bubble_h1() with more forwards in flight: bubble (p-1)(T_F + T_B - 2 T_W), none at equal costs;
/// at most 2p-1 live activations.
Family zero_bubble_h2();

}  // namespace colossal::schedule
