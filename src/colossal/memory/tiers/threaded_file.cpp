#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "colossal/memory/tiers/scratch_file.h"

namespace colossal::memory {
namespace {

/// Returns whether `error` is the disk's, and does not just say that this filesystem has no such call.
bool is_of_disk(int error) { return error == EIO || error == ENOSPC || error == EDQUOT; }

class ThreadedFile final : public ScratchFile {
 public:
  ThreadedFile(int descriptor, std::string folder, bool direct, int threads)
      : ScratchFile(descriptor, std::move(folder), direct) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }

  ~ThreadedFile() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  const char* engine() const override { return "threads"; }

  void begin(BlockRequest request) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(request));
    }
    changed_.notify_one();
  }

 private:
  void work() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const BlockRequest request = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      request.done(carry_out(request));
    }
  }

  int64_t carry_out(const BlockRequest& request) const {
    const auto size = static_cast<size_t>(request.bytes);
    const bool reads = request.kind == BlockRequest::Kind::Read;
    const ssize_t result = reads ? ::pread(descriptor(), request.memory, size, request.offset)
                                 : ::pwrite(descriptor(), request.memory, size, request.offset);
    if (result < 0) return -errno;
    if (is_direct()) return result;
    // The system's cache must not fill with bytes that are read once. It drops only bytes that are on the disk.
    const unsigned now = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    if (!reads && ::sync_file_range(descriptor(), request.offset, result, now) != 0 && is_of_disk(errno)) return -errno;
    ::posix_fadvise(descriptor(), request.offset, result, POSIX_FADV_DONTNEED);
    return result;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<BlockRequest> waiting_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<BlockFile> make_threaded_file(int descriptor, std::string folder, bool direct, int threads) {
  return std::make_unique<ThreadedFile>(descriptor, std::move(folder), direct, threads);
}

}  // namespace colossal::memory
