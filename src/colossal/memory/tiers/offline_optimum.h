// A lower bound on the bytes that any eviction order reads, for a recorded order of uses.
//
//   offload->begin_record();
//   step();
//   const std::vector<memory::TierEvent> pass = offload->end_record();
//   const int64_t least = memory::offline_optimum(pass, host_bytes, 8).back().bytes_read;   // in a step of that order
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/memory/tiers/tiered_store.h"

namespace colossal::memory {

struct OptimalPass {
  int64_t bytes_read = 0;
  double evictions = 0;  ///< evicted tensors; a tensor that is evicted in part counts as a fraction
};

/// Simulates `pass` repeated `passes` times, with a host of `budget` bytes that is empty at first. Returns the bytes
/// that each pass reads. The tensor that is loaded again last, or never, is evicted first (Belady 1966, across the ends
/// of passes), and a tensor may be evicted in part. Only the events Set, Borrow and Gone count. A tensor that is set is
/// in host memory and need not be read. A tensor that is borrowed is read as far as it is not in host memory.
///
/// No schedule of evictions and prefetches reads less in all passes together. If all tensors have one size, complete
/// tensors are evicted, which Belady proved optimal. Otherwise the result is a lower bound, because a store moves
/// complete tensors and cannot evict borrowed ones. A tensor larger than the budget is alone in host memory while it is
/// used.
/// Cost: per event the logarithm of the number of tensors.
std::vector<OptimalPass> offline_optimum(const std::vector<TierEvent>& pass, int64_t budget, int passes);

}  // namespace colossal::memory
