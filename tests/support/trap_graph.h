// Graphs on the trap device: tensor::capture() writes operators down, with the memory that they read and write, and a
// replay runs them again. What the host knew while it captured is a wrong number in the next replay.
//
//   const test::TrapGraphs graphs;               // while it lives, tensor::can_capture(at::kPrivateUse1)
//   const auto graph = tensor::capture(device, [&] { y = x * 2; });
//   // y is NaN, and whatever the body wrote into is as it was: a GPU only records
//   x.fill_(3), graph->replay();                 // y is 6
//   EXPECT_EQ(graphs.replays(), 1);
//
// Refused while it captures, as CUDA does: whatever makes the host wait. Refused too, though CUDA records some: copies
// between the host and the device, whose memory of the host nobody would keep.
#pragma once
#include <cstdint>

#include "colossal/tensor/graph.h"

namespace colossal::test {

/// Lets trap devices record while it lives.
class TrapGraphs {
 public:
  TrapGraphs();
  /// Since it was made, on all of them.
  int64_t captures() const;
  int64_t replays() const;

 private:
  tensor::CaptureScope scope_;
  int64_t captures_before_, replays_before_;
};

}  // namespace colossal::test
