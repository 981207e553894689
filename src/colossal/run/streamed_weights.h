// The weights of a model that generates, as far as budgets allow on an accelerator and in host memory, and on a disk
// beyond these.
//
//   run::StreamedWeights weights(model, mesh, {.host = int64_t{2} << 30, .disk = "scratch/"});
//   checkpoint::import_weights(folder, model.parameters(), weights.tensors(), names);
//   weights.loaded();
//   for (...) logits = model.next_logits(pass);   // brings chunk after chunk, the next ones on their way
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "colossal/checkpoint/checkpoint.h"
#include "colossal/comm/mesh.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/memory/tiers/loaded_home.h"
#include "colossal/memory/tiers/tiered_home.h"
#include "colossal/run/config.h"
#include "colossal/run/weight_budget.h"

namespace colossal::run {

/// Where they are says WeightBudget.
///
/// Memory:        the budgets; activations and caches are beside them.
/// Cost:          of a pass on an accelerator a copy of each weight that does not stay there, beside what it computes;
///                the host waits for none of them, unless the disk is to fill the buffer of one.
/// Passes:        the constructor sets what ends the passes of the model (DistributedModel::set_end_of_pass). Then
///                errors are thrown, on all ranks: what went wrong with weights since the last pass. What was computed
///                of them is NaN on some rank.
/// Communication: of the constructor, of loaded() and of the end of a pass what comm::agree() sends, over all ranks of
///                the mesh, and of the constructor an all_reduce of 16 bytes. None of weights: each rank has what it
///                reads.
class StreamedWeights {
 public:
  /// The parameters of `model` have no memory (nn::Parameters::Options), and want no gradients from here on. The model
  /// makes no pass when this object is gone.
  /// Errors, of all ranks, before anything is read: ("memory") a budget that is too small, with the smallest that
  /// works; memory.device for ranks that compute on the CPU; ("disk") the folder's.
  StreamedWeights(distributed::DistributedModel& model, comm::Mesh& mesh, const MemoryConfig& memory);
  StreamedWeights(const StreamedWeights&) = delete;
  StreamedWeights& operator=(const StreamedWeights&) = delete;

  /// To be filled, once, before the first pass. Errors of a disk that cannot take them reach whoever reads them.
  std::vector<checkpoint::NamedTensor> tensors();
  /// To be called when they are filled. Errors, of all ranks: what went wrong with them.
  void loaded() { end_pass(); }

  const memory::TieredHome& tiers() const { return *tiers_; }
  /// Bytes of weights that stay in host memory for good, beside what tiers() counts.
  int64_t stayed_bytes() const { return home_->stayed_bytes(); }
  /// Bytes of weights that stay on the accelerator for good, and all of those there at most so far; on the CPU none.
  int64_t device_bytes() const { return device_bytes_; }
  int64_t peak_device_bytes() const;
  /// What comes and goes.
  const memory::ChunkStore& store() const { return *store_; }

 private:
  void end_pass();

  comm::Mesh& mesh_;
  std::shared_ptr<memory::TieredHome> tiers_;
  std::shared_ptr<memory::LoadedHome> home_;
  std::unique_ptr<memory::ChunkStore> store_;
  std::vector<checkpoint::NamedTensor> on_device_;  // for good
  int64_t device_bytes_ = 0;
};

}  // namespace colossal::run
