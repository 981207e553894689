// The memory of one rank in a training step. Reading it needs neither LibTorch nor a device.
//
//   const StepMemory memory = train::record_step({config, shape}, 5).memory;
//   if (memory.peak_bytes > device_bytes) suggest_recomputation(memory.kinds.activations);
//   for (const StepMemory::Point& point : memory.curve) draw_memory(point.event, point.kinds.device());
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "colossal/base/fields.h"

namespace colossal {

/// Bytes of a rank's tensors in one step, without the memory of LibTorch itself.
struct StepMemory {
  /// Bytes of each memory::Kind.
  struct Kinds {
    int64_t parameters = 0, gradients = 0, states = 0, activations = 0, buffers = 0;
    int64_t host = 0;  ///< host memory of tiers, and of work done there
    void fields(Fields& f);
    /// Returns the bytes of all kinds but `host`.
    int64_t device() const { return parameters + gradients + states + activations + buffers; }
    bool operator==(const Kinds&) const = default;
  };
  /// The memory from event `event` until the event of the next point.
  struct Point {
    int64_t event = 0;  ///< index in StepEvents::list of the first event that starts afterwards, as `peak_event`
    Kinds kinds;        ///< bytes at the moment with the most device(); `host` is the most at any of these moments
    bool operator==(const Point&) const = default;
  };
  /// The most bytes of each kind at any moment. The moments differ, so their sum exceeds `peak_bytes`.
  Kinds kinds;
  int64_t peak_bytes = 0;  ///< the most bytes of all kinds but `host` together
  /// The most bytes that the run counts for memory.device: on a CPU without the rows of its batch, which it has before
  /// the step begins; 0 = no such budget
  int64_t budget_bytes = 0;
  int64_t budget_host_bytes = 0;  ///< the most bytes that the run counts for memory.host; 0 = no tiers
  /// Index in StepEvents::list of the first event that starts after the peak is reached; the size of the list if the
  /// peak is after the last event
  int64_t peak_event = 0;
  /// Memory over the step, by ascending `event`, at most kCurvePoints points. The most device() of a point is
  /// `peak_bytes`. Empty if it was not recorded
  std::vector<Point> curve;
  bool operator==(const StepMemory&) const = default;
};

/// The most points of StepMemory::curve.
inline constexpr size_t kCurvePoints = 2048;

/// Returns at most `count` points (at least 1) for the same step. Neighbours become one point at the event of the
/// first, with the kinds of the fullest of them and the most `host` of all. So the peaks remain. Cost: O(points).
std::vector<StepMemory::Point> fewer_points(const std::vector<StepMemory::Point>& points, size_t count);

}  // namespace colossal
