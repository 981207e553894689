#include "colossal/ops/parallel.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <exception>

#include "colossal/ops/cpu.h"
#include "colossal/ops/thread_team.h"

namespace colossal::ops {
namespace {

// The entry points of libgomp's ABI; Intel's and LLVM's runtimes export them too.
struct OpenMp {
  void (*parallel)(void (*)(void*), void*, unsigned threads, unsigned flags) = nullptr;
  int (*thread_num)() = nullptr;
  int (*num_threads)() = nullptr;
  bool usable() const { return parallel && thread_num && num_threads; }
};

const OpenMp& openmp() {
  static const OpenMp found = [] {
    OpenMp omp;
    omp.parallel = reinterpret_cast<decltype(omp.parallel)>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
    omp.thread_num = reinterpret_cast<decltype(omp.thread_num)>(dlsym(RTLD_DEFAULT, "omp_get_thread_num"));
    omp.num_threads = reinterpret_cast<decltype(omp.num_threads)>(dlsym(RTLD_DEFAULT, "omp_get_num_threads"));
    return omp;
  }();
  return found;
}

struct Loop {
  int64_t begin, end, chunk_size, chunks;
  const std::function<void(int64_t, int64_t, int64_t)>* body;
  InstructionSet set = instruction_set();  // of the thread that starts the loop
  std::atomic_flag failed = ATOMIC_FLAG_INIT;
  std::exception_ptr error;

  void run(int64_t chunk) {
    const InstructionSetScope scope(set);
    const int64_t from = begin + chunk * chunk_size;
    try {
      (*body)(chunk, from, std::min(end, from + chunk_size));
    } catch (...) {
      if (!failed.test_and_set()) error = std::current_exception();
    }
  }
};

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t chunk_length(int64_t items, int64_t grain) {
  const bool serial = !openmp().usable() || at::in_parallel_region() || ThreadTeam::is_inside();
  const int64_t threads = serial ? 1 : at::get_num_threads();
  return std::max<int64_t>({divide_up(items, threads), grain, 1});
}

}  // namespace

int64_t parallel_chunks(int64_t items, int64_t grain) {
  return items <= 0 ? 0 : divide_up(items, chunk_length(items, grain));
}

void parallel_chunks_for(int64_t begin, int64_t end, int64_t grain,
                         const std::function<void(int64_t, int64_t, int64_t)>& body) {
  if (begin >= end) return;
  Loop loop{.begin = begin, .end = end, .chunk_size = chunk_length(end - begin, grain), .chunks = 0, .body = &body};
  loop.chunks = divide_up(end - begin, loop.chunk_size);
  if (loop.chunks == 1) return body(0, begin, end);
  if (TeamLoops::are_set()) {
    const auto run_chunk = [&](int64_t chunk) { loop.run(chunk); };
    ThreadTeam::of_this_thread().run(loop.chunks, run_chunk);
    if (loop.error) std::rethrow_exception(loop.error);
    return;
  }
  // Wakes all threads of the pool, because libgomp rebuilds its threads if the team size changes between regions.
  openmp().parallel(
      [](void* data) {
        auto& shared = *static_cast<Loop*>(data);
        const int64_t step = openmp().num_threads();
        for (int64_t chunk = openmp().thread_num(); chunk < shared.chunks; chunk += step) shared.run(chunk);
      },
      &loop, 0, 0);
  if (loop.error) std::rethrow_exception(loop.error);
}

void parallel_for(int64_t begin, int64_t end, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  parallel_chunks_for(begin, end, grain, [&](int64_t, int64_t from, int64_t to) { body(from, to); });
}

}  // namespace colossal::ops
