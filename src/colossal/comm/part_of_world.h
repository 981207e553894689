// Some ranks of a world as a world of their own, e.g. the ranks of one replica of a server.
//
//   const auto world = comm::launch({});        // 4 ranks
//   comm::PartOfWorld part(*world, 2);          // ranks 0 and 1 are part 0, ranks 2 and 3 are part 1
//   comm::Mesh mesh(part, {{"tensor", 2}});     // its groups have ranks of this part only
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "colossal/comm/decorators/decorator.h"

namespace colossal::comm {

/// One of `parts` equal parts of a world: rank r of the world is rank r % size() of part r / size(). Groups that this
/// world makes have ranks of the part only, so no collective of a mesh of the part involves other parts. Parts may make
/// groups of equal names. Making a part communicates nothing.
///
/// Hosts:    local_rank() and local_size() are those of the whole world, because the parts share cores, GPUs and memory
///           of a host.
/// Traffic:  the counters of the whole world's rank.
/// Watchdog: the whole world's. busy(), on_stall() and the time limits act on the whole world. Reports name a late rank
///           by its rank in the group, and a busy one by its rank in the whole world. No rank of another part waits for
///           a busy rank of this one. Rank 0 of the whole world also gets the reports about other parts. If a late rank
///           is given up, the groups of all parts end, because a run without one of its ranks is over.
/// Errors:   groups throw the errors of the whole world's groups. A rank that died ends the groups that it is in, and
///           is named by its rank in the group. The other parts go on until the launcher or the program ends them.
/// Lifetime: `whole` must outlive the part and its groups.
class PartOfWorld final : public WorldDecorator {
 public:
  /// Errors: throws Error("comm", ...) unless `parts` is at least 1 and divides the number of ranks of `whole`.
  PartOfWorld(World& whole, int parts);

  int rank() const override { return whole_.rank() % size_; }
  int size() const override { return size_; }
  /// `ranks` are ranks of the part.
  std::shared_ptr<Group> make_group(const std::string& name, const std::vector<int>& ranks,
                                    const std::string& channel = "") override;
  std::string backend() const override { return size_ == 1 ? "none" : whole_.backend(); }

  World& whole() const { return whole_; }
  int parts() const { return whole_.size() / size_; }
  int index() const { return whole_.rank() / size_; }  ///< index of this part, from 0
  /// Returns the rank in the whole world of rank 0 of part `index`.
  int first_rank_of(int index) const { return index * size_; }

 private:
  World& whole_;
  const int size_;
};

}  // namespace colossal::comm
