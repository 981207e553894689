// Threads for the loops of one token. A model that answers runs a hundred short loops a token, each over weights that
// are read once, and what is left between two of them uses one core and no memory. So the threads of a team take
// what they get to (nobody waits for one that sleeps or is not running), and between two loops they fetch the weights
// of the next one into the cache.
//
//   ops::ThreadTeam::of_this_thread().run(panels, [&](int64_t index) { multiply(index); }, {weights, bytes});
#pragma once
#include <cstdint>
#include <functional>
#include <memory>

namespace colossal::ops {

/// Memory that a loop reads from its beginning to its end.
struct Streamed {
  const char* begin = nullptr;
  int64_t bytes = 0;
};

class ThreadTeam {
 public:
  /// The team of the calling thread: at::get_num_threads() of them, this one included. Its other threads start here,
  /// anew where that number has changed, and end with the calling thread. Where the system gives fewer, the team is
  /// smaller.
  static ThreadTeam& of_this_thread();

  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  /// Calls body(index) once for each index of [0, items), in any order and on any thread of the team.
  ///
  /// `streamed`:    what the items read, in their order. The team remembers which loop came behind which, and fetches
  ///                the end of the next loop's memory, up to 1 MiB a thread, while the calling thread is elsewhere.
  ///                A wish: addresses that are gone do no harm.
  /// Threads:       serial inside of another loop, of a team or of parallel_for. The body calls no operator of LibTorch
  ///                that has loops of its own, and no parallel_for: each thread would begin a pool for it.
  /// Errors:        rethrows one of the exceptions of the body after all items are done or given up.
  /// Cost:          an idle thread of the team is asleep after some 50 microseconds.
  void run(int64_t items, const std::function<void(int64_t index)>& body, Streamed streamed = {});

 private:
  explicit ThreadTeam(int threads);

  struct Shared;
  int wanted_;
  std::unique_ptr<Shared> shared_;
};

}  // namespace colossal::ops
