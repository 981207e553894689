// Where a rank stands in the mesh: pure data, so that shard specs need no communication to be read.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace colossal::tensor {

/// What of a batch is dealt out along an axis. Either way ranks along it see other tokens: they sum the gradients of
/// what they hold copies of, and may share it out (replicas()). But only along an axis of rows each is given a batch of
/// its own, with labels to count and rows to number.
enum class Deals {
  Nothing,
  Rows,    ///< the rows of the global batch: each index is given its own ("data")
  Tokens,  ///< the tokens of each row: all indices are given the same rows ("sequence")
};

/// The size of each named axis and this rank's index along it. An axis that is not named has size 1.
class Place {
 public:
  struct Axis {
    std::string name;
    int size;
    int index;
    Deals deals = Deals::Nothing;
  };
  Place() = default;
  explicit Place(std::vector<Axis> axes) : axes_(std::move(axes)) {}

  int size(const std::string& axis) const;
  int index(const std::string& axis) const;
  /// Product of the sizes of `axes`, and the index of this rank in it (first axis outermost).
  int size(const std::vector<std::string>& axes) const;
  int index(const std::vector<std::string>& axes) const;
  const std::vector<Axis>& axes() const { return axes_; }
  /// Names of the axes that deal out the batch, rows or tokens of it, outermost first.
  std::vector<std::string> batch_axes() const;
  /// Names of the batch axes that split rows: index(row_axes()) is the index of the rows of the global batch that a
  /// rank gets.
  std::vector<std::string> row_axes() const;

 private:
  std::vector<Axis> axes_;  // outermost first
};

}  // namespace colossal::tensor
