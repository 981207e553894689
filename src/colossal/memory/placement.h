// When chunks of parameters that are shared out come and go: a policy, apart from the store that carries it out.
//
//   struct KeepAll : memory::Placement {   // a gathered chunk stays until the pass ends; no communication is foretold
//     memory::Plan before_use(const memory::Situation&) override { return {}; }
//   };
//   memory::ChunkStore store(parameters, mesh, options, std::make_unique<KeepAll>());
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/memory/timeline.h"

namespace colossal::memory {

/// What a policy decides on.
struct Situation {
  const Timeline& timeline;
  const std::vector<size_t>& gathered;  ///< chunks that are whole or on their way, in the order in which they came
  const std::vector<int64_t>& bytes;    ///< of each chunk of the store, whole
  std::vector<size_t> in_use{};         ///< that operators read now: they stay, whatever is released
};

/// What to do at a use, by the numbers of chunks. The chunk in use is gathered between the two, whatever the plan says.
struct Plan {
  std::vector<size_t> release;  ///< first, in this order; those that are in use stay
  std::vector<size_t> gather;   ///< begun behind the one in use, in this order
};

/// Decides which chunks are whole. A policy changes what is held and what is sent, never a number.
/// Gathering is collective: all ranks that share must come to the same plan, so it follows from the arguments alone.
class Placement {
 public:
  virtual ~Placement() = default;
  /// An operator is about to read timeline.current(), another chunk than the one before.
  virtual Plan before_use(const Situation& now) = 0;
  /// The pass is over: what is released. The rest stays for the next pass, or until its parameters change.
  virtual std::vector<size_t> after_pass(const Situation& now) { return now.gathered; }
  /// What before_use() wanted to be released is, and nothing is gathered yet.
  virtual void released() {}
  /// What before_use() or after_pass() wanted is done, and stays so until the next of them.
  virtual void settled(const Situation&) {}
};

/// Which of the chunks that may be released leaves first, where not all of them fit.
enum class Leaves {
  UsedLast,     ///< the one that is needed last (Belady 1966); of those of which that is not known the longest unused
  LongestUsed,  ///< the one that was used longest ago
  LastComer,    ///< the one that came last, so that those that came first stay
};
/// Returns the policy that [memory] placement names: "auto", "lru" or "static". Errors ("memory"): an unknown policy.
Leaves leaves_of(const std::string& placement);

/// What is released of `candidates` (each gathered, none in use) until at least `excess` bytes are free, or all.
std::vector<size_t> who_leaves(const Situation& now, std::vector<size_t> candidates, int64_t excess, Leaves leaves);

/// Gathers the next chunk while one is in use, and releases all but these two; where nothing is foretold, in the first
/// pass, the one before stays: at most two are whole at once, and what is in use.
class GatherNext final : public Placement {
 public:
  Plan before_use(const Situation& now) override;
};

/// Like GatherNext, within a budget: as many chunks stay gathered as the budget holds, also from one pass to the next.
/// The chunk that is needed last is released first (Belady 1966: no other order is better if chunks have one size). If
/// no use is predicted, the chunk that was used longest ago is released first.
///
/// Memory: the budget, or the chunk in use and the next one, whichever is more; and what one operator reads.
/// Cost:   at every change of chunk that does not fit: a pass over the gathered chunks, and over the timeline for each.
class GatherWithin final : public Placement {
 public:
  explicit GatherWithin(int64_t bytes) : budget_(bytes) {}
  Plan before_use(const Situation& now) override;
  std::vector<size_t> after_pass(const Situation&) override { return {}; }

 private:
  int64_t budget_;
};

}  // namespace colossal::memory
