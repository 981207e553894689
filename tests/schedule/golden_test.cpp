// Orders of the steps of pipeline schedules, written out literally; other programs and the papers have the same ones.
#include <gtest/gtest.h>

#include "schedule/orders.h"

namespace colossal::schedule::golden_test {
namespace {

TEST(Golden, OneForwardOneBackward) {
  const Schedule schedule = make("1f1b", 4, 8);
  EXPECT_EQ(order_of(schedule, 0), "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
  EXPECT_EQ(order_of(schedule, 1), "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7");
  EXPECT_EQ(order_of(schedule, 2), "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7");
  EXPECT_EQ(order_of(schedule, 3), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
}

TEST(Golden, InterleavedOnTwoRanks) {
  const Schedule schedule = make("interleaved", 2, 4);
  EXPECT_EQ(order_of(schedule, 0), "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a");
  EXPECT_EQ(order_of(schedule, 1), "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a");
}

TEST(Golden, InterleavedOnFourRanks) {
  const Schedule schedule = make("interleaved", 4, 8);
  EXPECT_EQ(order_of(schedule, 0),
            "F0a F1a F2a F3a F0b F1b F2b F3b F4a F5a F6a B0b F7a B1b F4b B2b F5b B3b F6b B0a F7b B1a B2a B3a B4b B5b "
            "B6b B7b B4a B5a B6a B7a");
  EXPECT_EQ(order_of(schedule, 3),
            "F0a F1a F2a F3a F0b B0b F1b B1b F2b B2b F3b B3b F4a B0a F5a B1a F6a B2a F7a B3a F4b B4b F5b B5b F6b B6b "
            "F7b B7b B4a B5a B6a B7a");
}

TEST(Golden, ZeroBubbleH1) {
  const Schedule schedule = make("zero-bubble-h1", 4, 8);
  EXPECT_EQ(order_of(schedule, 0), "F0 F1 F2 F3 B0 W0 B1 F4 B2 F5 B3 W1 F6 W2 B4 F7 B5 W3 W4 W5 B6 W6 B7 W7");
  EXPECT_EQ(order_of(schedule, 3), "F0 B0 F1 B1 F2 B2 F3 B3 W0 W1 F4 B4 F5 B5 W2 W3 F6 B6 F7 B7 W4 W5 W6 W7");
}

TEST(Golden, GpipeAndOneRank) {
  EXPECT_EQ(order_of(make("gpipe", 2, 3), 1), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(order_of(make("1f1b", 1, 3), 0), "F0 B0 F1 B1 F2 B2");
}

std::string lines(const Schedule& schedule, int rank) {
  std::string out;
  for (const PipelineOp& step : schedule.ranks[rank]) out += to_string(step, schedule.placement.chunks()) + "\n";
  return out;
}

TEST(Golden, PutsTransfersWhereTheMessagesAreSent) {
  const Schedule schedule = make("1f1b", 2, 2);
  EXPECT_EQ(lines(schedule, 0),
            "F0\nSendForward 0 to 1\nF1\nSendForward 1 to 1\nReceiveBackward 0 from 1\nB0\nReceiveBackward 1 from "
            "1\nB1\nReduce\nUpdate\n");
  EXPECT_EQ(lines(schedule, 1),
            "ReceiveForward 0 from 0\nF0\nReceiveForward 1 from 0\nB0\nSendBackward 0 to 0\nF1\nB1\nSendBackward 1 to "
            "0\nReduce\nUpdate\n");
}

TEST(Golden, NeedsNoTransferAtTheTurnsOfAZigzag) {
  const Schedule schedule = make("hanayo", 2, 1);
  EXPECT_EQ(lines(schedule, 1),
            "ReceiveForward 0a from 0\nF0a\nF0b\nSendForward 0b to 0\nReceiveBackward 0b from 0\nB0b\nReduce "
            "b\nB0a\nSendBackward 0a to 0\nReduce a\nUpdate\n");
}

// The maps from (rank, chunk) to (pipe, stage) and back are inverse, so each stage is where its placement says.
TEST(Placement, AgreesInBothDirections) {
  for (const Placement& placement :
       {Placement::looped(3, 2), Placement::zigzag(3, 4), Placement::opposed(4), Placement::looped(1, 1)}) {
    for (int rank = 0; rank < placement.ranks(); ++rank) {
      for (int chunk = 0; chunk < placement.chunks(); ++chunk) {
        const int pipe = placement.pipe_of(chunk), stage = placement.stage_of(rank, chunk);
        ASSERT_LT(stage, placement.stages());
        EXPECT_EQ(placement.rank_of(pipe, stage), rank);
        EXPECT_EQ(placement.chunk_of(pipe, stage), chunk);
      }
    }
  }
  EXPECT_EQ(Placement::zigzag(3, 2).rank_of(0, 3), 2);
  EXPECT_EQ(Placement::zigzag(3, 2).rank_of(0, 5), 0);
  EXPECT_EQ(Placement::opposed(4).rank_of(1, 0), 3);
  EXPECT_EQ(Placement::looped(3, 2).rank_of(0, 4), 1);
}

}  // namespace
}  // namespace colossal::schedule::golden_test
