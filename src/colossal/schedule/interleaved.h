#pragma once
#include "colossal/schedule/make.h"

namespace colossal::schedule {

/// 1F1B with v chunks per rank, micro-batches in groups of p: bubble (p-1)/(vm), p(1 + (p-1)/(pv)) live activations, v
/// times the messages. See: Megatron-LM, arXiv:2104.04473, section 2.2.
Family interleaved();

}  // namespace colossal::schedule
