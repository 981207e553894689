// Loops over the threads of LibTorch's own OpenMP pool. at::parallel_for runs serially in a translation unit compiled
// without -fopenmp, because its parallel branch is a template inside `#ifdef _OPENMP`. -fopenmp would link a second
// runtime. So these functions enter the pool that libtorch_cpu has loaded, through its C ABI. The short loops of token
// generation have their own threads: thread_team.h.
#pragma once
#include <cstdint>
#include <functional>

namespace colossal::ops {

/// Calls body(chunk, begin, end) for disjoint ranges that cover [begin, end), at most one range per thread.
///
/// Ranges:        `chunk` counts from 0 to parallel_chunks(end - begin, grain) - 1. All ranges but the last have the
///                same length and hold at least `grain` items. Partial results per chunk are therefore the same for the
///                same thread count.
/// Threads:       at::get_num_threads() of the calling thread, of its team if it has TeamLoops (thread_team.h). Serial
///                (one chunk) inside another parallel region.
/// Errors:        rethrows one of the exceptions of the body after all threads are done.
void parallel_chunks_for(int64_t begin, int64_t end, int64_t grain,
                         const std::function<void(int64_t chunk, int64_t begin, int64_t end)>& body);

/// Runs body(begin, end) as parallel_chunks_for() does, without the chunk number.
void parallel_for(int64_t begin, int64_t end, int64_t grain,
                  const std::function<void(int64_t begin, int64_t end)>& body);

/// Returns how many chunks a loop over `items` has in this thread now.
int64_t parallel_chunks(int64_t items, int64_t grain);

}  // namespace colossal::ops
