// The inputs of recomputed blocks in an offload store (memory::OffloadStore): they are offloaded in forward and loaded
// ahead of backward.
//
//   memory::InputsAt inputs(offload);   // a TieredStore, for instance the one of the optimizer states
//   const auto after = nn::recomputed(block, {hidden, pair}, &inputs);
#pragma once
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "colossal/memory/offload_store.h"
#include "colossal/nn/input_store.h"

namespace colossal::memory {

/// Copies the inputs of each block to `offload`, from which they may move to a lower tier at once. Copies them back
/// into new memory when backward requests them. It then also announces (OffloadedTensor::prefetch) the inputs that were
/// stored just before, because backward needs these next.
///
/// Memory:        the memory that `offload` uses for an input, and a copy of it while its block runs backward.
/// Errors:        wait for rethrow(), because other ranks go on. If OffloadStore::offload() fails, the input remains
///                where it is. If it cannot be loaded (OffloadedTensor::copy_to()), backward gets NaN, or 0 for
///                integers. Errors ("memory") of this class: an input that could be stored but not loaded, because it
///                is larger than `max_bytes` - `others`. The message has the smallest budget that works.
/// Thread safety: as `offload`.
class InputsAt final : public nn::InputStore {
 public:
  /// `offload` must not change the tensors that it is given, because the block still reads them; TieredStore copies
  /// them. `max_bytes`: bytes of this rank that `offload` can load at a time. `others`: bytes of these that may be
  /// borrowed in addition to an input.
  explicit InputsAt(std::shared_ptr<OffloadStore> offload, int64_t max_bytes = std::numeric_limits<int64_t>::max(),
                    int64_t others = 0);
  ~InputsAt() override;
  std::unique_ptr<nn::OffloadedInputs> offload(const std::vector<at::Tensor>& inputs) override;
  /// Throws the first error since the last call, once. Does nothing without an error.
  void rethrow();
  /// Bytes of inputs that were returned to backward.
  int64_t bytes_returned() const { return *bytes_returned_; }

 private:
  std::unique_ptr<nn::OffloadedInputs> stored(const std::vector<at::Tensor>& inputs);
  struct Place;
  struct Inputs;
  struct Failure;
  std::shared_ptr<OffloadStore> offload_;
  std::shared_ptr<Failure> failure_;
  int64_t max_bytes_, others_;
  std::shared_ptr<std::atomic<int64_t>> bytes_returned_ = std::make_shared<std::atomic<int64_t>>(0);
  std::mutex mutex_;
  std::weak_ptr<Place> last_;
};

}  // namespace colossal::memory
