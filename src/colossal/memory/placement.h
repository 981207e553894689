// Policies that decide when chunks of sharded parameters are gathered and released. The chunk store carries them out.
//
//   struct KeepAll : memory::Placement {   // chunks are released when the pass ends; none is gathered early
//     memory::ChunkMoves before_use(const memory::Situation&) override { return {}; }
//   };
//   memory::ChunkStore store(parameters, mesh, options, std::make_unique<KeepAll>());
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/memory/timeline.h"

namespace colossal::memory {

/// The state on which a policy decides.
struct Situation {
  const Timeline& timeline;
  /// chunks that are gathered or being gathered, in the order of their gathers
  const std::vector<size_t>& gathered;
  const std::vector<int64_t>& bytes;  ///< bytes of each chunk of the store when gathered
  std::vector<size_t> in_use{};       ///< chunks that operators read now; they are never released
};

/// The chunks to release and gather at a use, by number. Between the two the store gathers the chunk in use, whatever
/// these say.
struct ChunkMoves {
  std::vector<size_t> release;  ///< released first, in this order; the store skips chunks in use
  std::vector<size_t> gather;   ///< gathered after the chunk in use, in this order
};

/// Decides which chunks are gathered. A policy changes memory and communication, never a computed value. Gathering is
/// collective: all ranks that share chunks must return the same moves, so these may depend on the arguments alone.
class Placement {
 public:
  virtual ~Placement() = default;
  /// Returns the moves for a use: an operator is about to read timeline.current(), another chunk than the one before.
  virtual ChunkMoves before_use(const Situation& now) = 0;
  /// Returns the chunks to release after a pass. The others remain gathered for the next pass, or until their
  /// parameters change.
  virtual std::vector<size_t> after_pass(const Situation& now) { return now.gathered; }
  /// Called when the releases of before_use() are done and no gather has begun.
  virtual void released() {}
  /// Called when the moves of before_use() or after_pass() are carried out. The chunks keep their state until the next
  /// call of either.
  virtual void settled(const Situation&) {}
};

/// Order in which chunks are released if not all of them fit.
enum class EvictionOrder {
  /// chunks without a predicted use first, the longest unused one of them first; then the chunk whose next use is the
  /// farthest (Belady 1966)
  UsedLast,
  LongestUsed,  ///< the least recently used chunk first
  LastComer,    ///< the chunk gathered last first, so that the earliest ones remain
};
/// Returns the order that [memory] placement names: "auto", "lru" or "static". Errors ("memory"): an unknown name.
EvictionOrder eviction_order_of(const std::string& placement);

/// Returns the chunks of `candidates` (each gathered, none in use) to release so that at least `excess` bytes become
/// free, in the order of `order`. Returns all of them if that is not enough.
std::vector<size_t> chunks_to_release(const Situation& now, std::vector<size_t> candidates, int64_t excess,
                                      EvictionOrder order);

/// Gathers the next chunk while one is in use, and releases all but these two. If no next use is predicted, as in the
/// first pass, the previous chunk remains gathered. At most two chunks are gathered at once, in addition to those in
/// use.
class GatherNext final : public Placement {
 public:
  ChunkMoves before_use(const Situation& now) override;
};

/// Like GatherNext, within a budget: as many chunks remain gathered as the budget holds, also from one pass to the
/// next. The chunk that is needed last is released first (Belady 1966: no other order is better if chunks have one
/// size). If no use is predicted, the chunk that was used longest ago is released first.
///
/// Memory: the budget or the sum of the chunk in use and the next one, whichever is more; in addition, the chunks that
///         one operator reads.
/// Cost:   if a change of chunk does not fit: a pass over the gathered chunks for each released one, with a look-up in
///         the timeline for each.
class GatherWithin final : public Placement {
 public:
  explicit GatherWithin(int64_t bytes) : budget_(bytes) {}
  ChunkMoves before_use(const Situation& now) override;
  std::vector<size_t> after_pass(const Situation&) override { return {}; }

 private:
  int64_t budget_;
};

}  // namespace colossal::memory
