// The parameters of a model in chunks, whole or shared out among replicas (ZeRO, Rajbhandari et al. 2020,
// arXiv:1910.02054; chunks: Fang et al. 2022, arXiv:2108.05818).
//
//   memory::ChunkOptions options;
//   options.sharing = memory::Sharing::of_stage(3);
//   memory::ChunkStore store(parameters, mesh, options);              // from here on it has the parameters
//   parallel::GradientReducer reducer(store, {.each_pass = true});
//   const auto optimizer = optim::make_optimizer(config, store.shards(), {parameters, mesh});
//   for (...) {
//     reducer.zero();
//     const at::Tensor loss = module.forward(input);                  // gathers and releases chunks as they are used
//     reducer.begin(true);
//     loss.backward();
//     reducer.finish();                                               // shards have the sums of the gradients
//     store.end_pass();
//     optimizer->step(++step, rate, 1);
//     store.updated();
//   }
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "colossal/comm/compressed_collectives.h"
#include "colossal/comm/mesh.h"
#include "colossal/memory/chunk.h"
#include "colossal/memory/movable_home.h"
#include "colossal/memory/placement.h"
#include "colossal/memory/shard.h"
#include "colossal/memory/sharing.h"
#include "colossal/memory/timeline.h"
#include "colossal/memory/use_observer.h"

namespace colossal::memory {

struct PlannedChunk;

struct ChunkOptions {
  Sharing sharing{};  ///< what replicas share out
  /// Replicas of a parameter that share, next to one another; 0: all. Fewer: every run of them holds the model once.
  /// Parameters that have fewer replicas share among all of those
  int sharers = 0;
  /// Elements of a chunk at most; larger parameters are alone. And of a segment of what a rank owns of such a one
  int64_t capacity = 25 << 18;
  /// Dtype of what the optimizer updates, where that is not the parameters themselves
  std::optional<at::ScalarType> masters{};
  /// Compression of gradients and of gathered parameters, if these have masters or are sharded; none = off
  std::optional<comm::Compression> compression{};
  /// Home of masters, states, shards of gradients and sharded parameters while nothing uses them; null = InPlace
  std::shared_ptr<Home> home{};
  /// Nobody trains: parameters, which want no gradients and are shared out among one rank each, get their values from a
  /// checkpoint, through frozen(). Nothing is drawn or copied: `home` keeps tensors of which it is told no values, and
  /// where it lends them on the device that reads them what it brings is what is read, for as long as a chunk is whole
  bool inference = false;
  /// Parameters that are none of the store's: they stay what they are
  std::set<const nn::Parameter*> left_out{};
  /// Not null: what goes to `home` of a trained chunk may be taken to the device (ChunkStore::home_of), where this
  /// counts its bytes
  std::shared_ptr<std::atomic<int64_t>> on_device{};
};

/// Packs the parameters of one rank into chunks and is their only home from then on.
///
/// Nothing shared:    every rank has all of everything, and updates all of it.
/// States:            parameters are whole; a rank's Shard is its part of each chunk.
/// Parameters:        a rank keeps its part. Any operator of LibTorch and any tensor::ReadScope that is given a
///                    parameter, or a tensor that shares its memory, finds it whole: an observer (at::RecordFunction)
///                    gathers the chunk before. Which chunks come early and which go is what a Placement decides.
///
/// Bytes:         parameters P (or P / N), shards P_masters / N.
/// Communication: none where nothing is shared. States: all_gather of every chunk in updated(), four under way at a
///                time, of all of them also where one fails. Parameters: all_gather of a chunk at each use that finds
///                it gone; all ranks that share must use chunks in the same order.
/// Errors:        of the all_gathers, behind which a rank takes part in no other one of that pass; of parts that this
///                rank alone could not bring, and what attempt() caught: then it takes part in all that others wait
///                for, so that all ranks reach a place where they agree on what went wrong. What happens inside an
///                operator is thrown by the next call of rethrow(), updated() or end_pass(). Readers of a chunk that
///                did not come see NaN, and where it is a part on all ranks, until the pass ends: then all chunks are
///                released, whoever has heard of it before.
/// Thread safety: one thread at a time uses parameters. It need not be the one that made the store.
class ChunkStore final : public Chunk::Watcher {
 public:
  /// `placement`: of parameters that are shared; null: GatherNext.
  ChunkStore(nn::Parameters& parameters, comm::Mesh& mesh, const ChunkOptions& options,
             std::unique_ptr<Placement> placement = nullptr);
  ~ChunkStore();
  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;

