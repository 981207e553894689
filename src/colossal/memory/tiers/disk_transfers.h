// Reads and writes extents of a DiskSpace: in requests to its file, in order, with checksums.
#pragma once
#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "colossal/memory/tiers/disk_space.h"

namespace colossal::memory {

struct DiskExtentState {
  const int64_t offset, bytes;
  std::vector<uint64_t> checksums{};  ///< checksums of each request's bytes; only the running transfer uses them
  // Guarded by the mutex of DiskTransfers:
  bool was_written = false;      ///< a write was begun
  bool is_busy = false;          ///< a transfer is running
  std::exception_ptr failure{};  ///< error of the last write; null = none
};

/// The transfers of a DiskSpace, whose contract applies. One thread cuts transfers into requests. The thread that
/// reports the end of a request handles its result. The destructor waits for transfers.
class DiskTransfers {
 public:
  using Direction = BlockRequest::Kind;

  /// `file` must outlive this object.
  DiskTransfers(BlockFile& file, const DiskOptions& options);
  ~DiskTransfers();
  DiskTransfers(const DiskTransfers&) = delete;
  DiskTransfers& operator=(const DiskTransfers&) = delete;

  std::shared_future<void> begin(Direction direction, std::shared_ptr<DiskExtentState> extent,
                                 const at::Tensor& tensor);
  /// Returns the counts of transfers, without used_bytes and file_bytes.
  DiskSpace::Counts counts() const;

 private:
  std::shared_future<void> count_shape(Direction direction, DiskExtentState& extent);
  struct PendingTransfer;
  using PendingPointer = std::shared_ptr<PendingTransfer>;
  struct Stretch;

  void feed();
  void issue_requests(const PendingPointer& pending);
  bool may_request(PendingTransfer& pending);
  void request(const PendingPointer& pending, const Stretch& stretch);
  void answered(const PendingPointer& pending, Stretch stretch, int64_t result);
  std::exception_ptr failure_of(const PendingTransfer& pending, const Stretch& stretch, int error) const;
  std::exception_ptr difference(const PendingTransfer& pending, int64_t number) const;
  void end_participant(PendingTransfer& pending, int requests, const std::exception_ptr& failure);
  void complete(PendingTransfer& pending);

  BlockFile& file_;
  const int64_t request_bytes_;
  const int max_requests_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<PendingPointer> waiting_;
  int requests_ = 0;  // requests that are running
  int pending_ = 0;   // transfers that were begun and are not over
  double busy_since_ = 0;
  DiskSpace::Counts counts_;
  bool stopping_ = false;
  std::thread feeder_;
};

}  // namespace colossal::memory
