// StepEvents lists the work of one rank in a training step, in order: its calls to other ranks and the points where it
// waits for them, its matrix products, its attention operations, and everything else by the bytes of memory that it
// moves. Reading the list needs neither LibTorch nor a device.
//
//   const StepEvents events = train::record_step({config, shape}, 5);    // rank 5 of the run, on shapes alone
//   for (const StepEvent& event : events.list)
//     if (event.kind == StepEvent::Kind::Call) seconds += event.bytes / bandwidth_of(events.groups[event.group].ranks);
//     else seconds += event.operations / operations_per_second;
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/collective.h"

namespace colossal {

/// One event. A member that does not apply has its default.
struct StepEvent {
  enum class Kind : uint8_t {
    Call,         ///< a collective, or a message to or from one rank
    Product,      ///< a matrix product [m, k] [k, n]; m = n = k = 0: a layer that announces only its operations
    Attention,    ///< scores and weighted sums of one attention, in forward or backward
    Elementwise,  ///< work whose time is that of memory: elementwise operators, norms, copies, updates of parameters
    Wait,         ///< the rank stops until a call or transfer of its own is over; not for messages that it sent
    HostCopy,     ///< a copy between device and host, of the tiers of [memory]; it may overlap with work
    Disk,         ///< a read or a write of a scratch file of [memory]; it may overlap with work
  };
  static constexpr auto kSend = static_cast<uint8_t>(Collective::Send);
  static constexpr auto kReceive = static_cast<uint8_t>(Collective::Recv);
  static constexpr uint8_t kOptimizer = 3;  ///< comm::Phase::Optimizer
  Kind kind = Kind::Call;
  uint8_t collective = 0;       ///< code of colossal::Collective; calls only
  uint8_t phase = 0;            ///< comm::Phase
  uint8_t dtype = 0;            ///< c10::ScalarType of the elements sent, or of the factors before any conversion
  bool recomputed = false;      ///< true: forward work that a backward pass repeats; its phase is that of backward
  int16_t chunk = -1;           ///< chunk of the pipeline schedule that the rank works on; -1 = none
  int32_t micro_batch = -1;     ///< micro-batch that the rank works on; -1 = none
  int32_t group = -1;           ///< index in StepEvents::groups; calls only
  int32_t peer = -1;            ///< rank within the group: the root, or the other rank of a message; -1 = none
  int32_t call = -1;            ///< Wait: what ends it, by its place among the calls and transfers of the list, from 0
  int64_t m = 0, n = 0, k = 0;  ///< sizes of a product
  double operations = 0;        ///< floating-point operations; a multiplication and an addition are two
  double bytes = 0;             ///< bytes that this rank sends (calls, 0 for a receiver) or copies (HostCopy, Disk)
  /// bytes that Elementwise work reads from the memory of the device, HostCopy too (a copy to the host), and that Disk
  /// reads from the disk
  double read = 0;
  double written = 0;  ///< bytes written there; of HostCopy and Disk one of the two is `bytes`, the other 0
  bool operator==(const StepEvent&) const = default;
};

/// The events of one rank.
struct StepEvents {
  struct Group {
    std::string name;        ///< the axis or purpose that the group was made for
    std::vector<int> ranks;  ///< ranks of the run, in the order of the group
    bool operator==(const Group&) const = default;
  };
  std::vector<StepEvent> list;  ///< events, in the order in which the rank started them
  std::vector<Group> groups;    ///< groups, in the order of their first call; each group is stored once

  /// Returns the index of `group` in `groups`. A new group is appended.
  int32_t index_of(const Group& group);
  bool operator==(const StepEvents&) const = default;
};

}  // namespace colossal
