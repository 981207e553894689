// Loops over the threads of LibTorch's own OpenMP pool. at::parallel_for runs serially in a unit compiled without
// -fopenmp (its parallel branch is a template behind `#ifdef _OPENMP`), and -fopenmp would link a second runtime, so
// the pool that libtorch_cpu has loaded is entered by its C ABI instead. The short loops of a token that is generated
// have threads of their own: thread_team.h.
#pragma once
#include <cstdint>
#include <functional>

namespace colossal::ops {

/// Calls body(chunk, begin, end) on disjoint ranges that cover [begin, end), at most one range per thread.
///
/// Ranges:        `chunk` counts from 0 to parallel_chunks(end - begin, grain) - 1; all ranges but the last are equally
///                long and hold at least `grain` items, so partial results kept per chunk are the same for the same
///                thread count.
/// Threads:       at::get_num_threads() of the calling thread. Serial (one chunk) inside another parallel region.
/// Errors:        rethrows one of the exceptions of the body after all threads are done.
void parallel_chunks_for(int64_t begin, int64_t end, int64_t grain,
                         const std::function<void(int64_t chunk, int64_t begin, int64_t end)>& body);

/// Runs body(begin, end) as parallel_chunks_for() does, without the chunk number.
void parallel_for(int64_t begin, int64_t end, int64_t grain,
                  const std::function<void(int64_t begin, int64_t end)>& body);

/// How many chunks a loop over `items` will have in this thread now.
int64_t parallel_chunks(int64_t items, int64_t grain);

}  // namespace colossal::ops
