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
#include "colossal/tensor/mesh_coordinates.h"

namespace colossal::comm {

/// Axes are given outermost first: neighbours along the last one have consecutive ranks.
///
/// The first request for a group makes it, which is collective among its members; the mesh then keeps the group. A
/// request for an axis that the mesh does not have, or for an axis of size 1, returns a group of this rank alone, which
/// communicates nothing. Errors: throws Error("parallel", ...) unless the sizes multiply to world.size().
class Mesh {
 public:
  struct Axis {
    std::string name;
    int size;
    tensor::BatchSplit batch_split = tensor::BatchSplit::Nothing;
  };
  /// Returns an axis along which the rows of a batch are sharded.
  static Axis batch(std::string name, int size) { return {std::move(name), size, tensor::BatchSplit::Rows}; }
  /// Returns an axis along which the tokens of each row are sharded.
  static Axis sequence(std::string name, int size) { return {std::move(name), size, tensor::BatchSplit::Tokens}; }
  Mesh(World& world, const std::vector<Axis>& axes);
  /// Returns a view of this mesh that lacks `hidden` axes, so that ranks along them do the same work side by side: the
  /// view's groups lie within their ranks. It shares the groups of this mesh, whose world must outlive it.
  Mesh without(const std::vector<std::string>& hidden) const;

  const tensor::MeshCoordinates& coordinates() const { return coordinates_; }
  int size(const std::string& axis) const { return coordinates_.size(axis); }
  int index(const std::string& axis) const { return coordinates_.index(axis); }

  Group& group(const std::string& axis) { return group(std::vector<std::string>{axis}); }
  /// Returns the ranks that differ from this one only along `axes`, the first axis outermost. Name: axes joined by
  /// "+".
  Group& group(const std::vector<std::string>& axes);
  Group& group(std::initializer_list<const char*> axes) {
    return group(std::vector<std::string>(axes.begin(), axes.end()));
  }
  /// Returns the ranks along `axis`, as group() does, but with a separate connection between devices. Only groups of
  /// the same ranks and purpose share that connection (World::make_group). Use it for calls that must not wait for
  /// other calls of these ranks. Name: "axis purpose".
  Group& channel(const std::string& axis, const std::string& purpose);
  /// Returns the group of all ranks.
  Group& all() { return group(axes_but("")); }
  /// Returns the ranks that differ from this one along any axes but `axis`.
  Group& all_but(const std::string& axis) { return group(axes_but(axis)); }
  /// Cuts the group along `axes` into runs of `count` neighbours and returns this rank's run. Name: axes joined by
  /// "+", "/count".
  Group& neighbours(const std::vector<std::string>& axes, int count);
  Group& neighbours(const std::string& axis, int count) { return neighbours(std::vector<std::string>{axis}, count); }
  /// Returns the ranks that have this rank's position in each run of neighbours(axes, count). Name: axes joined by
  /// "+", then ".i" for each index along them.
  Group& counterparts(const std::vector<std::string>& axes, int count);
  /// Returns group(axes) joined with the groups at the other `indices` along `axis`. `indices` must be ascending, have
  /// at least two entries and contain this rank's index.
  Group& among(const std::vector<std::string>& axes, const std::string& axis, const std::vector<int>& indices);
  /// Returns a group for transfers in one direction, between the ranks at the indices `from` (rank 0 of the group) and
  /// `to` (rank 1) along `axis`. This rank must be one of them. The opposite direction has a separate group, so
  /// neither direction blocks the other. Collective between these two ranks: ranks that make several such groups must
  /// do so in one common order of (from, to). Name: "axis from>to".
  Group& one_way(const std::string& axis, int from, int to);
  /// Sends a number over every group made so far, in the order in which they were made. Transports between devices
  /// (DeviceLinks) connect at the first tensor; connect() makes them do so before ranks depend on one another in other
  /// ways. Call it for groups that will carry tensors of `device`; for the CPU it does nothing. Collective among all
  /// ranks. Communication: for each group an all_reduce of [1], or for a one-way group a transfer of [1].
  void connect(at::Device device);
  World& world() { return world_; }

 private:
  struct Made {
    Group* group;
    bool is_one_way;
  };
  /// The groups made so far, shared by the views of a mesh.
  struct Groups {
    std::mutex mutex;
    std::map<std::string, std::shared_ptr<Group>> by_name;
    std::vector<Made> in_order;
  };
  Mesh(tensor::MeshCoordinates all, World& world);
  static std::string name_of(const std::vector<std::string>& axes);
  /// Returns `axes` without those that only the whole mesh has.
  std::vector<std::string> visible(std::vector<std::string> axes) const;
  Group& made(const std::string& name, const std::vector<int>& ranks, bool is_one_way = false,
              const std::string& channel = "");
  std::vector<std::string> axes_but(const std::string& left_out) const;
  std::vector<int> ranks_along(const std::vector<std::string>& axes) const;

  World& world_;
  tensor::MeshCoordinates all_;          // of the whole mesh
  tensor::MeshCoordinates coordinates_;  // without hidden axes
  std::shared_ptr<Groups> groups_ = std::make_shared<Groups>();
};

}  // namespace colossal::comm
