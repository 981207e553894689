// Records when a rank of a pipeline ran each step of its list, by the clock of the device that computes.
//
//   OpTimes times(device);
//   times.begin();
//   wait_for_input();
//   times.begin();                // waiting is no part of the step
//   compute(step);
//   times.end(step);
//   ...
//   times.events(rank);           // once the steps are over
#pragma once
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <vector>

#include "colossal/schedule/simulate.h"

namespace colossal::parallel {

/// Measures steps. On the CPU, and on meta, it uses the host's clock. On an accelerator the host runs ahead: it
/// submits the kernels of a step and continues. There the current stream records an event at each begin and end, and
/// the host waits for them only in events().
class OpTimes {
 public:
  explicit OpTimes(at::Device device);

  /// Removes all steps.
  void clear();
  /// Marks the start of the next step; the last call before end() counts.
  void begin();
  void end(const schedule::PipelineOp& step);
  /// Returns the times of all steps that ended, in order, in seconds since 1970. Ranks of one host share a clock;
  /// ranks of several hosts agree as well as their clocks do. On an accelerator times are accurate to the duration of
  /// a launch.
  /// Cost: on an accelerator the host waits until the current stream is done.
  std::vector<schedule::Event> events(int rank) const;

 private:
  /// Records event `index` on the current stream.
  void mark(size_t index);

  at::Device device_;
  std::vector<schedule::PipelineOp> steps_;
  double began_ = 0;
  std::vector<double> host_;       // begins and ends, alternating
  std::vector<c10::Event> marks_;  // begins and ends on an accelerator; the next run of the list reuses them
};

}  // namespace colossal::parallel
