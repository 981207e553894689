// Codes and names of collectives: counters, recorded steps and profiles on disk have them.
#include "colossal/base/collective.h"

#include <gtest/gtest.h>

#include "colossal/base/step_events.h"

namespace colossal::collective_test {
namespace {

TEST(Collective, KeepsItsCodesAndNames) {
  const char* names[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
                         "reduce",     "send",       "recv",           "barrier"};
  for (int code = 0; code <= static_cast<int>(Collective::Barrier); ++code)
    EXPECT_STREQ(to_string(static_cast<Collective>(code)), names[code]);
  EXPECT_STREQ(to_string(static_cast<Collective>(200)), "an unknown collective");
}

TEST(Collective, NamesTheMessagesOfStepEvents) {
  EXPECT_STREQ(to_string(static_cast<Collective>(StepEvent::kSend)), "send");
  EXPECT_STREQ(to_string(static_cast<Collective>(StepEvent::kReceive)), "recv");
}

}  // namespace
}  // namespace colossal::collective_test
