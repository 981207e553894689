// What a step needs of the device beside its model data, moment for moment: measured in one step, known in the next.
// The runtime tracer of Gemini and PatrickStar (Fang et al. 2022, arXiv:2108.05818), by changes of chunk.
//
//   auto trace = std::make_shared<memory::DeviceTrace>(memory::make_device_meter(device));
//   memory::ChunkStore store(parameters, mesh, options,
//                            std::make_unique<memory::GatherWithinDevice>(trace, bytes, memory::Leaves::UsedLast));
//   for (...) {
//     trace->begin_step();
//     forward_and_backward();              // the placement tells the trace of each change
//     trace->end_passes();
//     store.end_pass();                    // all is released
//     if (trace->agree(mesh)) require(trace->least() <= bytes, ...);
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
#include "colossal/memory/timeline.h"

namespace colossal::memory {

/// A moment lasts from one change of chunk to the next, the gathers in front of it included: what these take beside
/// their chunks, parts that are put together or compressed, counts for the moment that begins. Model data are chunks
/// that are gathered and what on_device() counts; all else is `others`: activations, temporaries, whole gradients on
/// their way. What is known of an order is the most that was measured in any pass of it since it was learnt, of all
/// ranks that may share chunks: they come to the same decisions by it.
///
/// Memory: 64 bytes a moment. Cost: two looks at the meter a moment.
/// Thread safety: one thread at a time, that of the step.
class DeviceTrace {
 public:
  explicit DeviceTrace(std::unique_ptr<DeviceMeter> meter);

  void begin_step();
  /// Bytes of shards that lie on the device: for MovableHome to count.
  const std::shared_ptr<std::atomic<int64_t>>& on_device() const { return on_device_; }
  /// Sets the bytes of shards that may be on the device at any moment.
  void reserve(int64_t bytes) { reserved_ = bytes; }
  int64_t reserved() const { return reserved_; }
  /// Passes of this step are over: what was gathered may go. What follows, the update, is a moment of its own.
  void end_passes() { in_passes_ = false; }
  void end_step();
  /// Between begin_step() and end_passes().
  bool is_in_passes() const { return in_passes_; }

  // ---- for a placement

  /// The moment that began last is over; then release what is to go, and:
  void end_moment();
  /// What is to come is gathered now; and then:
  void begin_change();
  /// The moment of `timeline`'s position begins: `gathered` bytes of chunks are whole in it, `in_use` of those at
  /// least. Position 0 is all that is no moment of a pass: between passes, and the update.
  void begin_moment(const Timeline& timeline, int64_t gathered, int64_t in_use);
  /// A pass is over, also for `timeline`.
  void end_pass(const Timeline& timeline);
  /// What is known of the moment at timeline's position, where its pass is like one that was agreed upon; of another
  /// order the most of any moment; none before agree().
  std::optional<int64_t> others(const Timeline& timeline) const;
  /// Likewise what the change to the next moment needs at least: chunks that come ahead of it need that now.
  std::optional<int64_t> next_change(const Timeline& timeline) const;

  // ---- what came of it

  /// Makes what was measured known, where something new was on any rank; returns whether. Collective among all ranks.
  /// Communication: an all_reduce of 8 bytes over all; with something new of 24 bytes and of 24 a moment over all but
  /// "pipeline", and one of 8 over all.
  bool agree(comm::Mesh& mesh);
  /// Bytes that all moments of all ranks fit into where nothing but what is read is whole. The same on all ranks.
  int64_t least() const { return least_; }
  /// Peaks in bytes of the current or last step, on this rank: of model data, and of everything.
  int64_t peak_model() const { return peak_model_; }
  int64_t peak() const { return peak_; }

 private:
  struct Moment {
    int64_t others = 0, in_use = 0;
    int64_t change = 0;  // of `others`, what was needed while the moment's chunks were gathered
  };
  /// Takes over what `measured` exceeds; returns whether it did.
  static bool raise(Moment& known, const Moment& measured);
  std::vector<int64_t> packed() const;

  std::unique_ptr<DeviceMeter> meter_;
  std::shared_ptr<std::atomic<int64_t>> on_device_ = std::make_shared<std::atomic<int64_t>>(0);
  int64_t reserved_ = 0, resident_ = 0;  // resident_: on_device_ when the step began
  int64_t peak_ = 0, peak_model_ = 0, least_ = 0;
  bool in_step_ = false, in_passes_ = false, is_changing_ = false;

  struct Open {
    bool is_of_pass;
    Moment moment;
    int64_t gathered, on_device;  // the latter when it began
  };
  std::optional<Open> open_;      // the moment that lasts
  std::vector<Moment> measured_;  // of the pass under way
  std::vector<Moment> known_;     // of the order learnt last
  Moment rest_;                   // outside of passes
  int64_t least_before_ = 0;      // of orders that were learnt before
  uint64_t order_ = 0;            // of known_: Timeline::orders()
  bool has_news_ = false;

  bool is_agreed(const Timeline& timeline) const;
  std::vector<Moment> agreed_;  // known_, once it is the same everywhere; else empty
  int64_t worst_ = 0, agreed_rest_ = 0;
  bool has_agreed_ = false;
};

}  // namespace colossal::memory
