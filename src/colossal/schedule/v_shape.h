#pragma once
#include "colossal/schedule/make.h"

namespace colossal::schedule {

/// Two chunks per rank, down the ranks and up again. The rank whose first chunk holds activations longest thus has the
/// second chunk that holds them shortest. zero-bubble-v: p live activations on every rank and no bubble at equal costs
/// (arXiv:2401.10241, section 6). v-half: floor((p+2)/2) live activations; v-min: floor((p+4)/3) (arXiv:2405.15362).
/// All send twice the messages of 1F1B.
Family zero_bubble_v();
Family v_half();
Family v_min();

}  // namespace colossal::schedule
