// Which chunks are whole on a device of limited memory.
//
//   memory::ChunkStore store(parameters, mesh, options,
//                            std::make_unique<memory::GatherWithinDevice>(trace, bytes, memory::Leaves::UsedLast));
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "colossal/memory/device_trace.h"
#include "colossal/memory/placement.h"

namespace colossal::memory {

/// Share of the device that is planned with: what lies beyond it is for what differs from one step to the next.
inline constexpr double kSteadyShare = 0.9;

/// Chunks that are whole share the device with what its trace knows of the moment: as many stay, and the next one is
/// gathered ahead, as kSteadyShare of `bytes` leaves room for beside the others, what its gather takes among them, and
/// the shards that lie there. Where nothing is known, until the ranks have agreed on a first step, no chunk is whole
/// but those that operators read: whatever capacity suffices for a step suffices for the first one, too, and what it
/// measures needs no other plan than this. (Gemini gives model data a share of the device then, its warm-up ratio: here
/// that share is nothing, the only one that cannot be too large.) All of them are released with the last pass of a
/// step, and after each pass outside of steps.
///
/// Memory: what operators read at a time, or as much as fits.
/// Cost:   that of GatherWithin.
class GatherWithinDevice final : public Placement {
 public:
  GatherWithinDevice(std::shared_ptr<DeviceTrace> trace, int64_t bytes, Leaves leaves)
      : trace_(std::move(trace)), capacity_(bytes), leaves_(leaves) {}
  Plan before_use(const Situation& now) override;
  std::vector<size_t> after_pass(const Situation& now) override;
  void released() override { trace_->begin_change(); }
  void settled(const Situation& now) override;

 private:
  /// Bytes of chunks that may be whole beside `others`.
  int64_t room_beside(std::optional<int64_t> others) const;

  std::shared_ptr<DeviceTrace> trace_;
  int64_t capacity_;
  Leaves leaves_;
};

}  // namespace colossal::memory
