// Weights of a model for generation within memory budgets. They are kept on an accelerator and in host memory as far as
// the budgets allow, and the rest on disk.
//
//   run::StreamedWeights weights(model, mesh, {.host = int64_t{2} << 30, .disk = "scratch/"});
//   checkpoint::import_weights(folder, model.parameters(), weights.tensors(), names);
//   weights.loaded();
//   for (...) logits = model.next_logits(pass);   // loads chunk after chunk and prefetches the next ones
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "colossal/checkpoint/checkpoint.h"
#include "colossal/comm/mesh.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/memory/tiers/loaded_store.h"
#include "colossal/memory/tiers/tiered_store.h"
#include "colossal/run/config.h"
#include "colossal/run/weight_budget.h"

namespace colossal::run {

/// The weights of a model that only computes forward. WeightBudget decides where each weight is stored.
///
/// Memory:        the budgets; activations and caches are not included in them.
/// Cost:          a pass on an accelerator copies each weight that is not resident there, while it computes. The host
///                waits for a copy only before the disk overwrites its buffer.
/// Errors:        the constructor sets the function that ends the model's passes (DistributedModel::set_end_of_pass).
///                It throws, on all ranks, the errors of weights since the last pass. Results computed from such
///                weights are NaN on some rank.
/// Communication: the constructor, loaded() and the end of a pass send what comm::agree() sends, over all ranks of the
///                mesh. The constructor also does an all_reduce of 16 bytes. Weights are not sent, because each rank
///                stores what it reads.
class StreamedWeights {
 public:
  /// Plans the budgets for `model`, whose parameters must have no memory (nn::Parameters::Options). They require no
  /// gradients from then on. After this object is destroyed the model must not run a pass.
  /// Errors, on all ranks, before anything is read. ("memory"): a budget that is too small (the message names the
  /// smallest that works); memory.device for ranks that compute on the CPU. ("disk"): errors of the folder.
  StreamedWeights(distributed::DistributedModel& model, comm::Mesh& mesh, const MemoryConfig& memory);
  StreamedWeights(const StreamedWeights&) = delete;
  StreamedWeights& operator=(const StreamedWeights&) = delete;

  /// Returns the tensors that the caller fills once, before the first pass, as run::fillable_weights_of() does. If the
  /// disk cannot store one, reading it throws.
  std::vector<checkpoint::NamedTensor> tensors();
  /// Must be called when the tensors are filled. Errors, on all ranks: errors of filling them.
  void loaded() { end_pass(); }

  const memory::TieredStore& tiers() const { return *tiers_; }
  /// Returns the bytes of weights that are always in host memory, in addition to what tiers() counts.
  int64_t stayed_bytes() const { return offload_->stayed_bytes(); }
  /// device_bytes(): bytes of weights that are always on the accelerator. peak_device_bytes(): largest number of bytes
  /// of all weights there so far. Both are 0 on the CPU.
  int64_t device_bytes() const { return device_bytes_; }
  int64_t peak_device_bytes() const;
  /// Returns the store of the weights that are loaded and freed during a pass.
  const memory::ChunkStore& store() const { return *store_; }

 private:
  void end_pass();

  comm::Mesh& mesh_;
  nn::Parameters& parameters_;
  std::shared_ptr<memory::TieredStore> tiers_;
  std::shared_ptr<memory::LoadedStore> offload_;
  std::unique_ptr<memory::ChunkStore> store_;
  std::vector<checkpoint::NamedTensor> on_device_;  // weights that are always on the device
  int64_t device_bytes_ = 0;
};

}  // namespace colossal::run
