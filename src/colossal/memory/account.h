// Bytes that tensors occupy, by what they are for.
#pragma once
#include <array>
#include <cstdint>
#include <memory>

namespace colossal::memory {

enum class Kind {
  Parameters,   ///< of the model, gathered ones too
  Gradients,    ///< kept for the update or on their way; those that autograd has not handed over yet are activations
  States,       ///< masters and optimizer states
  Activations,  ///< everything else of a training step
  Buffers,      ///< everything else
  Host,         ///< of a tier of host memory, and work that is done there: beside the device
};
constexpr size_t kKinds = 6;
const char* to_string(Kind kind);

/// What the allocators gave to a thread and have not taken back, while this lives. Tensors from before do not count.
/// Backward passes on other threads count, too. One that is opened while another is open counts beside it; it ends
/// first. Whoever links this has an allocator in front of that of the host, from before main() on, which tells accounts
/// of tensors. Errors ("memory"): a profiler of LibTorch's is open on this thread. Cost: a map entry an allocation.
class Account {
 public:
  struct Usage {
    std::array<int64_t, kKinds> live{}, peak{};  ///< bytes by kind
    int64_t total = 0, peak_total = 0;
    int64_t device = 0, peak_device = 0;  ///< of all kinds but Host
    int64_t of(Kind kind) const { return live[static_cast<size_t>(kind)]; }
    int64_t peak_of(Kind kind) const { return peak[static_cast<size_t>(kind)]; }
  };
  Account();
  ~Account();
  Account(const Account&) = delete;
  Account& operator=(const Account&) = delete;

  Usage usage() const;
  /// From here on peaks are counted anew.
  void reset_peaks();

 private:
  struct Guard;
  std::unique_ptr<Guard> guard_;
};

struct Ledger;

/// What is allocated on this thread while it lives is of `kind`, until an inner scope says otherwise. Nothing where no
/// Account is open.
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
