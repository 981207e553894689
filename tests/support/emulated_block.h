// A GPU block of threads, emulated in one thread of the host, for kernel bodies that use ops/lanes.h. The functions
// that ops/device/simt.h requires outside of nvcc are declared here.
//
//   test::EmulatedBlock::run(16, false, [&] { numbers[block_thread()] = sum_of<float>(splat(1.0f)); });
//
// Threads are separate contexts. They switch only at barriers of the block or the warp, warp after warp, so the result
// does not depend on the machine. Between two barriers, one warp completes before the next one starts. A kernel that
// lacks a barrier therefore reads values that are not written yet, or already overwritten.
#pragma once
#include <cstddef>
#include <functional>

namespace colossal::test {

/// The emulator. Its warps are smaller than those of a GPU, so a block has several warps but few contexts to switch.
class EmulatedBlock {
 public:
  static constexpr int kWarp = 4, kMaxThreads = 32 * kWarp;

  /// Runs `thread` once in every thread of a new block of `threads` threads, a multiple of kWarp. Between barriers the
  /// first thread runs first; if `backwards` is true, the last one does.
  /// Errors: throws if some threads of the block, or of a warp, wait for others that have ended or wait at another
  ///         barrier. A GPU would hang there.
  static void run(int threads, bool backwards, const std::function<void()>& thread);

  // The following functions serve the threads of the block that runs in this thread of the host.
  static int thread();
  static int threads();
  static void wait_for_block();
  static void wait_for_warp();
  static void* scratch();               ///< memory that the block shares, 16 bytes per warp
  static void* scratch_of(int thread);  ///< 16 bytes of one thread, which its warp can access
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
