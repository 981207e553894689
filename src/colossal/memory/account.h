// Counts the bytes that tensors occupy, by their purpose.
//
//   memory::track_host_memory();               // in main(), before other threads allocate tensors
//   const memory::Account account;
//   const at::Tensor x = at::zeros({1024});
//   const int64_t bytes = account.usage().total;             // 4096
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace colossal::memory {

enum class Kind {
  Parameters,   ///< parameters of the model, including gathered ones
  Gradients,    ///< gradients kept for the update or being reduced; those that autograd still holds are activations
  States,       ///< master weights and optimizer states
  Activations,  ///< all other memory of a training step
  Buffers,      ///< all other memory
  Host,         ///< host memory of an offload store and of work done there; not part of the device
};
constexpr size_t kKinds = 6;
const char* to_string(Kind kind);

/// The tensors that an account counts.
enum class Counted : uint8_t {
  Memory,           ///< tensors in host memory
  Shapes,           ///< tensors on meta, with the bytes that they would have
  MemoryAndShapes,  ///< both: a recorded run that stands for one on the CPU, whose small tensors are on the host
};

/// Puts an allocator in front of LibTorch's for CPU tensors and one in front of its for tensors on meta. They report to
/// accounts. LibTorch has one table of allocators per process, so these two are global. They keep no counts: each
/// thread reports to its own accounts, so ranks that are threads of one process do not mix.
///
/// Lifetime:      until the process ends, on all threads; existing tensors keep their memory. A second call does
///                nothing.
/// When:          at the start of main(), because LibTorch reads its table without a lock: no other thread may allocate
///                tensors during the first call. cli::main() and cli::run_module() call it. A program with threads and
///                a main() of its own calls it itself; in a program with one thread the first Account is soon enough.
/// Cost:          an indirect call and a look-up in the thread's state per allocation.
void track_host_memory();

/// Counts what the allocators gave to a thread and have not taken back, while the account exists. Tensors from before
/// do not count. Backward passes on other threads count, too. An account that is opened while another one is open
/// counts in addition to it and must end first.
///
/// An account calls track_host_memory() if the program has not, so its counts are right in any program. A tensor on
/// meta has an address to be counted by only if an account of its thread counts shapes; otherwise nothing changes.
/// Errors ("memory"): a profiler of LibTorch is open on this thread. Cost: one map entry per allocation.
class Account {
 public:
  struct Usage {
    std::array<int64_t, kKinds> live{}, peak{};  ///< bytes by kind
    int64_t total = 0, peak_total = 0;
    int64_t device = 0, peak_device = 0;  ///< bytes of all kinds but Host
    int64_t moment = 0;                   ///< result of `now` when peak_device was reached; 0 without `now`
    int64_t of(Kind kind) const { return live[static_cast<size_t>(kind)]; }
    int64_t peak_of(Kind kind) const { return peak[static_cast<size_t>(kind)]; }
  };
  /// `now`: returns the current moment, for instance the number of events so far; null = none. It is called whenever
  /// peak_device grows, by the thread that allocates. It must not allocate or free tensors.
  explicit Account(Counted counted = Counted::Memory, std::function<int64_t()> now = nullptr);
  ~Account();
  Account(const Account&) = delete;
  Account& operator=(const Account&) = delete;

  Usage usage() const;
  /// Restarts the peaks at the current usage.
  void reset_peaks();

  /// Memory from the moment `at`, a result of `now`, until that of the next point.
  struct Point {
    int64_t at = 0;
    std::array<int64_t, kKinds> live{};  ///< bytes by kind when all kinds but Host together were the most
    int64_t host = 0;                    ///< the most bytes of Kind::Host
  };
  /// Starts to record the memory over time, from the current usage on. Requires `now`, which each later allocation and
  /// free then calls. Memory: 64 bytes per moment at which the usage changes.
  void begin_curve();
  /// Ends the recording and returns its points, at most one per moment. The most bytes of all kinds but Host in any
  /// point are Usage::peak_device if reset_peaks() was called together with begin_curve().
  std::vector<Point> end_curve();

 private:
  struct Guard;
  std::unique_ptr<Guard> guard_;
};

struct Ledger;

/// Returns true if an account of this thread counts tensors on meta.
bool are_shapes_counted();

/// Count memory that is neither a tensor's from LibTorch's allocators nor a shape: the accounts of this thread count
/// `bytes` at the address `block`, until the second function ends that. They have no effect if no account is open.
void count_block(const void* block, int64_t bytes);
void end_block(const void* block);

/// Assigns `kind` to everything that this thread allocates while the scope exists, except in an inner scope. Has no
/// effect if no Account is open.
class KindScope {
 public:
  explicit KindScope(Kind kind);
  ~KindScope();
  KindScope(const KindScope&) = delete;
  KindScope& operator=(const KindScope&) = delete;

 private:
  Ledger* ledger_;
  Kind before_ = Kind::Buffers;
};

}  // namespace colossal::memory
