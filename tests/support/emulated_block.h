// A block of threads of a GPU in one thread of the host, for kernel bodies written in the words of ops/lanes.h:
// declared here as ops/simt.h wants them outside of nvcc.
//
//   test::EmulatedBlock::run(16, false, [&] { numbers[block_thread()] = sum_of<float>(splat(1.0f)); });
//
// Threads are contexts of their own that take turns where a block or a warp has to meet, warp after warp, so that what
// happens does not depend on the machine. Between two barriers one warp is done before the next one starts: whoever
// forgets a barrier reads what is not written yet, or what is already written over.
#pragma once
#include <cstddef>
#include <functional>

namespace colossal::test {

/// Its warps are smaller than real ones, so that there are several and yet few contexts to switch.
class EmulatedBlock {
 public:
  static constexpr int kWarp = 4, kMostThreads = 32 * kWarp;

  /// Runs `thread` once in every thread of a new block of so many, whole warps; where they need not wait the first one
  /// goes first, or `backwards` the last one. Errors: throws if some threads of the
  /// block, or of a warp, wait for others that have ended or wait elsewhere, where a GPU would hang.
  static void run(int threads, bool backwards, const std::function<void()>& thread);

  // What the block at work in this thread of the host offers its threads.
  static int thread();
  static int threads();
  static void wait_for_block();
  static void wait_for_warp();
  static void* scratch();               ///< 16 bytes a warp that the block shares
  static void* scratch_of(int thread);  ///< 16 bytes of a thread that its warp sees
};

}  // namespace colossal::test

namespace colossal::ops {
namespace {

constexpr int kWarp = test::EmulatedBlock::kWarp;
inline int block_thread() { return test::EmulatedBlock::thread(); }
inline int block_threads() { return test::EmulatedBlock::threads(); }
inline void block_barrier() { test::EmulatedBlock::wait_for_block(); }
template <class W>
W of_neighbour(W value, int distance) {
  const auto given = [](int thread) { return static_cast<W*>(test::EmulatedBlock::scratch_of(thread)); };
  *given(block_thread()) = value;
  test::EmulatedBlock::wait_for_warp();
  const W received = *given(block_thread() ^ distance);
  test::EmulatedBlock::wait_for_warp();
  return received;
}
template <class W>
W* block_scratch() {
  return static_cast<W*>(test::EmulatedBlock::scratch());
}

}  // namespace
}  // namespace colossal::ops
