// Part of each test program whose tests open accounts in ranks that are threads (tests/CMakeLists.txt): it calls
// memory::track_host_memory() before the first test, as main() of a program does.
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include "colossal/memory/account.h"

namespace colossal::test {
namespace {

class TrackedHostMemory : public testing::Environment {
  void SetUp() override {
    EXPECT_EQ(c10::GetCPUAllocator(), c10::GetDefaultCPUAllocator()) << "linking the library must change nothing";
    memory::track_host_memory();
  }
};

[[maybe_unused]] const testing::Environment* const tracked =
    testing::AddGlobalTestEnvironment(new TrackedHostMemory);  // owned by googletest

}  // namespace
}  // namespace colossal::test
