// When chunks of parameters that are shared out come and go: a policy, apart from the store that carries it out.
//
//   struct KeepAll : memory::Placement {   // a gathered chunk stays until the pass ends; no communication is foretold
//     memory::Plan before_use(const memory::Timeline&, const std::vector<size_t>&) override { return {}; }
//   };
//   memory::ChunkStore store(parameters, mesh, options, std::make_unique<KeepAll>());
#pragma once
#include <cstddef>
#include <vector>

#include "colossal/memory/timeline.h"

namespace colossal::memory {

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
  /// An operator is about to read timeline.current(), another chunk than the one before. `gathered`: those that are
  /// whole or on their way, in the order in which they came.
  virtual Plan before_use(const Timeline& timeline, const std::vector<size_t>& gathered) = 0;
};

/// Gathers the next chunk while one is in use, and releases all but these two; where nothing is foretold, in the first
/// pass, the one before stays: at most two are whole at once, and what is in use.
class GatherNext final : public Placement {
 public:
  /// `releases`: otherwise chunks stay from their first use to the end of the pass.
  explicit GatherNext(bool releases = true) : releases_(releases) {}
  Plan before_use(const Timeline& timeline, const std::vector<size_t>& gathered) override;

 private:
  bool releases_;
};

}  // namespace colossal::memory
