#include "colossal/memory/tiers/disk_transfers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "colossal/base/bytes.h"
#include "colossal/base/checksum.h"
#include "colossal/base/clock.h"
#include "colossal/base/error.h"
#include "colossal/memory/tiers/aligned_tensor.h"

namespace colossal::memory {
namespace {

// Maximum number of consecutive tries without progress: the system delays a request, or transfers less than a block of
// it.
constexpr int kTries = 100;

}  // namespace

/// A running transfer. The mutex guards `left` and `failure`.
struct DiskTransfers::PendingTransfer {
  Direction direction;
  std::shared_ptr<DiskExtentState> extent;
  at::Tensor tensor;
  char* memory;
  int64_t left = 1;  // requests that are not over, plus 1 while issue_requests() issues requests
  std::exception_ptr failure{};
  std::promise<void> over{};
  bool reads() const { return direction == Direction::Read; }
};

/// The part of request `number` that is not transferred yet: bytes of the extent, in whole blocks.
struct DiskTransfers::Stretch {
  int64_t number, begin, end;
  int tries = 0;
};

DiskTransfers::DiskTransfers(BlockFile& file, const DiskOptions& options)
    : file_(file), request_bytes_(options.request_bytes), max_requests_(options.file.requests) {
  require(request_bytes_ > 0 && request_bytes_ % kBlock == 0, "disk", "requests must be multiples of ", kBlock,
          " bytes: got ", request_bytes_);
  require(max_requests_ > 0, "disk", "at least one request must be in flight: got ", max_requests_);
  feeder_ = std::thread([this] { feed(); });
}

DiskTransfers::~DiskTransfers() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return pending_ == 0; });
    stopping_ = true;
  }
  changed_.notify_all();
  feeder_.join();
}

std::shared_future<void> DiskTransfers::begin(Direction direction, std::shared_ptr<DiskExtentState> extent,
                                              const at::Tensor& tensor) {
  const char* verb = direction == Direction::Read ? "read" : "written";
  require(extent != nullptr, "disk", "an extent without space cannot be ", verb);
  require(is_aligned(tensor), "disk", "a tensor that is ", verb,
          " must be contiguous, on the host, begin at a multiple of ", kBlock,
          " bytes and have memory up to the next one: make it with empty_aligned()");
  require(static_cast<int64_t>(tensor.nbytes()) == extent->bytes, "disk", "a tensor that is ", verb,
          " must have the bytes of its extent, ", extent->bytes, ": got ", tensor.nbytes());
  if (tensor.is_meta()) return count_shape(direction, *extent);
  // A write does not change the tensor, but both directions share one pointer.
  auto* memory = static_cast<char*>(const_cast<void*>(tensor.const_data_ptr()));
  auto pending = std::make_shared<PendingTransfer>(PendingTransfer{direction, std::move(extent), tensor, memory});
  std::shared_future<void> over = pending->over.get_future().share();
  {
    const std::lock_guard lock(mutex_);
    require(!pending->reads() || pending->extent->was_written, "disk", "an extent must be written before it is read");
    pending->extent->was_written = true;
    if (pending_++ == 0) busy_since_ = steady_seconds();
    waiting_.push_back(std::move(pending));
  }
  changed_.notify_all();
  return over;
}

/// Counts a transfer of a tensor on meta, which is over at once.
std::shared_future<void> DiskTransfers::count_shape(Direction direction, DiskExtentState& extent) {
  std::promise<void> over;
  over.set_value();
  const bool reads = direction == Direction::Read;
  const std::lock_guard lock(mutex_);
  require(!reads || extent.was_written, "disk", "an extent must be written before it is read");
  extent.was_written = true;
  ++(reads ? counts_.reads : counts_.writes);
  (reads ? counts_.bytes_read : counts_.bytes_written) += whole_blocks(extent.bytes);
  return over.get_future().share();
}

DiskSpace::Counts DiskTransfers::counts() const {
  const std::lock_guard lock(mutex_);
  DiskSpace::Counts counts = counts_;
  if (pending_ > 0) counts.busy_seconds += steady_seconds() - busy_since_;
  return counts;
}

void DiskTransfers::feed() {
  for (;;) {
    PendingPointer pending;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      pending = std::move(waiting_.front());
      waiting_.pop_front();
      DiskExtentState& extent = *pending->extent;
      changed_.wait(lock, [&] { return !extent.is_busy; });
      extent.is_busy = true;
      if (pending->reads()) pending->failure = extent.failure;
    }
    issue_requests(pending);
  }
}

void DiskTransfers::issue_requests(const PendingPointer& pending) {
  DiskExtentState& extent = *pending->extent;
  const int64_t end = whole_blocks(extent.bytes);
  if (!pending->reads()) extent.checksums.resize(static_cast<size_t>((end + request_bytes_ - 1) / request_bytes_));
  for (Stretch stretch{0, 0, 0}; stretch.begin < end; ++stretch.number, stretch.begin = stretch.end) {
    stretch.end = std::min(stretch.begin + request_bytes_, end);
    if (!pending->reads()) {  // overlaps with the requests that were issued before
      const auto size = static_cast<size_t>(std::min(stretch.end, extent.bytes) - stretch.begin);
      extent.checksums[static_cast<size_t>(stretch.number)] = checksum_number(pending->memory + stretch.begin, size);
    }
    if (!may_request(*pending)) break;
    request(pending, stretch);
  }
  end_participant(*pending, 0, nullptr);
}

