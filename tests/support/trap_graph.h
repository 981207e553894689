// Graphs on the trap device. tensor::capture() records operators with the memory that they read and write, and a replay
// runs them again. A value that the host computed during the capture does not change in a replay, so it is wrong there.
//
//   const test::TrapGraphs graphs;               // while it lives, tensor::can_capture(at::kPrivateUse1)
//   const auto graph = tensor::capture(device, [&] { y = x * 2; });
//   // y is NaN, and whatever the body wrote into is as it was: a GPU only records
//   x.fill_(3), graph->replay();                 // y is 6
//   EXPECT_EQ(graphs.replays(), 1);
//
// During a capture, an operation that makes the host wait is an error, as with CUDA. Copies between the host and the
// device are errors, too. CUDA records some of them, but the host memory may be freed before the replay.
#pragma once
#include <cstdint>

#include "colossal/tensor/graph.h"

namespace colossal::test {

/// A scope in which trap devices can record graphs.
class TrapGraphs {
 public:
  TrapGraphs();
  /// Returns the number of captures on all devices since the construction.
  int64_t captures() const;
  /// Returns the number of replays on all devices since the construction.
  int64_t replays() const;

 private:
  tensor::CaptureScope scope_;
  int64_t captures_before_, replays_before_;
};

}  // namespace colossal::test
