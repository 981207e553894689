// The emulated block of threads that runs the library's kernels on the trap device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "colossal/base/error.h"
#include "support/emulated_block.h"

namespace colossal::test::emulated_block_trap_test {
namespace {

TEST(EmulatedBlock, RunsWarpByWarpBetweenBarriers) {
  for (const bool backwards : {false, true}) {
    std::vector<int> order;
    EmulatedBlock::run(8, backwards, [&] {
      order.push_back(EmulatedBlock::thread());
      EmulatedBlock::wait_for_warp();
      order.push_back(10 + EmulatedBlock::thread());
      EmulatedBlock::wait_for_block();
      order.push_back(20 + EmulatedBlock::thread());
    });
    std::vector<int> want{0, 1, 2, 3, 10, 11, 12, 13, 4, 5, 6, 7, 14, 15, 16, 17, 20, 21, 22, 23, 24, 25, 26, 27};
    if (backwards) want = {7, 6, 5, 4, 17, 16, 15, 14, 3, 2, 1, 0, 13, 12, 11, 10, 27, 26, 25, 24, 23, 22, 21, 20};
    EXPECT_EQ(order, want);
  }
}

TEST(EmulatedBlock, RefusesKernelsThatWouldHang) {
  const auto says = [](const char* what) { return testing::ThrowsMessage<Error>(testing::HasSubstr(what)); };
  EXPECT_THAT([] { EmulatedBlock::run(6, false, [] {}); }, says("whole warps of 4: got 6"));
  const auto some_wait = [] {
    EmulatedBlock::run(8, false, [] {
      if (EmulatedBlock::thread() < 4) EmulatedBlock::wait_for_block();
    });
  };
  EXPECT_THAT(some_wait, says("wait for others that have ended"));
  const auto some_of_a_warp_wait = [] {
    EmulatedBlock::run(8, false, [] {
      if (EmulatedBlock::thread() == 1) EmulatedBlock::wait_for_warp();
    });
  };
  EXPECT_THAT(some_of_a_warp_wait, says("the threads of warp 0 wait in different places"));
}

}  // namespace
}  // namespace colossal::test::emulated_block_trap_test
