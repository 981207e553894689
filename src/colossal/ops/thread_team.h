// Threads for the loops of token generation. Each generated token runs about a hundred short loops, each over weights
// that are read once. The work between two loops uses one core and little memory bandwidth. So the threads of a team
// take items one by one, and never wait for a thread that sleeps or does not run. Between two loops they prefetch the
// weights of the next loop into the cache.
//
//   ops::ThreadTeam::of_this_thread().run(panels, [&](int64_t index) { multiply(index); }, {{weights, bytes}});
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace colossal::ops {

/// A piece of memory that a loop reads from its beginning to its end.
struct Streamed {
  const char* begin = nullptr;
  int64_t bytes = 0;
  friend bool operator==(const Streamed&, const Streamed&) = default;
};

class ThreadTeam {
 public:
  /// Returns the team of the calling thread: at::get_num_threads() threads, this one included. Its other threads start
  /// here, restart if that number has changed, and end with the calling thread. If the system cannot start enough
  /// threads, the team is smaller. The reference is valid until this thread ends or calls this with another number.
  static ThreadTeam& of_this_thread();

  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  /// Returns true if the calling thread runs a body of a team, where further loops are serial.
  static bool is_inside();

  /// Calls body(index) once for each index of [0, items), in any order and on any thread of the team.
  ///
  /// `streamed`:    pieces of memory that the items read, in their order; empty = unknown. The team remembers which
  ///                piece followed which. While the calling thread works elsewhere, the others prefetch the end of the
  ///                next loop's memory, up to 1 MiB per thread. It is a hint: addresses that are no longer valid do no
  ///                harm.
  /// Threads:       serial inside another loop of a team or of parallel_for. The body must call no operator of LibTorch
  ///                with loops of its own, and no parallel_for, because each thread would start a pool for it.
  /// Errors:        rethrows one of the exceptions of the body after all items are done. A serial loop stops at the
  ///                first one. Errors ("threads"): more than 2^32 - 1 items in a loop that is not serial.
  /// Cost:          an idle thread of the team sleeps after about 50 microseconds.
  void run(int64_t items, const std::function<void(int64_t index)>& body, const std::vector<Streamed>& streamed = {});

 private:
  explicit ThreadTeam(int threads);

  struct Shared;
  int wanted_;
  std::unique_ptr<Shared> shared_;
};

/// While one lives, the loops of ops/parallel.h that this thread starts run on its team. Decoding sets it: the threads
/// of LibTorch's pool would otherwise compete for the cores with those of the team, and be woken several times a layer.
class TeamLoops {
 public:
  TeamLoops();
  ~TeamLoops();
  TeamLoops(const TeamLoops&) = delete;
  TeamLoops& operator=(const TeamLoops&) = delete;
  /// Returns true if the calling thread has one.
  static bool are_set();

 private:
  bool previous_;
};

}  // namespace colossal::ops
