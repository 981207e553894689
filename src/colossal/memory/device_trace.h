// Traces the device memory that a step needs in addition to its model data, at each moment of the step. It is measured
// in one step and known in the next, and a policy gathers chunks within what it leaves. The method is the runtime
// tracer of Gemini and PatrickStar (Fang et al. 2022, arXiv:2108.05818); here a moment ends when the chunk in use
// changes.
//
//   auto trace = std::make_shared<memory::DeviceTrace>(memory::make_device_meter(device));
//   memory::ChunkStore store(parameters, mesh, options,
//                            std::make_unique<memory::GatherWithinDevice>(trace, bytes,
//                                                                         memory::EvictionOrder::UsedLast));
//   for (...) {
//     trace->begin_step();
//     forward_and_backward();              // the placement reports each change to the trace
//     trace->end_passes();
//     store.end_pass();                    // releases all chunks
//     if (trace->agree(mesh)) require(trace->min_bytes() <= bytes, ...);
//     update();
//     trace->end_step();
//   }
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/memory/device_meter.h"
#include "colossal/memory/placement.h"
#include "colossal/memory/timeline.h"

namespace colossal::memory {

/// Measures a step in moments. A moment lasts from one change of the chunk in use to the next and includes the gathers
/// at its beginning. Memory that these take in addition to their chunks, for parts that are assembled or compressed,
/// counts for the moment that starts. Model data are the gathered chunks and the bytes that on_device() counts. All
/// other memory is `others`: activations, temporaries and whole gradients that are being reduced.
///
/// For each order of uses the trace keeps the maximum over all passes since that order was learnt. The maximum is also
/// over all ranks that may share chunks. These ranks therefore make the same decisions.
///
/// Memory:        64 bytes per moment.
/// Cost:          two readings of the meter per moment.
/// Thread safety: one thread at a time, the one that runs the step.
class DeviceTrace {
 public:
  explicit DeviceTrace(std::unique_ptr<DeviceMeter> meter);

  void begin_step();
  /// Ends a step before its first pass has ended, and forgets what was measured in it.
  void abandon_step();
  /// Returns the counter of the bytes of shards on the device. MovableStore updates it.
  const std::shared_ptr<std::atomic<int64_t>>& on_device() const { return on_device_; }
  /// Sets the bytes of shards that may be on the device at any moment.
  void reserve(int64_t bytes) { reserved_ = bytes; }
  int64_t reserved() const { return reserved_; }
  /// Ends the passes of this step: gathered chunks may be released. The update that follows is a moment of its own.
  void end_passes() { in_passes_ = false; }
  void end_step();
  /// Returns whether begin_step() was called and end_passes() was not.
  bool is_in_passes() const { return in_passes_; }

  // ---- for a placement

  /// Ends the current moment. The caller then releases chunks and calls begin_change().
  void end_moment();
  /// Starts a change: the caller gathers chunks and then calls begin_moment().
  void begin_change();
  /// Starts the moment at the position of `timeline`. `gathered`: bytes of the chunks that are gathered in it.
  /// `in_use`: bytes of those that cannot be released. Position 0 is the time outside of passes: between them, and in
  /// the update.
  void begin_moment(const Timeline& timeline, int64_t gathered, int64_t in_use);
  /// Ends a pass. `timeline` must have ended it too.
  void end_pass(const Timeline& timeline);
  /// Returns the bytes of `others` in the moment at the position of `timeline`, if the pass follows the order that the
  /// ranks agreed on. Returns the maximum over all moments for another order, and none before agree().
  std::optional<int64_t> others(const Timeline& timeline) const;
  /// Returns the bytes that the change to the next moment needs in addition to its chunks, under the same conditions.
  /// Chunks that are gathered ahead of that moment need these bytes now.
  std::optional<int64_t> next_change(const Timeline& timeline) const;

  // ---- results

  /// Distributes new measurements of any rank to all ranks; returns whether there were any. Collective among all ranks.
  /// Communication: an all_reduce of 8 bytes over all ranks. If there is something new, also all_reduces of 24 bytes
  /// and of 24 bytes per moment over all axes but "pipeline". A last one has 8 bytes, over all ranks. The time outside
  /// of passes counts as a moment. Ranks whose passes have different numbers of moments do not exchange these.
  bool agree(comm::Mesh& mesh);
  /// Returns the smallest number of bytes that suffices for all moments of all ranks, with only the chunks gathered
  /// that operators read. It is the same on all ranks.
  int64_t min_bytes() const { return min_bytes_; }
  /// Return the peaks of the current or last step on this rank in bytes: of model data, and of all memory.
  int64_t peak_model() const { return peak_model_; }
  int64_t peak() const { return peak_; }

 private:
  struct Moment {
    int64_t others = 0, in_use = 0;
    int64_t change = 0;  // part of `others`: needed while the moment's chunks were gathered
  };
  /// Raises each member of `known` to that of `measured` if that is larger; returns whether any changed.
  static bool raise(Moment& known, const Moment& measured);
  std::vector<int64_t> packed() const;

  std::unique_ptr<DeviceMeter> meter_;
  std::shared_ptr<std::atomic<int64_t>> on_device_ = std::make_shared<std::atomic<int64_t>>(0);
  int64_t reserved_ = 0, resident_ = 0;  // resident_: on_device_ when the step began
  int64_t peak_ = 0, peak_model_ = 0, min_bytes_ = 0;
  bool in_step_ = false, in_passes_ = false, is_changing_ = false;

  struct Open {
    bool is_of_pass;
    Moment moment;
    int64_t gathered, on_device;  // on_device: when the moment started
  };
  std::optional<Open> open_;                  // the current moment
  std::vector<Moment> measured_;              // moments of the current pass
  std::vector<Moment> known_;                 // moments of the order learnt last
  Moment rest_, rest_before_;                 // outside of passes; when the step began
  int64_t min_before_ = 0;                    // minimum bytes of earlier orders
  uint64_t order_ = 0;                        // order of known_: Timeline::orders()
  bool has_news_ = false, had_news_ = false;  // had_news_: when the step began

  bool is_agreed(const Timeline& timeline) const;
  std::vector<Moment> agreed_;           // known_ when it is the same on all ranks that share chunks; else empty
  int64_t worst_ = 0, agreed_rest_ = 0;  // bytes of others: maximum over all orders, and outside of passes
  bool has_agreed_ = false;
};

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
  ChunkMoves before_use(const Situation& now) override;
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