/// Waits until a request may be issued. Returns false if the transfer has failed, so that further requests are useless.
bool DiskTransfers::may_request(PendingTransfer& pending) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return pending.failure || requests_ < max_requests_; });
  if (pending.failure) return false;
  ++requests_;
  ++pending.left;
  return true;
}

void DiskTransfers::request(const PendingPointer& pending, const Stretch& stretch) {
  file_.begin({pending->direction, pending->memory + stretch.begin, stretch.end - stretch.begin,
               pending->extent->offset + stretch.begin,
               [this, pending, stretch](int64_t result) { answered(pending, stretch, result); }});
}

void DiskTransfers::answered(const PendingPointer& pending, Stretch stretch, int64_t result) {
  const bool is_put_off = result == -EINTR || result == -EAGAIN;
  // Rounded down, because the remaining part must start at a block.
  const int64_t moved = std::max<int64_t>(result, 0) / kBlock * kBlock;
  std::exception_ptr failure;
  if (result < 0 && !is_put_off) {
    failure = failure_of(*pending, stretch, static_cast<int>(-result));
  } else if (moved < stretch.end - stretch.begin) {
    stretch.begin += moved;
    stretch.tries = moved > 0 ? 0 : stretch.tries + 1;
    if (stretch.tries < kTries) return request(pending, stretch);
    failure = failure_of(*pending, stretch, result < 0 ? static_cast<int>(-result) : EIO);
  } else if (pending->reads()) {
    failure = difference(*pending, stretch.number);
  }
  end_participant(*pending, 1, failure);
}

/// Returns an Error for `error`, which the system reported at the beginning of `stretch`.
std::exception_ptr DiskTransfers::failure_of(const PendingTransfer& pending, const Stretch& stretch, int error) const {
  const bool is_full = error == ENOSPC || error == EDQUOT;
  return std::make_exception_ptr(
      Error("disk", concat(pending.reads() ? "reading " : "writing ", stretch.end - stretch.begin, " bytes at byte ",
                           pending.extent->offset + stretch.begin, " of the scratch file in ", file_.folder(),
                           " failed: ", std::strerror(error), "; ",
                           is_full ? "free space on that disk" : "that disk is faulty or gone (see the system's log)",
                           ", or name a folder on another disk in memory.disk")));
}

/// Returns an Error if the bytes that a request read differ from the bytes that were written; else null.
std::exception_ptr DiskTransfers::difference(const PendingTransfer& pending, int64_t number) const {
  const DiskExtentState& extent = *pending.extent;
  const int64_t begin = number * request_bytes_, size = std::min(request_bytes_, extent.bytes - begin);
  const uint64_t expected = extent.checksums[static_cast<size_t>(number)];
  if (checksum_number(pending.memory + begin, static_cast<size_t>(size)) == expected) return nullptr;
  return std::make_exception_ptr(Error(
      "disk", concat("the ", size, " bytes at byte ", extent.offset + begin, " of the scratch file in ", file_.folder(),
                     " differ from those that were written (by their checksums); that disk, or the memory of this "
                     "machine, is faulty: name a folder on another disk in memory.disk")));
}

/// Ends one participant of the transfer: issue_requests(), or a request if `requests` is 1. The last participant ends
/// the transfer.
void DiskTransfers::end_participant(PendingTransfer& pending, int requests, const std::exception_ptr& failure) {
  bool is_last = false;
  {
    const std::lock_guard lock(mutex_);
    if (failure && !pending.failure) pending.failure = failure;
    requests_ -= requests;
    is_last = --pending.left == 0;
    changed_.notify_all();
  }
  if (is_last) complete(pending);
}

void DiskTransfers::complete(PendingTransfer& pending) {
  {
    const std::lock_guard lock(mutex_);
    DiskExtentState& extent = *pending.extent;
    extent.is_busy = false;
    if (!pending.reads()) extent.failure = pending.failure;
    if (!pending.failure) {
      ++(pending.reads() ? counts_.reads : counts_.writes);
      (pending.reads() ? counts_.bytes_read : counts_.bytes_written) += whole_blocks(extent.bytes);
    }
  }
  pending.tensor.reset();
  pending.extent.reset();  // may free the extent's space
  std::promise<void> over = std::move(pending.over);
  const std::exception_ptr failure = pending.failure;
  {
    const std::lock_guard lock(mutex_);
    if (--pending_ == 0) counts_.busy_seconds += steady_seconds() - busy_since_;
    changed_.notify_all();  // the destructor may run next, so no member is used from here on
  }
  if (failure)
    over.set_exception(failure);
  else
    over.set_value();
}

}  // namespace colossal::memory
