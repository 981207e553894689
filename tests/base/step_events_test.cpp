#include "colossal/base/step_events.h"

#include <gtest/gtest.h>

namespace colossal::step_events_test {
namespace {

TEST(StepEvents, StoresEachGroupOnce) {
  StepEvents events;
  EXPECT_EQ(events.index_of({"data", {0, 2}}), 0);
  EXPECT_EQ(events.index_of({"tensor", {0, 1}}), 1);
  EXPECT_EQ(events.index_of({"data", {0, 2}}), 0);
  EXPECT_EQ(events.index_of({"data", {1, 3}}), 2) << "other ranks";
  EXPECT_EQ(events.index_of({"sequence", {0, 2}}), 3) << "the same ranks for another purpose";
  EXPECT_EQ(events.groups.size(), 4u);
}

}  // namespace
}  // namespace colossal::step_events_test
