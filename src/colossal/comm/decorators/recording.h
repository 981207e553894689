// Records every call that a rank makes in any of its groups, and between them the operations that it announces.
//
//   const auto idle = comm::make_idle_world(5, 64);      // or any other world
//   comm::RecordingWorld world(*idle);
//   comm::Mesh mesh(world, {comm::Mesh::batch("data", 8), {"tensor", 8}});
//   mesh.group("tensor").all_reduce(x, comm::Reduce::Sum).wait();
//   world.calls()[0].sent.bytes;                         // 2 * 7/8 of the bytes of x
//
//   const comm::RecordingWorld::Operations operations(world);    // calls, products and attention in one list
//   engine->train_step(batch);
//   const StepEvents events = world.events();
#pragma once
#include <c10/core/ScalarType.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "colossal/base/step_events.h"
#include "colossal/comm/decorators/decorator.h"

namespace colossal::tensor {
class OperationListener;
}

namespace colossal::comm {

/// What one rank asked of a group: everything about a Call but the values.
struct RecordedCall {
  std::string group;
  std::vector<int> ranks;  ///< of the world, in group order
  Collective collective = Collective::Barrier;
  Reduce op = Reduce::Sum;                        ///< of all_reduce, reduce_scatter and reduce
  int peer = 0;                                   ///< within the group: root, or the other rank of send and recv
  c10::ScalarType dtype = c10::ScalarType::Byte;  ///< of a barrier: Byte
  std::vector<int64_t> out_sizes, in_sizes;       ///< equal in place; empty if there is no such tensor
  std::vector<int64_t> out_rows, in_rows;         ///< of all_to_all, as they were given
  Payload sent;                                   ///< by this rank
  Phase phase = Phase::Other;                     ///< of the world's traffic when the call began
  bool operator==(const RecordedCall&) const = default;
};

/// The world within, with a record of all calls of this rank in groups of several ranks, in the order in which they
/// were begun. A call whose arguments are refused is not recorded. Counters, watchdog and results are those of the
/// world within, which must outlive this one, as this one its groups. Thread safe.
/// Cost: memory that grows with every call and announcement.
class RecordingWorld final : public WorldDecorator {
 public:
  explicit RecordingWorld(World& inner);
  ~RecordingWorld() override;
  std::shared_ptr<Group> make_group(const std::string& name, const std::vector<int>& ranks,
                                    const std::string& channel = "") override;
  std::vector<RecordedCall> calls() const;
  /// One list, in order: these calls, and the products and attention that were announced while an Operations lived.
  StepEvents events() const;
  /// Forgets everything so far, for instance between two steps.
  void clear();

  /// While it lives, events() gains what this thread announces, and backward passes that it starts (tensor/flops.h). It
  /// must be destroyed by the thread that made it, before `world`.
  class Operations {
   public:
    explicit Operations(RecordingWorld& world);
    ~Operations();
    Operations(const Operations&) = delete;
    Operations& operator=(const Operations&) = delete;

   private:
    std::unique_ptr<tensor::OperationListener> listener_;
  };

 private:
  class Record;
  class RecordingGroup;
  const std::shared_ptr<Record> record_;
};

}  // namespace colossal::comm
