// The weights of a model that generates, as far as a budget allows in host memory and on a disk beyond it.
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

namespace colossal::run {

/// Where weights are that a model of one rank only reads.
///
/// With placement "auto" a fixed set of them, spread evenly, stays in memory (memory::LoadedHome), and the others come
/// in the order that the pass before had. With "lru" and "static" the policy decides on all of them.
struct WeightBudget {
  int64_t least = 0;       ///< bytes of the smallest that works: at most `host`, if that one does
  int64_t host = 0;        ///< bytes, all of it: at most those of the weights
  int64_t chunk = 0;       ///< bytes of a chunk; larger parameters are alone
  int64_t tables = 0;      ///< bytes of embeddings and heads larger than any other chunk, if they stay for good
  int64_t travelling = 0;  ///< bytes for what comes and goes: what is read at once and next, and ahead of that
  int64_t largest = 0;     ///< of what comes and goes
  int64_t all = 0;         ///< bytes of all weights
};

/// How memory.host, which `ranks` share, serves the `parameters` of one of them. Without it: as little as transfers
/// need, if there is a disk, else all weights.
WeightBudget plan_weights(const nn::Parameters& parameters, const MemoryConfig& memory, int64_t ranks);

/// Memory:        the budget; activations and caches are beside it.
/// Communication: of the constructor and of end_pass() what comm::agree() sends, over all ranks of the mesh, and of the
///                constructor an all_reduce of 8 bytes. None of weights: each rank has what it reads.
class StreamedWeights {
 public:
  /// `parameters`: without memory (nn::Parameters::Options), of this rank; they want no gradients from here on.
  /// Errors, of all ranks, before anything is read: ("memory") a budget that is too small, with the smallest that
  /// works; a device that is not the host; ("disk") the folder's.
  StreamedWeights(nn::Parameters& parameters, comm::Mesh& mesh, const MemoryConfig& memory);

  /// To be filled, once, before the first pass. Errors of a disk that cannot take them reach whoever reads them.
  std::vector<checkpoint::NamedTensor> tensors();
  /// Parameters were filled, or read for the prompt or for a token. Errors, of all ranks: what went wrong with them
  /// since; then what was computed of them is NaN on some rank.
  void end_pass();

  const memory::TieredHome& tiers() const { return *tiers_; }
  /// Bytes of weights that stay in memory for good, beside what tiers() counts.
  int64_t stayed_bytes() const { return home_->stayed_bytes(); }

 private:
  comm::Mesh& mesh_;
  std::shared_ptr<memory::TieredHome> tiers_;
  std::shared_ptr<memory::LoadedHome> home_;
  std::unique_ptr<memory::ChunkStore> store_;
};

}  // namespace colossal::run
