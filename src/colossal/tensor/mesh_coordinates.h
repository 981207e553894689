// The coordinates of a rank in the mesh. They are plain data, so shard specs can be read without communication.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace colossal::tensor {

/// How the batch is split along a mesh axis. Ranks along an axis of rows or tokens see different tokens. So they sum
/// the gradients of the parameters that they replicate, and they may shard that sum (replicas()). Only along an axis of
/// rows does each rank get a batch of its own, with its own labels to count and rows to number.
enum class BatchSplit {
  Nothing,  ///< the batch is not split: all indices get the same rows and tokens
  Rows,     ///< rows of the global batch: each index gets different rows ("data")
  Tokens,   ///< tokens of each row: all indices get the same rows ("sequence")
};

/// Mesh coordinates: the size of each named axis and this rank's index along it. An axis that is not listed has size 1.
class MeshCoordinates {
 public:
  struct Axis {
    std::string name;
    int size;
    int index;
    BatchSplit batch_split = BatchSplit::Nothing;
  };
  MeshCoordinates() = default;
  explicit MeshCoordinates(std::vector<Axis> axes) : axes_(std::move(axes)) {}

  /// Returns the size of `axis`, or 1 if it is not listed.
  int size(const std::string& axis) const;
  /// Returns this rank's index along `axis`, or 0 if it is not listed.
  int index(const std::string& axis) const;
  /// The product of the sizes of `axes`, and this rank's index in that product (first axis outermost).
  int size(const std::vector<std::string>& axes) const;
  int index(const std::vector<std::string>& axes) const;
  const std::vector<Axis>& axes() const { return axes_; }
  /// Returns the names of the axes that split the batch, by rows or by tokens, outermost first.
  std::vector<std::string> batch_axes() const;
  /// Returns the names of the batch axes that split rows. index(row_axes()) selects the rows of the global batch that
  /// this rank gets.
  std::vector<std::string> row_axes() const;

 private:
  std::vector<Axis> axes_;  // outermost first
};

}  // namespace colossal::tensor
