// A home of weights that a checkpoint fills once and that are then read in a circle, as inference does.
//
//   auto others = std::make_shared<memory::TieredHome>(memory::TieredHome::Options{.host_bytes = travelling, ...});
//   options.home = std::make_shared<memory::LoadedHome>(others, residence);   // memory::ChunkOptions
//   options.inference = true;
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "colossal/memory/even_share.h"
#include "colossal/memory/home.h"

namespace colossal::memory {

class TieredHome;

/// Takes sizes and dtypes of tensors when they come, and their values with the first lease that may write: until then
/// they take no memory, and nothing goes to a disk to be overwritten.
///
/// Some stay in memory for good, spread evenly among the others. Of tensors that are read in a circle no order of
/// leaving brings fewer bytes than a fixed set that stays (Belady 1966, doi:10.1147/sj.52.0078), and where this set is
/// spread evenly the disk is never idle for long while a run of them is read, so a few buffers suffice for the others
/// to be read ahead. Where nothing is foretold yet, in the first pass, the order is taken to be that of keep().
///
/// Tensors of an accelerator lie and are lent on the host; those that stay in pinned memory, which copy_to() copies
/// while nobody waits. With the others `others` does so (TieredHome::Options::device).
///
/// Memory: residence.stays for tensors that stay; the budget of the others; while these are filled, one of them more.
/// Thread safety: none; one thread keeps and brings.
class LoadedHome final : public Home {
 public:
  struct Residence {
    int64_t all = 0;    ///< bytes of all tensors that will be kept
    int64_t stays = 0;  ///< of them that may stay in memory
    /// The largest that travels: tensors of more bytes all stay. The stays they take are spared first
    int64_t largest = 0;
    int64_t above_largest = 0;  ///< bytes of tensors larger than that
  };
  LoadedHome(std::shared_ptr<Home> others, const Residence& residence);

  /// Keeps the sizes and dtype of `tensor`, which may be a tensor without memory; its values are not read.
  std::unique_ptr<Kept> keep(const at::Tensor& tensor) override;
  at::Device lends_on(at::Device) const override { return at::kCPU; }

  int64_t stayed_bytes() const { return stayed_; }  ///< of tensors that stay, so far

 private:
  struct Waiting;

  std::shared_ptr<Home> others_;
  Residence residence_;
  EvenShare spread_;  // of those that need not stay
  int64_t stayed_ = 0;
  std::vector<Waiting*> travelling_;  // in the order of keep()
};

}  // namespace colossal::memory
