// What no order of leaving beats, for an order of uses that was recorded.
//
//   home->begin_record();
//   step();
//   const std::vector<memory::TierEvent> pass = home->end_record();
//   const int64_t least = memory::offline_optimum(pass, host_bytes, 8).back().bytes_read;   // of a step like that one
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/memory/tiers/tier_event.h"

namespace colossal::memory {

struct OptimalPass {
  int64_t bytes_read = 0;
  double evictions = 0;  ///< of tensors that left; of one that left in part, so much of one
};

/// `pass` over and over, `passes` times, beginning with nothing in a host of `budget` bytes: what each pass reads where
/// what is brought again last leaves first, or what nobody brings any more (Belady 1966, over the end of a pass), and a
/// tensor may leave in part. Only Set, Bring and Gone of the events count: what is set is in the host and need not be
/// read; what is brought is read as far as it is not there.
///
/// The passes together read no more than any way to do it, whatever leaves when and whatever is read ahead: where all
/// are of one size whole tensors leave, which Belady proved optimal; else it is a bound from below, since a home moves
/// whole tensors and those that are worked with cannot leave. A tensor of more bytes than the budget is there alone
/// while it is used.
/// Cost: for each event the logarithm of the number of tensors.
std::vector<OptimalPass> offline_optimum(const std::vector<TierEvent>& pass, int64_t budget, int passes);

}  // namespace colossal::memory
