#include "colossal/base/machine.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "colossal/base/version.h"

namespace colossal::machine_test {
namespace {

TEST(Machine, DescribesTheMachineConsistently) {
  const Machine machine = describe_machine();
  EXPECT_FALSE(machine.host.empty());
  EXPECT_GE(machine.cores, 1);
  EXPECT_LE(machine.cores, static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_GT(machine.memory_total, int64_t{64} << 20);
  EXPECT_GT(machine.memory_available, 0);
  EXPECT_LE(machine.memory_available, machine.memory_total);
  EXPECT_FALSE(machine.instruction_sets.empty());
}

TEST(Machine, CountsAllocationsInResidentBytes) {
  constexpr size_t kBytes = size_t{64} << 20;
  const int64_t before = resident_bytes();
  ASSERT_GT(before, 0);
  const std::vector<char> block(kBytes, 1);
  const int64_t during = resident_bytes();
  // Other memory may be freed at the same time, so the test expects only most of the block.
  EXPECT_GT(during - before, static_cast<int64_t>(kBytes) * 3 / 4);
  // The kernel has separate counters for the two values and updates both late, hence the tolerance.
  EXPECT_GE(peak_resident_bytes() + static_cast<int64_t>(kBytes) / 4, during);
  EXPECT_EQ(block[kBytes - 1], 1);
}

TEST(Version, EqualsTheProjects) { EXPECT_STREQ(version(), "0.1.0"); }

}  // namespace
}  // namespace colossal::machine_test
