// The parameters of a model in chunks, whole or shared out among replicas (ZeRO, Rajbhandari et al. 2020,
// arXiv:1910.02054; chunks: Fang et al. 2022, arXiv:2108.05818).
#pragma once
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "colossal/comm/compressed_collectives.h"
#include "colossal/comm/mesh.h"
#include "colossal/memory/chunk.h"
#include "colossal/memory/shard.h"
#include "colossal/memory/use_observer.h"
#include "colossal/memory/use_order.h"

namespace colossal::memory {

struct ChunkOptions {
  int zero = 0;  ///< what is shared out: 0 nothing, 1 states, 2 gradients too, 3 parameters too
  /// Replicas of a parameter that share, next to one another; 0: all. Fewer: every run of them holds the model once.
  /// Parameters that have fewer replicas share among all of those
  int sharers = 0;
  int64_t capacity = 25 << 18;  ///< elements of a chunk at most; larger parameters are alone
  /// Dtype of what the optimizer updates, where that is not the parameters themselves
  std::optional<at::ScalarType> masters{};
  /// Zero 3: otherwise chunks stay gathered from their first use to the end of the pass
  bool reshard_after_forward = true;
  /// Of gathered parameters (with masters, or zero 3) and of gradients
  std::optional<comm::Compression> compression{};
};

/// Packs the parameters of one rank into chunks and is their only home from then on.
///
/// zero 0:    every rank has all of everything.
/// zero 1, 2: parameters are whole; a rank's Shard is its part of each chunk.
/// zero 3:    a rank keeps its part. Any operator of LibTorch and any tensor::ReadScope that is given a parameter, or a
///            tensor that shares its memory, finds it whole: an observer (at::RecordFunction) gathers the chunk before.
///            When another chunk is used, all go but that one, the one foretold to follow it and, where nothing is
///            foretold (in the first pass), the one before: at most two are gathered at once, and what is in use.
///
/// Bytes:         parameters P (or P / N), shards P_masters / N.
/// Communication: zero 1, 2: all_gather of every chunk in updated(). zero 3: all_gather of a chunk at each use that
///                finds it gone; all ranks that share must use chunks in the same order. zero 0: none.
/// Errors:        of the all_gathers; what happens inside an operator is thrown by the next call of rethrow(),
///                updated() or end_pass(), until then readers see NaN.
/// Thread safety: one thread at a time uses parameters. It need not be the one that made the store.
class ChunkStore final : public Chunk::Watcher {
 public:
  ChunkStore(nn::Parameters& parameters, comm::Mesh& mesh, const ChunkOptions& options);
  ~ChunkStore();
  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;

  const ChunkOptions& options() const { return options_; }
  comm::Mesh& mesh() { return mesh_; }
  /// In order of first use, trained ones and frozen ones.
  const std::vector<std::unique_ptr<Chunk>>& chunks() const { return chunks_; }
  /// What this rank updates of each trained chunk, in their order. `gradients` are the business of who reduces them.
  std::vector<Shard>& shards() { return shards_; }
  /// The same of the frozen ones, to be saved and loaded.
  std::vector<Shard>& frozen() { return frozen_; }

  /// After the values of shards changed: all ranks see the new parameters. `loaded`: by a checkpoint, not an optimizer,
  /// so copies of masters are made here.
  void updated(bool loaded = false);
  /// A micro-batch has gone forward and backward, or forward only. Without memory of it nothing is foretold; chunks are
  /// released.
  void end_pass();
  /// What went wrong inside an operator since.
  void rethrow();

  struct Counts {
    int64_t gathers = 0, releases = 0;
    int64_t gathered = 0, peak_gathered = 0;  ///< bytes of chunks that may be released and are not
  };
  const Counts& counts() const { return counts_; }
  int64_t padding() const { return padding_; }  ///< elements that no parameter has

 private:
  void before_use(Chunk& chunk) override;
  void after_use(Chunk& chunk) override;
  void make_room();
  void release(Chunk& chunk);
  void gather(Chunk& chunk);
  void add(std::vector<Slot> slots, int64_t length, comm::Group& sharers, const nn::Parameters& parameters);

  ChunkOptions options_;
  comm::Mesh& mesh_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<Shard> shards_, frozen_;
  UseOrder order_;
  Chunk *current_ = nullptr, *previous_ = nullptr;
  Counts counts_;
  int64_t padding_ = 0;
  std::exception_ptr failure_;
  std::optional<UseObserver> observer_;
};

}  // namespace colossal::memory
