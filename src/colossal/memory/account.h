// Counts the bytes that tensors occupy, by their purpose.
#pragma once
#include <array>
#include <cstdint>
#include <memory>

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

/// Counts what the allocators gave to a thread and have not taken back, while the account exists. Tensors from before
/// do not count. Backward passes on other threads count, too. An account that is opened while another one is open
/// counts in addition to it and must end first.
/// A program that links this file has an additional allocator in front of the host's, from before main() on, which
/// reports tensors to accounts.
/// Errors ("memory"): a profiler of LibTorch is open on this thread. Cost: one map entry per allocation.
class Account {
 public:
  struct Usage {
    std::array<int64_t, kKinds> live{}, peak{};  ///< bytes by kind
    int64_t total = 0, peak_total = 0;
    int64_t device = 0, peak_device = 0;  ///< bytes of all kinds but Host
    int64_t of(Kind kind) const { return live[static_cast<size_t>(kind)]; }
    int64_t peak_of(Kind kind) const { return peak[static_cast<size_t>(kind)]; }
  };
  Account();
  ~Account();
  Account(const Account&) = delete;
  Account& operator=(const Account&) = delete;

  Usage usage() const;
  /// Restarts the peaks at the current usage.
  void reset_peaks();

 private:
  struct Guard;
  std::unique_ptr<Guard> guard_;
};

struct Ledger;

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
