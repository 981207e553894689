// An offload store of weights that a checkpoint fills once and that inference then reads in a cycle.
//
//   auto others = std::make_shared<memory::TieredStore>(memory::TieredStore::Options{.host_bytes = travelling, ...});
//   options.offload = std::make_shared<memory::LoadedStore>(others, residence);   // memory::ChunkOptions
//   options.inference = true;
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "colossal/memory/offload_store.h"

namespace colossal::memory {

/// Chooses items from a sequence so that a share of the bytes is taken, spread evenly.
///
///   memory::EvenShare stays(budget, all);
///   for (const int64_t bytes : sizes) (stays.takes(bytes) ? here : there).push_back(bytes);
///
/// Takes an item if the bytes taken so far are at most their share of the bytes seen so far. The item must also fit
/// into what is left of the total share. The first item is therefore taken if it fits. Both the items that are taken
/// and the others are spread evenly over the sequence.
class EvenShare {
 public:
  /// `share`: bytes to take of the `all` bytes that the sequence has; nothing is taken if it is not positive.
  EvenShare(int64_t share, int64_t all) : share_(share), all_(all) {}

  /// Returns whether the next item, of `bytes`, is taken. The sum of the taken bytes never exceeds the share.
  bool takes(int64_t bytes) {
    const bool is_behind = static_cast<double>(taken_) * static_cast<double>(all_) <=
                           static_cast<double>(seen_) * static_cast<double>(share_);
    seen_ += bytes;
    if (!is_behind || taken_ + bytes > share_) return false;
    taken_ += bytes;
    return true;
  }
  int64_t taken() const { return taken_; }

 private:
  int64_t share_, all_, seen_ = 0, taken_ = 0;
};

class TieredStore;

/// Stores the sizes and dtypes of tensors at offload(), and their values at the end of the first borrow that changed
/// them. Until then the tensors take no memory, and none is written to a disk only to be overwritten.
///
/// Some tensors are resident: they stay in memory and are spread evenly among the others. For tensors that are read in
/// a cycle no eviction order reads fewer bytes than a fixed resident set (Belady 1966, doi:10.1147/sj.52.0078). If that
/// set is spread evenly, the disk is never idle for long while resident tensors are read. A few buffers then suffice to
/// read the others ahead. The first pass has no predictions, so the order of the offload() calls is assumed.
///
/// Tensors of an accelerator are stored and borrowed on the host. Resident ones are in pinned memory, from which
/// copy_to() copies without blocking the host. `others` does the same for the other tensors
/// (TieredStore::Options::device).
///
/// Memory:        residence.stays for resident tensors; the budget of `others`; one more of the other tensors while
///                they are filled.
/// Thread safety: none; one thread stores and borrows tensors.
class LoadedStore final : public OffloadStore {
 public:
  struct Residence {
    int64_t all = 0;    ///< bytes of all tensors that will be kept
    int64_t stays = 0;  ///< bytes of them that may be resident
    /// Bytes of the largest tensor that need not be resident: all larger ones are. `stays` covers these first
    int64_t largest = 0;
    int64_t above_largest = 0;  ///< bytes of all tensors larger than `largest`
  };
  LoadedStore(std::shared_ptr<OffloadStore> others, const Residence& residence);

  /// Keeps the sizes and dtype of `tensor`, which may be a tensor without memory; its values are not read.
  std::unique_ptr<OffloadedTensor> offload(const at::Tensor& tensor) override;
  at::Device borrow_device(at::Device) const override { return at::kCPU; }

  int64_t stayed_bytes() const { return stayed_; }  ///< bytes of resident tensors so far

 private:
  struct Waiting;

  std::shared_ptr<OffloadStore> others_;
  Residence residence_;
  EvenShare spread_;  // chooses resident tensors if they have at most `largest` bytes
  int64_t stayed_ = 0;
  std::vector<Waiting*> travelling_;  // tensors that are not resident, in the order of offload()
};

}  // namespace colossal::memory
