// The ranks of a world arranged along named axes, and the groups along any product of them.
//
//   comm::Mesh mesh(world, {comm::Mesh::batch("data", 2), {"tensor", 4}});      // ranks 0 to 3 are the first replica
//   mesh.index("tensor");                                                       // world.rank() % 4
//   mesh.group("data").all_reduce(gradient, comm::Reduce::Sum).wait();
//   mesh.group({"data", "tensor"}).size();                                      // 8
#pragma once
#include <c10/core/Device.h>

#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "colossal/comm/world.h"
#include "colossal/tensor/place.h"

namespace colossal::comm {

/// Axes are given outermost first: neighbours along the last one have consecutive ranks.
///
/// Groups are made at the first request, which is collective among their members, and kept. A request for an axis that
/// was not named, or whose size is 1, gives a null group. Errors: throws Error("parallel", ...) unless the sizes
/// multiply to world.size().
class Mesh {
 public:
  struct Axis {
    std::string name;
    int size;
    tensor::Deals deals = tensor::Deals::Nothing;
  };
  /// An axis along which the rows of a batch are dealt out.
  static Axis batch(std::string name, int size) { return {std::move(name), size, tensor::Deals::Rows}; }
  /// An axis along which the tokens of each row are dealt out.
  static Axis sequence(std::string name, int size) { return {std::move(name), size, tensor::Deals::Tokens}; }
  Mesh(World& world, const std::vector<Axis>& axes);

  const tensor::Place& place() const { return place_; }
  int size(const std::string& axis) const { return place_.size(axis); }
  int index(const std::string& axis) const { return place_.index(axis); }

  Group& group(const std::string& axis) { return group(std::vector<std::string>{axis}); }
  /// The ranks that differ from this one only along `axes`, the first axis outermost. Name: axes joined by "+".
  Group& group(const std::vector<std::string>& axes);
  Group& group(std::initializer_list<const char*> axes) {
    return group(std::vector<std::string>(axes.begin(), axes.end()));
  }
  /// The ranks along `axis` as group() has them, over a connection between devices of its own, shared with no group but
  /// those of the same ranks and purpose (World::make_group): for what must not wait behind other calls of these ranks.
  /// Name: "axis purpose".
  Group& channel(const std::string& axis, const std::string& purpose);
  /// The ranks of all axes, or of all but one.
  Group& all() { return group(axes_but("")); }
  Group& all_but(const std::string& axis) { return group(axes_but(axis)); }
  /// The group along `axes` cut in runs of `count` neighbours: this rank's run. Name: axes joined by "+", "/count".
  Group& neighbours(const std::vector<std::string>& axes, int count);
  Group& neighbours(const std::string& axis, int count) { return neighbours(std::vector<std::string>{axis}, count); }
  /// The ranks that stand where this one does in each run of neighbours(axes, count). Name: axes joined by "+", then
  /// ".i" for each index along them.
  Group& counterparts(const std::vector<std::string>& axes, int count);
  /// group(axes) joined with those at the other `indices` along `axis`, of which this rank's is one: ascending, at
  /// least two.
  Group& among(const std::vector<std::string>& axes, const std::string& axis, const std::vector<int>& indices);
  /// For what goes one way between the ranks at the indices `from` (rank 0 of the group) and `to` (rank 1) along
  /// `axis`, of which this rank is one; the way back is a group of its own, so neither stands in the other's way.
  /// Collective between these two: ranks that make several do so in one order of (from, to). Name: "axis from>to".
  Group& one_way(const std::string& axis, int from, int to);
  /// Sends a number over every group made so far, in the order in which they were made: so transports between devices,
  /// which connect at the first tensor (DeviceLinks), do so before ranks depend on one another in other ways. For
  /// groups that will carry tensors of `device`; nothing happens for the CPU. Collective among all ranks.
  /// Communication: of each group an all_reduce of [1], or the transfer of [1] that goes its one way.
  void connect(at::Device device);
  World& world() { return world_; }

 private:
  static std::string name_of(const std::vector<std::string>& axes);
  Group& made(const std::string& name, const std::vector<int>& ranks, bool is_one_way = false,
              const std::string& channel = "");
  std::vector<std::string> axes_but(const std::string& left_out) const;
  std::vector<int> ranks_along(const std::vector<std::string>& axes) const;

  World& world_;
  tensor::Place place_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Group>> groups_;
  struct Made {
    Group* group;
    bool is_one_way;
  };
  std::vector<Made> in_order_;
};

}  // namespace colossal::comm
