// The weights of a model that generates, as far as budgets allow on an accelerator and in host memory, and on a disk
// beyond these.
//
//   run::StreamedWeights weights(model.parameters(), mesh, {.host = int64_t{2} << 30, .disk = "scratch/"});
//   checkpoint::import_weights(folder, model.parameters(), weights.tensors(), names);
//   weights.end_pass();
//   for (...) {
//     logits = model.next_logits(pass);   // brings chunk after chunk, the next ones on their way
//     weights.end_pass();
//   }
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "colossal/checkpoint/checkpoint.h"
#include "colossal/comm/mesh.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/memory/tiers/loaded_home.h"
#include "colossal/memory/tiers/tiered_home.h"
#include "colossal/nn/parameter.h"
#include "colossal/run/config.h"
#include "colossal/run/weight_budget.h"

namespace colossal::run {

/// Where they are says WeightBudget.
///
/// Memory:        the budgets; activations and caches are beside them.
/// Cost:          of a pass on an accelerator a copy of each weight that does not stay there, beside what it computes;
///                the host waits for none of them, unless the disk is to fill the buffer of one.
/// Communication: of the constructor and of end_pass() what comm::agree() sends, over all ranks of the mesh, and of the
///                constructor an all_reduce of 16 bytes. None of weights: each rank has what it reads.
class StreamedWeights {
 public:
  /// `parameters`: without memory (nn::Parameters::Options), of this rank; they want no gradients from here on.
  /// Errors, of all ranks, before anything is read: ("memory") a budget that is too small, with the smallest that
  /// works; memory.device for ranks that compute on the CPU; ("disk") the folder's.
  StreamedWeights(nn::Parameters& parameters, comm::Mesh& mesh, const MemoryConfig& memory);

  /// To be filled, once, before the first pass. Errors of a disk that cannot take them reach whoever reads them.
  std::vector<checkpoint::NamedTensor> tensors();
  /// Parameters were filled, or read for the prompt or for a token. Errors, of all ranks: what went wrong with them
  /// since; then what was computed of them is NaN on some rank.
  void end_pass();

  const memory::TieredHome& tiers() const { return *tiers_; }
  /// Bytes of weights that stay in host memory for good, beside what tiers() counts.
  int64_t stayed_bytes() const { return home_->stayed_bytes(); }
  /// Bytes of weights that stay on the accelerator for good, and all of those there at most so far; on the CPU none.
  int64_t device_bytes() const { return device_bytes_; }
  int64_t peak_device_bytes() const;
  /// What comes and goes.
  const memory::ChunkStore& store() const { return *store_; }

 private:
  comm::Mesh& mesh_;
  std::shared_ptr<memory::TieredHome> tiers_;
  std::shared_ptr<memory::LoadedHome> home_;
  std::unique_ptr<memory::ChunkStore> store_;
  std::vector<checkpoint::NamedTensor> on_device_;  // for good
  int64_t device_bytes_ = 0;
};

}  // namespace colossal::run
