// The families of schedules. A new one is a source x.cpp, its declaration here and its row in make.cpp.
// p is the number of ranks, m that of micro-batches.
#pragma once
#include "colossal/schedule/make.h"

namespace colossal::schedule {

/// All forwards, then all backwards: bubble (p-1)/m, m live activations. See: GPipe, arXiv:1811.06965.
Family gpipe();

/// One forward, one backward: bubble (p-1)/m as in GPipe, but rank s holds at most p-s live activations. See:
/// PipeDream-Flush, arXiv:2006.09503.
Family one_f_one_b();

/// Two pipes that run through the ranks in opposite directions, each with half of the micro-batches and its own copy
/// of the weights. The bubble is (p-2) T_F for m = p and T_B = T_F. See: Chimera, arXiv:2107.06925.
Family chimera();

/// 1F1B with v chunks per rank, micro-batches in groups of p: bubble (p-1)/(vm), p(1 + (p-1)/(pv)) live activations, v
/// times the messages. See: Megatron-LM, arXiv:2104.04473, section 2.2.
Family interleaved();

/// 1F1B whose weight gradients fill the idle time, with the memory of 1F1B: bubble (p-1)(T_F + T_B - T_W), at most p
/// live activations. See: Zero Bubble Pipeline Parallelism, arXiv:2401.10241.
Family zero_bubble_h1();

/// The schedule of zero_bubble_h1() with more forwards in flight: bubble (p-1)(T_F + T_B - 2 T_W), none at equal costs;
/// at most 2p-1 live activations.
Family zero_bubble_h2();

/// W waves: 2W chunks per rank, down and up the ranks W times, without Chimera's second copy of the weights; at most p
/// live activations. The bubble is 2(p-1)/W T_F for m = p and T_B = 2 T_F. Each doubling of W doubles the messages.
/// See: Hanayo, arXiv:2308.15762.
Family hanayo();

/// Two chunks per rank, down the ranks and up again. The rank whose first chunk holds activations longest thus has the
/// second chunk that holds them shortest. zero-bubble-v: p live activations on every rank and no bubble at equal costs
/// (arXiv:2401.10241, section 6). v-half: floor((p+2)/2) live activations; v-min: floor((p+4)/3) (arXiv:2405.15362).
/// All send twice the messages of 1F1B.
Family zero_bubble_v();
Family v_half();
Family v_min();

}  // namespace colossal::schedule
