// Where a rank stands in the mesh: pure data, so that shard specs need no communication to be read.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace colossal::tensor {

/// The size of each named axis and this rank's index along it. An axis that is not named has size 1.
class Place {
 public:
  struct Axis {
    std::string name;
    int size;
    int index;
    /// The batch is dealt out along it: its ranks see other samples, or other parts of them
    bool deals_batch = false;
  };
  Place() = default;
  explicit Place(std::vector<Axis> axes) : axes_(std::move(axes)) {}

  int size(const std::string& axis) const;
  int index(const std::string& axis) const;
  /// Product of the sizes of `axes`, and the index of this rank in it (first axis outermost).
  int size(const std::vector<std::string>& axes) const;
  int index(const std::vector<std::string>& axes) const;
  const std::vector<Axis>& axes() const { return axes_; }
  /// Names of the axes that deal out the batch, outermost first.
  std::vector<std::string> batch_axes() const;

 private:
  std::vector<Axis> axes_;  // outermost first
};

}  // namespace colossal::tensor
