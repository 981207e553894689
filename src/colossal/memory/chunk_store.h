// The parameters of a model in chunks, which replicas either hold whole or shard (ZeRO, Rajbhandari et al. 2020,
// arXiv:1910.02054; chunks: Fang et al. 2022, arXiv:2108.05818).
//
//   memory::ChunkOptions options;
//   options.sharing = memory::Sharing::of_stage(3);
//   memory::ChunkStore store(parameters, mesh, options);              // the store owns the parameters from here on
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
#include "colossal/memory/movable_store.h"
#include "colossal/memory/placement.h"
#include "colossal/memory/shard.h"
#include "colossal/memory/timeline.h"
#include "colossal/memory/use_observer.h"

namespace colossal::memory {

/// Tensors that the replicas of a model shard instead of holding all of them (ZeRO, Rajbhandari et al. 2020,
/// arXiv:1910.02054).
///
/// Each option requires the one before it, because a rank that keeps a part of the gradients updates that part alone.
struct Sharing {
  bool states = false;      ///< optimizer states and master weights: a rank updates its part of every chunk
  bool gradients = false;   ///< summed chunk by chunk, then each rank keeps its part of the sum
  bool parameters = false;  ///< parameters: a rank keeps its part, and each use gathers the chunk
  /// Returns the options of a ZeRO stage: 0 nothing, 1 states, 2 gradients too, 3 parameters too. Errors ("zero"):
  /// another stage.
  static Sharing of_stage(int stage);
  bool is_legal() const { return (states || !gradients) && (gradients || !parameters); }
};

struct PlannedChunk;

struct ChunkOptions {
  Sharing sharing{};  ///< tensors that the replicas shard
  /// Number of neighbouring replicas that share a parameter, a divisor of the number of replicas; 0 = all. Each such
  /// group holds the model once. Parameters with fewer replicas are shared among all of these
  int sharers = 0;
  /// Maximum number of elements of a chunk and of a segment of a rank's part. A larger parameter gets a chunk of its
  /// own, whose parts are cut into segments
  int64_t capacity = 25 << 18;
  /// Dtype of master weights, which the optimizer updates instead of the parameters; none = no master weights
  std::optional<at::ScalarType> masters{};
  /// Compression of gradients and of gathered parameters, if these have masters or are sharded; none = off
  std::optional<comm::Compression> compression{};
  /// Store for master weights, optimizer states, gradient shards and sharded parameters while nothing uses them; null =
  /// InPlace
  std::shared_ptr<OffloadStore> offload{};
  /// No training. Parameters require no gradients, have one rank per sharing group, and get their values from a
  /// checkpoint, through frozen(). The store draws and copies no values: `offload` is given tensors without values. If
  /// `offload` provides tensors on the device that reads them, readers use the borrowed tensor itself while a chunk is
  /// gathered
  bool inference = false;
  /// Parameters that the store does not take over or change
  std::set<const nn::Parameter*> left_out{};
  /// Counter of bytes on the device; null = off. If it is set, what `offload` stores of a trained chunk can be moved to
  /// the device (ChunkStore::movable_store_of), and the counter includes it
  std::shared_ptr<std::atomic<int64_t>> on_device{};
};

/// Packs the parameters of one rank into chunks and owns their values from then on.
///
/// Nothing shared: every rank holds and updates all parameters.
/// States:         parameters are whole on every rank; a rank's shards are its part of each chunk.
/// Parameters:     a rank keeps its part of each chunk. Before an operator of LibTorch or a tensor::ReadScope reads a
///                 parameter, or a tensor that shares its memory, an observer (at::RecordFunction) gathers the chunk. A
///                 Placement decides which chunks are gathered early and which are released. Operators inside of one
///                 that reads the chunk are no uses of their own, so meta has the uses of every device.
///
/// Bytes:         parameters P (or P / N), shards P_masters / N.
/// Communication: none if nothing is shared. States: updated() does an all_gather of every chunk, at most four at a
///                time, and of all chunks even if one fails. Parameters: an all_gather of a chunk at each use that
///                finds it released. All ranks that share must use chunks in the same order.
/// Errors:        errors of all_gathers, after which this rank joins no other all_gather of that pass. Errors that only
///                this rank has, namely parts that could not be loaded and errors caught by attempt(): this rank then
///                joins every collective that others wait for, until all ranks reach a point where they agree on the
///                error. An error inside an operator is thrown by the next rethrow(), updated() or end_pass(). Readers
///                of a chunk that was not gathered see NaN. If only a part could not be loaded, readers on all ranks
///                see NaN there. When the pass ends, all chunks are released, even if the error was already thrown.
/// Thread safety: one thread at a time uses parameters. It need not be the one that made the store.
class ChunkStore final : public Chunk::Watcher {
 public:
  /// `placement`: policy for shared parameters; null = GatherNext.
  ChunkStore(nn::Parameters& parameters, comm::Mesh& mesh, const ChunkOptions& options,
             std::unique_ptr<Placement> placement = nullptr);
  ~ChunkStore();
  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;

