#include <liburing.h>

#include <cerrno>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "colossal/memory/tiers/scratch_file.h"

namespace colossal::memory {
namespace {

// Tags of completions that belong to no request: kStop ends the thread, kNothing is ignored.
constexpr uint64_t kStop = 0, kNothing = 1, kFirstRequest = 2;

/// Any thread submits requests under the mutex, and one thread waits for completions. The two ends of a ring are
/// independent.
class IoUringFile final : public ScratchFile {
 public:
  /// `ring`: owned by this object from now on, as `descriptor` is.
  IoUringFile(int descriptor, const std::string& folder, bool direct, const io_uring& ring)
      : ScratchFile(descriptor, folder, direct), ring_(ring), waits_([this] { complete(); }) {}

  ~IoUringFile() override {
    {
      const std::lock_guard lock(mutex_);
      io_uring_sqe* entry = next_entry();
      io_uring_prep_nop(entry);
      submit(entry, kStop);
    }
    waits_.join();
    io_uring_queue_exit(&ring_);
  }

  const char* engine() const override { return "io_uring"; }

  void begin(BlockRequest request) override {
    std::unique_lock lock(mutex_);
    io_uring_sqe* entry = next_entry();
    if (!entry) {  // entries that the system refused fill the queue
      lock.unlock();
      return request.done(-EAGAIN);
    }
    const auto size = static_cast<unsigned>(request.bytes);
    const auto offset = static_cast<uint64_t>(request.offset);
    if (request.kind == BlockRequest::Kind::Read)
      io_uring_prep_read(entry, descriptor(), request.memory, size, offset);
    else
      io_uring_prep_write(entry, descriptor(), request.memory, size, offset);
    const uint64_t tag = next_tag_++;
    const auto place = under_way_.emplace(tag, std::move(request)).first;
    const int error = submit(entry, tag);
    if (error == 0) return;
    io_uring_prep_nop(entry);  // the entry is in the queue and would be submitted with the next one
    entry->user_data = kNothing;
    const BlockRequest refused = std::move(place->second);
    under_way_.erase(place);
    lock.unlock();
    refused.done(-error);
  }

 private:
  /// Returns a free entry. There is always one, because each is submitted before the next one is taken.
  io_uring_sqe* next_entry() { return io_uring_get_sqe(&ring_); }

  int submit(io_uring_sqe* entry, uint64_t tag) {
    entry->user_data = tag;
    for (;;) {
      const int result = io_uring_submit(&ring_);
      if (result >= 0) return 0;
      if (result != -EINTR && result != -EAGAIN && result != -EBUSY) return -result;
      std::this_thread::yield();  // the system is short of memory at the moment
    }
  }

  void complete() {
    for (;;) {
      io_uring_cqe* completion = nullptr;
      if (io_uring_wait_cqe(&ring_, &completion) != 0) continue;  // interrupted
      const uint64_t tag = completion->user_data;
      const int64_t result = completion->res;
      io_uring_cqe_seen(&ring_, completion);
      if (tag == kStop) return;
      if (tag >= kFirstRequest) take(tag).done(result);
    }
  }

  BlockRequest take(uint64_t tag) {
    const std::lock_guard lock(mutex_);
    return std::move(under_way_.extract(tag).mapped());
  }

  io_uring ring_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, BlockRequest> under_way_;
  uint64_t next_tag_ = kFirstRequest;
  std::thread waits_;
};

/// Returns whether the system supports the requests used here: they were added in Linux 5.6, rings in 5.1.
bool knows_our_requests(io_uring& ring) {
  const std::unique_ptr<io_uring_probe, decltype(&io_uring_free_probe)> probe(io_uring_get_probe_ring(&ring),
                                                                              &io_uring_free_probe);
  if (!probe) return false;  // the probe was added in 5.6, too
  for (const int operation : {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_NOP})
    if (!io_uring_opcode_supported(probe.get(), operation)) return false;
  return true;
}

}  // namespace

std::unique_ptr<BlockFile> make_io_uring_file(int descriptor, const std::string& folder, bool direct, int requests) {
  io_uring ring{};
  // One more entry is for the one that ends the thread. There are twice as many completions, and the system keeps those
  // that do not fit.
  if (io_uring_queue_init(static_cast<unsigned>(requests) + 1, &ring, 0) != 0) return nullptr;
  if (!knows_our_requests(ring)) {
    io_uring_queue_exit(&ring);
    return nullptr;
  }
  return std::make_unique<IoUringFile>(descriptor, folder, direct, ring);
}

}  // namespace colossal::memory
