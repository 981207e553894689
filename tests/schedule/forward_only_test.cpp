// Schedules of pipelines whose first stages have nothing to train.
#include "colossal/schedule/forward_only.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "colossal/schedule/simulate.h"

namespace colossal::schedule::forward_only_test {
namespace {

/// Micro-batches and directions of the messages from one rank to another, in the order of one of the two.
using Messages = std::map<std::pair<int, int>, std::vector<std::pair<bool, int>>>;

TEST(FrozenStages, RunForwardOnlyAndLeaveOthersUnchanged) {
  for (const Family& family : families()) {
    const Schedule whole = make_schedule({.name = family.name, .stages = 4, .micro_batches = 8});
    const int stages = whole.placement.stages();
    for (int first = 0; first <= stages; ++first) {
      const Schedule part = without_frozen_stages(whole, first);
      Messages sent, received;
      std::map<int, int> backward;  // backward steps by stage
      for (int rank = 0; rank < 4; ++rank)
        for (const PipelineOp& step : part.ranks[rank]) {
          const bool forward = step.action == Action::SendForward || step.action == Action::ReceiveForward;
          if (is_send(step.action)) sent[{rank, step.peer}].push_back({forward, step.micro_batch});
          if (is_receive(step.action)) received[{step.peer, rank}].push_back({forward, step.micro_batch});
          if (is_backward(step.action)) ++backward[whole.placement.stage_of(rank, step.chunk)];
        }
      EXPECT_EQ(sent, received) << family.name << " from stage " << first;
      for (int stage = 0; stage < stages; ++stage)
        EXPECT_EQ(backward[stage], stage < first ? 0 : 8) << family.name << " from stage " << first;
      EXPECT_LE(simulate(part, Costs{}).makespan, simulate(whole, Costs{}).makespan + 1e-9);
      if (first == 0) EXPECT_EQ(part.ranks, whole.ranks);
    }
  }
}

}  // namespace
}  // namespace colossal::schedule::forward_only_test