  const ChunkOptions& options() const { return options_; }
  comm::Mesh& mesh() { return mesh_; }
  /// Returns all chunks, trained and frozen, in order of first use. Each has parameters of one model
  /// (nn::Parameter::model).
  const std::vector<std::unique_ptr<Chunk>>& chunks() const { return chunks_; }
  /// Returns this rank's shards of the trained chunks, in the order of the chunks. There is one shard for each segment
  /// (Chunk::segments()), with any sharing and any store. The code that reduces gradients sets the shards' gradients.
  std::vector<Shard>& shards() { return shards_; }
  /// Returns this rank's shards of the frozen chunks, for saving and loading.
  std::vector<Shard>& frozen() { return frozen_; }
  /// Returns the shards of one chunk.
  std::span<const Shard> shards_of(const Chunk& chunk) const;

  /// Returns the store that moves all tensors of a trained chunk together. Null for a frozen chunk, or without
  /// ChunkOptions::on_device.
  MovableStore* movable_store_of(const Chunk& chunk) { return movable_stores_[chunk.index()].get(); }

  /// Makes changed values of the shards visible as parameters on all ranks. What a caller wrote to a gathered chunk
  /// since keep_written() is lost. `loaded`: the values came from a
  /// checkpoint, not from an optimizer, so this function also sets the copies of master weights.
  /// Collective even if only this rank has an error, which is thrown afterwards.
  void updated(bool loaded = false);
  /// Keeps values that code other than the optimizer wrote into parameters: of all parameters after watch(), before it
  /// only of those that may be released. Call it before what reads or updates the shards.
  /// Errors ("memory"): see Chunk::attach(). rethrow() throws errors of the offload store.
  /// Cost after watch(): see adopt_written() and fingerprint_of().
  void keep_written();
  /// From here on keep_written() compares permanent parameters with their master weights, because operators that write
  /// to them are not observed.
  void watch();
  /// Ends a pass, the forward and backward computation of a micro-batch, or forward alone. The next pass's uses are
  /// predicted from it. Releases chunks as Placement::after_pass() decides and waits for the gathers of the others, so
  /// that parts may be written. Errors: those that rethrow() throws.
  void end_pass();
  /// Ends a pass as end_pass() does, but throws no errors. The caller calls rethrow() at a point where all ranks agree
  /// on errors.
  void close_pass();
  /// Returns true if an operator has read a sharded parameter since the last pass ended.
  bool is_in_pass() const { return timeline_.position() > 0; }
  /// Sets a function that is called before the first use of a sharded parameter in a pass, within the operator that
  /// reads it. It must not use parameters.
  void set_before_pass(std::function<void()> function) { before_pass_ = std::move(function); }
  /// Throws the first error that occurred inside an operator, a gather or attempt() since the last call, once, and
  /// releases all chunks. Afterwards this rank takes part in all_gathers again. Does nothing without an error.
  void rethrow();
  /// Releases all gathered chunks, because they may contain values that another rank could not load.
  void release_all();
  /// Returns false from a failed all_gather of this rank until rethrow(), which throws the reason. Further all_gathers
  /// are useless until then.
  bool takes_part() const { return takes_part_; }
  /// Makes `chunk` whole until let_go(), so that any code may read it by address. This use is not part of a pass: it is
  /// not predicted, releases no other chunk and ignores budgets. Does nothing for a permanent chunk.
  /// Collective as Chunk::gather(). Errors: as in an operator, see ChunkStore.
  void hold(Chunk& chunk);
  /// Ends the use that hold() began, and releases the chunk if it was the last one.
  void let_go(Chunk& chunk);
  /// Runs body(), which must not communicate. Its error, for example of this rank's disk, waits for rethrow().
  void attempt(const std::function<void()>& body);