  const ChunkOptions& options() const { return options_; }
  comm::Mesh& mesh() { return mesh_; }
  /// In order of first use, trained ones and frozen ones; each of one model (nn::Parameter::model).
  const std::vector<std::unique_ptr<Chunk>>& chunks() const { return chunks_; }
  /// What this rank updates of each trained chunk, in their order: a shard for each segment (Chunk::segments()),
  /// whatever is shared and wherever it lies. Gradients are the business of who reduces them.
  std::vector<Shard>& shards() { return shards_; }
  /// This rank's shards of the frozen chunks, to be saved and loaded.
  std::vector<Shard>& frozen() { return frozen_; }
  /// Returns the shards of one chunk.
  std::span<const Shard> shards_of(const Chunk& chunk) const;

  /// Where tensors of a trained chunk lie together. Null without ChunkOptions::on_device.
  MovableHome* home_of(const Chunk& chunk) { return homes_[chunk.index()].get(); }

  /// After the values of shards changed: all ranks see the new parameters. `loaded`: by a checkpoint, not an optimizer,
  /// so copies of masters are made here.
  /// Collective also where this rank alone has an error, which is thrown behind it.
  void updated(bool loaded = false);
  /// A micro-batch has gone forward and backward, or forward only. Without memory of it nothing is foretold; chunks are
  /// released, as Placement::after_pass() says, and gathers of the others are over: parts may be written to.
  void end_pass();
  /// The same, but errors wait for rethrow(), which the caller calls where ranks agree.
  void close_pass();
  /// What went wrong inside an operator, or in attempt(), since. Throws it once, and releases all chunks.
  void rethrow();
  /// Releases what is gathered, which may have what another rank could not bring.
  void release_all();
  /// False: an all_gather failed here, and there is no use in further ones. rethrow() says why.
  bool takes_part() const { return takes_part_; }
  /// body(), which does not communicate: its error, of this rank's disk for instance, waits for rethrow().
  void attempt(const std::function<void()>& body);

  struct Counts {
    int64_t gathers = 0, releases = 0;
    int64_t gathered = 0, peak_gathered = 0;  ///< bytes of chunks that may be released and are not
    int64_t brought = 0;  ///< bytes of this rank's parts that were brought for gathers, from elsewhere than the device
  };
  const Counts& counts() const { return counts_; }
  int64_t padding() const { return padding_; }  ///< elements that no parameter has

 private:
  void before_use(Chunk& chunk) override;
  void after_use(Chunk& chunk) override;
  void before_bring(Chunk& chunk, size_t segment) override;
  void not_brought(Chunk& chunk, std::exception_ptr error) override;
  void release(Chunk& chunk);
  void gather(Chunk& chunk);
  Situation situation() const;
  void keep_failure(std::exception_ptr error, bool takes_part);
  /// body(), of an all_gather: behind an error of it this rank takes part in none.
  template <class Body>
  void attempt_together(const Body& body);
  /// body(chunk) of all likewise.
  template <class Body>
  void for_chunks(const Body& body);
  void add(PlannedChunk planned, const nn::Parameters& parameters);

  ChunkOptions options_;
  comm::Mesh& mesh_;
  std::vector<std::shared_ptr<MovableHome>> homes_;  // of each chunk, or null; they outlive chunks_
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<Shard> shards_, frozen_;
  std::vector<size_t> first_shards_;  // of each chunk, in one of the two
  std::unique_ptr<Placement> placement_;
  Timeline timeline_;
  std::vector<size_t> gathered_;  // in the order in which they came
  std::vector<int64_t> bytes_;    // of chunks, when they are whole
  Counts counts_;
  int64_t padding_ = 0;
  std::exception_ptr failure_;  // the first one
  bool takes_part_ = true;
  std::optional<UseObserver> observer_;
};

}  // namespace colossal::memory
