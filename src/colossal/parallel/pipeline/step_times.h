// When a rank of a pipeline was at which step of its list, by the clock of whoever computes.
//
//   StepTimes times(device);
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

/// On the CPU, and on meta, the host's clock. On an accelerator the host is early: it hands over the kernels of a step
/// and goes on. There the current stream gets an event at each begin and end, and nobody waits for them before events()
/// is asked for.
class StepTimes {
 public:
  explicit StepTimes(at::Device device);

  /// Forgets all steps.
  void clear();
  /// The next step begins here, and no earlier than where this was called last.
  void begin();
  void end(const schedule::Step& step);
  /// Of all steps that ended, in their order: seconds since 1970. Ranks of one host agree about them, of several as
  /// well as their clocks do, and of an accelerator to the time that a launch takes.
  /// Cost: on an accelerator the host waits until the current stream is done.
  std::vector<schedule::Event> events(int rank) const;

 private:
  /// The current stream passes event `index` here.
  void mark(size_t index);

  at::Device device_;
  std::vector<schedule::Step> steps_;
  double began_ = 0;
  std::vector<double> host_;       // begins and ends in turn
  std::vector<c10::Event> marks_;  // the same on an accelerator; they are used again in the next run of the list
};

}  // namespace colossal::parallel