  struct Counts {
    int64_t gathers = 0, releases = 0;
    int64_t gathered = 0, peak_gathered = 0;  ///< bytes of gathered chunks that may be released
    int64_t loaded = 0;  ///< bytes of this rank's parts that gathers read, except from a MovableStore on the device
  };
  const Counts& counts() const { return counts_; }
  int64_t padding() const { return padding_; }  ///< elements that belong to no parameter

 private:
  void before_use(Chunk& chunk) override;
  void after_use(Chunk& chunk) override;
  void before_borrow(Chunk& chunk, size_t segment) override;
  void not_borrowed(Chunk& chunk, std::exception_ptr error) override;
  void release(Chunk& chunk);
  void gather(Chunk& chunk);
  /// Gives memory of its own to each parameter that Tensor::set_data() made a view of another parameter, as a swap of
  /// two parameters does: attach_moved() may write to that one first. If that one is sharded, this is collective.
  void separate_moved();
  /// Stores what was written to the gathered chunk, unless it holds NaN in place of values.
  void store(Chunk& chunk);
  /// Returns whether keep_written() compares the fingerprint of that chunk: its masters may be on a disk.
  bool has_fingerprint(const Chunk& chunk) const;
  void take_fingerprints();
  /// Begins a use of `chunk` after an error, which is being handled: the chunk holds NaN if it is not gathered.
  void begin_failed_use(Chunk& chunk);
  Situation situation() const;
  void keep_failure(std::exception_ptr error, bool takes_part);
  /// Runs body(), an all_gather. After an error of it this rank joins no further all_gathers.
  template <class Body>
  void attempt_together(const Body& body);
  /// Runs body(chunk) for all chunks, each as attempt_together() does.
  template <class Body>
  void for_chunks(const Body& body);
  void add(PlannedChunk planned, const nn::Parameters& parameters);

  ChunkOptions options_;
  comm::Mesh& mesh_;
  std::vector<std::shared_ptr<MovableStore>> movable_stores_;  // store of each chunk, or null; must outlive chunks_
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<Shard> shards_, frozen_;
  std::vector<size_t> first_shards_;  // index of each chunk's first shard in shards_ or frozen_
  std::unique_ptr<Placement> placement_;
  Timeline timeline_;
  std::vector<size_t> gathered_;  // gathered chunks, in the order of their gathers
  std::vector<int64_t> bytes_;    // bytes of each chunk when gathered
  Counts counts_;
  int64_t padding_ = 0;
  std::exception_ptr failure_;  // first error that rethrow() has not thrown
  bool takes_part_ = true;
  bool is_watched_ = false;
  std::vector<uint64_t> fingerprints_;  // taken after the last update, by chunk; empty without watch()
  std::function<void()> before_pass_;   // null = none
  std::optional<UseObserver> observer_;
};

}  // namespace colossal::memory
