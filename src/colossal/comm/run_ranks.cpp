#include "colossal/comm/run_ranks.h"

#include <c10/util/Exception.h>

#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <typeinfo>

#include "colossal/base/error.h"
#include "colossal/comm/backends/shared_memory.h"
#include "colossal/comm/decorators/host_staging.h"
#include "colossal/comm/rank_world.h"
#include "colossal/comm/simulated_world.h"

namespace colossal::comm {
namespace {

/// Gives every member of a group the same memory: the first member makes it, the last one removes the entry.
class Segments {
 public:
  std::shared_ptr<Segment> get(const std::string& key, int size) {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[key];
    if (!entry.segment) entry.segment = make_heap_segment(Slots::segment_bytes(size));
    auto segment = entry.segment;
    if (++entry.members == size) entries_.erase(key);
    return segment;
  }

 private:
  struct Entry {
    std::shared_ptr<Segment> segment;
    int members = 0;
  };
  std::mutex mutex_;
  std::map<std::string, Entry> entries_;
};

/// The worlds of one run, and the first failure in it.
class ThreadRun {
 public:
  ThreadRun(int n, const RankOptions& options) : worlds_(n) {
    const auto store = Store::in_memory();
    const auto segments = std::make_shared<Segments>();
    for (int r = 0; r < n; ++r) {
      const bool off = options.collectives_off;
      const Connect connect = [segments, off, n](const Membership& member) -> std::shared_ptr<Backend> {
        if (off) return std::make_shared<IdleGroup>(member.name, member.rank, member.size());
        auto memory = std::make_shared<SharedMemory>(segments->get(member.key, member.size()), member.name, member.rank,
                                                     member.size(), n);
        return std::make_shared<HostStaging>(std::move(memory));
      };
      const std::string backend = n == 1 ? "none" : off ? "off" : "threads";
      worlds_[r] = std::make_shared<RankWorld>(
          RankWorld::Options{r, n, r, n, backend, options.watchdog, options.notice}, connect, off ? nullptr : store);
    }
  }

  void rank(int r, const std::function<void(World&)>& fn) {
    try {
      fn(*worlds_[r]);
    } catch (...) {
      fail(r, std::current_exception());
    }
    std::shared_ptr<RankWorld> leaving;
    {
      const std::lock_guard lock(mutex_);
      leaving.swap(worlds_[r]);
    }
    leaving.reset();  // outside of the lock, because it joins threads
  }

  void finish() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  void fail(int r, std::exception_ptr cause) {
    const std::lock_guard lock(mutex_);
    if (first_) return;  // peers of a failed rank fail too, but their errors are not the cause
    first_ = with_rank_of(cause, r);
    const std::string reason = concat("rank ", r, " of ", worlds_.size(), " failed: ", text(first_));
    for (const auto& world : worlds_) {
      if (world) world->abort(reason);
    }
  }

  static std::string text(const std::exception_ptr& cause) {
    try {
      std::rethrow_exception(cause);
    } catch (const std::exception& error) {
      return plain_message(error);
    } catch (...) {
      return "an exception of unknown type";
    }
  }

  /// Adds the rank to errors of Colossal and of torch; other types stay unchanged because tests catch them by type.
  std::exception_ptr with_rank_of(std::exception_ptr cause, int r) const {
    const int n = static_cast<int>(worlds_.size());
    try {
      std::rethrow_exception(cause);
    } catch (const Error& error) {
      if (typeid(error) != typeid(Error)) return cause;
      const std::string message = std::string(error.what()).substr(error.component().size() + 3);
      return std::make_exception_ptr(Error(error.component(), with_rank(message, r, n)));
    } catch (const c10::Error& error) {
      return std::make_exception_ptr(Error("torch", with_rank(error.what_without_backtrace(), r, n)));
    } catch (...) {
      return cause;
    }
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<RankWorld>> worlds_;
  std::exception_ptr first_;
};

}  // namespace

void run_ranks(int n, const std::function<void(World&)>& fn, const RankOptions& options) {
  require(n >= 1, "comm", "run_ranks needs at least one rank: got ", n);
  ThreadRun run(n, options);
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) threads.emplace_back([&run, &fn, r] { run.rank(r, fn); });
  for (auto& thread : threads) thread.join();
  run.finish();
}

}  // namespace colossal::comm
