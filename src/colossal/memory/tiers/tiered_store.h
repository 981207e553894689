// An offload store that keeps tensors in host memory up to a budget, and on a disk beyond it.
//
//   auto offload = std::make_shared<memory::TieredStore>(memory::TieredStore::Options{
//       .host_bytes = int64_t{8} << 30, .disk = std::make_shared<memory::DiskSpace>("scratch/"),
//       .eviction_policy = memory::make_eviction_policy("auto")});
//   options.offload = offload;               // memory::ChunkOptions
//   for (...) {
//     offload->begin_step();
//     train();                               // borrows parameters, gradients and states, always in one order
//     offload->end_step();
//   }
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "colossal/memory/offload_store.h"
#include "colossal/memory/tiers/disk_space.h"
#include "colossal/memory/tiers/eviction_policy.h"

namespace colossal::memory {

/// An event of a tensor of a TieredStore, which it records on request.
struct TierEvent {
  enum class Kind {
    Set,     ///< the tensor got new values from memory by offload() or replace(); it is in host memory
    Borrow,  ///< a borrow started; the tensor is in host memory
    Return,  ///< a borrow ended without changes
    Change,  ///< a borrow ended, and the values changed
    Gone,    ///< the values are discarded: OffloadedTensor::discard(), or the handle was destroyed
    Read,    ///< a read from the disk started; the tensor takes room in host memory
    Write,   ///< a write to the disk started
    Leave,   ///< the tensor takes no room in host memory any more
  } kind;
  size_t number;  ///< number of the tensor; after its end a later tensor may get it
  int64_t bytes;  ///< bytes of host memory that the tensor takes while it is there
};

struct TieredStoreState;

/// Keeps tensors in aligned buffers of host memory. If another tensor needs the room, the eviction policy chooses the
/// tensors that move to the disk. A borrow reads a tensor that is only on the disk into a buffer, in which the borrower
/// works with it. If the tensor was changed, it is written back when it is evicted.
///
/// The store records the order of uses in a step and predicts it for the next one. While one tensor is in use, it reads
/// the tensors that are used next, and writes ahead what will be evicted. A predicted tensor never displaces one that
/// is used before it. If a caller announces a tensor without a predicted use (OffloadedTensor::prefetch()), it
/// displaces the tensors that the policy chooses.
///
/// Memory:            host_bytes for all buffers, including transfers. The tensors that are borrowed at one time must
///                    fit together with one more. With a disk, a single tensor that offload() stores and that does not
///                    fit may exceed host_bytes until it is on the disk.
/// Cost:              per call the logarithm of the number of tensors, and a look at each of the uses that `ahead`
///                    covers.
/// Errors ("memory"): offload(), replace() and borrows throw if the borrowed tensors and the new tensor together exceed
///                    the budget; without a disk, if all tensors do. The message has a budget that suffices. They also
///                    throw errors of the disk, and of any tensor that was being evicted.
/// Thread safety:     as OffloadedTensor. A thread that waits for the disk makes other callers wait; copies of
///                    OffloadedTensor::copy_to() run in parallel. With a disk, the store has a thread that reads ahead.
class TieredStore final : public OffloadStore {
 public:
  struct Options {
    /// Budget of host memory; the default = no limit
    int64_t host_bytes = std::numeric_limits<int64_t>::max();
    std::shared_ptr<DiskSpace> disk{};                  ///< null = no disk: all tensors must fit into the host's budget
    std::unique_ptr<EvictionPolicy> eviction_policy{};  ///< null = the policy "auto"
    /// Fraction of the budget for tensors that are read before they are used; 0 = only OffloadedTensor::prefetch()
    /// reads ahead
    double ahead = 0.25;
    /// Device from which tensors are stored and to which they are copied. If it is an accelerator, buffers are pinned.
    /// Neither the device nor the host then waits for copies to buffers, unless four tensors are already being copied.
    /// If it is meta, buffers have no memory, and the store makes the same choices and counts the same bytes
    at::Device device = at::kCPU;
    /// Clause at the end of the error about a budget that is too small: what the user may change in addition to the
    /// budget; empty = none
    std::string remedy{};
  };
  explicit TieredStore(Options options);
  ~TieredStore() override;

  /// Copies tensors of the device to the host, where they are borrowed afterwards. The device memory is freed when a
  /// later call of the store finds that the copy is over.
  std::unique_ptr<OffloadedTensor> offload(const at::Tensor& tensor) override;
  at::Device borrow_device(at::Device device) const override { return device.is_meta() ? device : at::kCPU; }

  /// Start and end a step: the uses between the two calls. The next step is expected to repeat their order. Uses
  /// outside of steps predict nothing. abandon_step() ends a step whose uses so far predict nothing; so does a second
  /// begin_step(), which then starts the step anew.
  void begin_step();
  void end_step();
  void abandon_step();

  int64_t host_bytes() const;

  const DiskSpace* disk() const;  ///< null = no disk

  struct Counts {
    int64_t host_bytes = 0;                     ///< bytes of tensors in host memory
    int64_t peak_host_bytes = 0;                ///< bytes of all buffers, including idle ones
    int64_t disk_bytes = 0;                     ///< bytes of tensors that are only on the disk
    int64_t bytes_read = 0, bytes_written = 0;  ///< bytes moved between host memory and disk
    int64_t bytes_given = 0;  ///< bytes stored by offload() and replace(), from where they were computed
    int64_t evictions = 0;    ///< tensors evicted from host memory
    /// tensors read from the disk; reads_ahead: those of them that were read before they were used
    int64_t reads = 0, reads_ahead = 0;
  };
  Counts counts() const;

  /// Records events until end_record() returns them; changes nothing else. Memory: 24 bytes per event of a use or of a
  /// transfer, see TierEvent.
  void begin_record() const;
  std::vector<TierEvent> end_record() const;

 private:
  std::unique_ptr<TieredStoreState> state_;
};

}  // namespace colossal::memory
