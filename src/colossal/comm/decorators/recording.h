// Records every call of a rank in any of its groups and, between them, the operations that it announces.
//
//   const auto simulated = comm::make_simulated_world(5, 64);  // or any other world
//   comm::RecordingWorld world(*simulated);
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
class ObservedOperators;
class OperationListener;
}  // namespace colossal::tensor

namespace colossal::comm {

/// A request of one rank to a group: everything about a Call except the values.
struct RecordedCall {
  std::string group;
  int32_t group_index = -1;  ///< group in the list events().groups, which has the ranks of each group once
  Collective collective = Collective::Barrier;
  Reduce op = Reduce::Sum;                        ///< reduction of all_reduce, reduce_scatter and reduce
  int peer = 0;                                   ///< rank within the group: root, or the other rank of send and recv
  c10::ScalarType dtype = c10::ScalarType::Byte;  ///< dtype of the tensor; Byte for a barrier
  std::vector<int64_t> out_sizes, in_sizes;       ///< equal if the call is in place; empty if there is no such tensor
  std::vector<int64_t> out_rows, in_rows;         ///< row counts of all_to_all, as given
  Payload sent;                                   ///< payload that this rank sends
  Phase phase = Phase::Other;                     ///< phase of the world's traffic at the start of the call
  bool operator==(const RecordedCall&) const = default;
};

/// A world that records all calls of this rank in groups of several ranks, in the order in which they were issued. A
/// call whose arguments are refused is not recorded. Counters, watchdog and results are the inner world's. The inner
/// world must outlive this one, and this one must outlive its groups. Thread safe.
/// Cost: memory that grows with every call and announcement.
class RecordingWorld final : public WorldDecorator {
 public:
  explicit RecordingWorld(World& inner);
  ~RecordingWorld() override;
  std::shared_ptr<Group> make_group(const std::string& name, const std::vector<int>& ranks,
                                    const std::string& channel = "") override;
  std::vector<RecordedCall> calls() const;
  /// Returns one list, in order: the calls and the waits for them, and what was announced while an Operations object
  /// existed. Each event has the phase, micro-batch and chunk of the rank's traffic.
  StepEvents events() const;
  /// Returns the number of events so far, which is the index of the next one in events().
  int64_t event_count() const;
  /// Clears the record, for instance between two steps.
  void clear();

  enum class Detail {
    Operations,  ///< products and attention, which are the same on shapes alone and in a real run
    /// elementwise work too: our kernels, and the operators that LibTorch runs on these tensors' device; and the
    /// transfers of tiers with the waits for them (tensor/transfers.h)
    All,
  };
  /// During its lifetime, adds to events() the operations that this thread announces, also in backward passes that it
  /// starts (tensor/flops.h, tensor/moved_bytes.h, tensor/transfers.h). The thread that made it must destroy it, before
  /// `world`.
  class Operations {
   public:
    explicit Operations(RecordingWorld& world, Detail detail = Detail::Operations);
    ~Operations();
    Operations(const Operations&) = delete;
    Operations& operator=(const Operations&) = delete;

   private:
    std::unique_ptr<tensor::OperationListener> listener_;
    std::unique_ptr<tensor::ObservedOperators> observed_;
  };

 private:
  class Record;
  class RecordedWork;
  class RecordingGroup;
  const std::shared_ptr<Record> record_;
};

}  // namespace colossal::comm
