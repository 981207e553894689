// An offload store of weights that a checkpoint fills once and that inference then reads in a cycle.
//
//   auto others = std::make_shared<memory::TieredStore>(memory::TieredStore::Options{.host_bytes = travelling, ...});
//   options.offload = std::make_shared<memory::LoadedStore>(others, residence);   // memory::ChunkOptions
//   options.inference = true;
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "colossal/memory/even_share.h"
#include "colossal/memory/offload_store.h"

namespace colossal::memory {

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
