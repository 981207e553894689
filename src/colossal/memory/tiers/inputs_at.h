// The inputs of recomputed blocks in a memory::Home: they leave in forward and return ahead of backward.
//
//   memory::InputsAt inputs(home);                      // a TieredHome, that of the optimizer's states for instance
//   const auto after = nn::recomputed(block, {hidden, pair}, &inputs);
#pragma once
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "colossal/memory/home.h"
#include "colossal/nn/input_home.h"

namespace colossal::memory {

/// Copies the inputs of each block to `home`, where they may leave for a lower tier at once, and back into memory of
/// their own when backward asks for them. Those that were kept just before, which backward needs next, are expected
/// then.
///
/// Memory:        of an input, what `home` has of it; and a copy while its block goes backward.
/// Errors:        wait for rethrow(), since other ranks go on: those of Home::keep(), with which an input stays where
///                it is, and of Kept::bring(), with which it is NaN. ("memory") an input that could be kept and not
///                brought: larger than `most_bytes`, with the budget that would do.
/// Thread safety: that of `home`.
class InputsAt final : public nn::InputHome {
 public:
  /// `home` leaves what it is given to keep as it is, as TieredHome does, which copies it: the block reads it still.
  /// `most_bytes`: that it can bring at a time, of this rank; of these `others` may be brought beside an input.
  explicit InputsAt(std::shared_ptr<Home> home, int64_t most_bytes = std::numeric_limits<int64_t>::max(),
                    int64_t others = 0);
  ~InputsAt() override;
  std::unique_ptr<nn::KeptInputs> keep(const std::vector<at::Tensor>& inputs) override;
  /// What went wrong since the last time.
  void rethrow();
  /// Bytes of inputs that were returned to backward.
  int64_t bytes_returned() const { return *bytes_returned_; }

 private:
  std::unique_ptr<nn::KeptInputs> kept(const std::vector<at::Tensor>& inputs);
  struct Place;
  struct Inputs;
  struct Failure;
  std::shared_ptr<Home> home_;
  std::shared_ptr<Failure> failure_;
  int64_t most_bytes_, others_;
  std::shared_ptr<std::atomic<int64_t>> bytes_returned_ = std::make_shared<std::atomic<int64_t>>(0);
  std::mutex mutex_;
  std::weak_ptr<Place> last_;
};

}  // namespace colossal::memory
