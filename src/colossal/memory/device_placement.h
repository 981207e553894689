// A policy that gathers chunks within the memory of a device.
//
//   memory::ChunkStore store(parameters, mesh, options,
//                            std::make_unique<memory::GatherWithinDevice>(trace, bytes,
//                                                                         memory::EvictionOrder::UsedLast));
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "colossal/memory/device_trace.h"
#include "colossal/memory/placement.h"

namespace colossal::memory {

/// Share of the device that plans may use. The rest is for differences between one step and the next.
inline constexpr double kSteadyShare = 0.9;

/// Keeps as many chunks gathered, and gathers the next one ahead, as the device has room for. The room is kSteadyShare
/// of `bytes` minus the other memory that the trace knows of the moment, and minus the shards on the device. The other
/// memory includes what the gather itself needs.
///
/// Before the ranks have agreed on a first step, no moment is known and only chunks that operators read are gathered. A
/// capacity that suffices for a step therefore suffices for the first one, too, and its measurements need no other
/// plan. Gemini gives model data a share of the device in that phase, its warm-up ratio. Here that share is 0, the only
/// one that cannot be too large. All chunks are released after the last pass of a step, and after each pass outside of
/// steps.
///
/// Memory: the chunks that operators read at a time, or as many as fit.
/// Cost:   as GatherWithin.
class GatherWithinDevice final : public Placement {
 public:
  GatherWithinDevice(std::shared_ptr<DeviceTrace> trace, int64_t bytes, EvictionOrder order)
      : trace_(std::move(trace)), capacity_(bytes), order_(order) {}
  Plan before_use(const Situation& now) override;
  std::vector<size_t> after_pass(const Situation& now) override;
  void released() override { trace_->begin_change(); }
  void settled(const Situation& now) override;

 private:
  /// Returns the bytes of chunks that may be gathered in addition to `others`; 0 if `others` is unknown.
  int64_t room_beside(std::optional<int64_t> others) const;

  std::shared_ptr<DeviceTrace> trace_;
  int64_t capacity_;
  EvictionOrder order_;
};

}  // namespace colossal::memory
