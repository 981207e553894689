// Send and receive between the ranks of a segment: one ring of bytes per ordered pair of ranks.
#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "colossal/comm/backends/slots.h"
#include "colossal/comm/group.h"

namespace colossal::comm {

/// Transfers of one pair and direction complete in the order of their calls. A message that fits the free space of its
/// ring (256 KB for up to 4 ranks, 64 KB for 8) is sent at once. Parts of a longer message are moved by any thread
/// that waits for a transfer of this group, or else by a background thread. Ranks may therefore all send before they
/// receive, at any size, if they wait for the sends afterwards.
class Channels : public std::enable_shared_from_this<Channels> {
 public:
  Channels(std::shared_ptr<Slots> slots, std::string group);
  ~Channels();
  Channels(const Channels&) = delete;
  Channels& operator=(const Channels&) = delete;

  /// `x` is a CPU tensor; it is kept alive until the transfer is done.
  /// Errors: wait() throws Error("comm", ...) if the arriving message has another size or dtype, if the peer left or
  ///         died, or if the group was aborted.
  Work send(const at::Tensor& x, int to);
  Work recv(const at::Tensor& x, int from);
  /// Wakes this rank's waiting threads, so that they see the reason of an abort.
  void wake() noexcept;

 private:
  class Transfer;
  class Pending;
  Work start(std::shared_ptr<Transfer> transfer);
  void wait(Transfer& transfer);
  void progress();      // needs mutex_
  void fail_orphans();  // needs mutex_
  void run();

  const std::shared_ptr<Slots> slots_;
  const std::string group_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Transfer>> pending_;
  int waiters_ = 0;
  bool stopping_ = false;
  std::thread thread_;  // started by the first transfer that does not complete at once
};

}  // namespace colossal::comm
