// Second moments of matrices, kept as the means of their rows and columns (Shazeer and Stern, arXiv:1804.04235).
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "colossal/optim/logical_tensors.h"
#include "colossal/optim/shard_states.h"

namespace colossal::optim {

/// For each logical matrix [n, m] of the model two running means, r [n] and c [m], of squares of what update() is
/// given: r c^T / mean(r) stands for their moment. Every rank holds those of all matrices: n + m doubles each.
class FactoredMoments {
 public:
  /// `kind`: "factored" names the states "factored_rows.NAME" and "factored_columns.NAME".
  FactoredMoments(const LogicalTensors& tensors, std::string kind);

  /// True of the parameters that this treats: those of two dimensions.
  static bool is_matrix(const nn::Parameter& parameter) { return parameter.spec.shape.size() == 2; }

  /// moments = decay moments + (1 - decay) means of ((scale buffer)^2 + epsilon), in one pass: begin(), add() for each
  /// shard, with a buffer as long as the shard that has `pieces`, then update().
  void begin(double scale, double decay, double epsilon);
  void add(const std::vector<memory::Piece>& pieces, const at::Tensor& buffer);
  /// Communication: one all_reduce of the sum of n + m doubles among all ranks.
  void update();
  /// to = scale from / sqrt(moments) for the matrices of a shard, in one pass; other pieces stay as they are. `to` may
  /// be `from`. Adds to `squares` what LogicalTensors::add_squares() says of `to`, before it is rounded.
  void divide(const std::vector<memory::Piece>& pieces, const at::Tensor& from, double scale, const at::Tensor& to,
              at::Tensor& squares) const;

  void add_to(std::vector<StateTensor>& tensors) const;

 private:
  struct Matrix {
    size_t tensor;             ///< of LogicalTensors
    at::Tensor rows, columns;  ///< views of moments_
  };
  const LogicalTensors& tensors_;
  std::string kind_;
  at::Tensor moments_;  // all rows and columns, one behind the other
  at::Tensor sums_;     // of squares, likewise, between begin() and update()
  double scale_ = 1, decay_ = 0, epsilon_ = 0;
  std::vector<Matrix> matrices_;
  std::vector<int64_t> place_;  // of a tensor's rows in moments_; -1: not a matrix
};

/// Second moments of all parameters: of matrices by rows and columns, of others element by element. Part of the state
/// as "factored_rows", "factored_columns" and "exp_avg_sq".
class SecondMoments {
 public:
  SecondMoments(const std::vector<memory::Shard>& shards, const LogicalTensors& tensors);
  /// Places of the states that add() writes and divide() reads.
  memory::Places places() const { return others_.places(); }
  /// moments = decay moments + (1 - decay) ((scale buffer)^2 + 1e-30): begin(), add() for each shard, update().
  void begin(double scale, double decay);
  /// Adds the squares of `buffer`, for shard number `index`. The moments of tensors that are not matrices are complete
  /// after it; those of matrices after update().
  void add(size_t index, const memory::Resident& shard, const at::Tensor& buffer);
  /// Communication: that of FactoredMoments::update().
  void update() { matrices_.update(); }
  /// to = scale from / sqrt(moments). `to` may be `from`. Adds to `squares` what LogicalTensors::add_squares() says of
  /// `to`.
  void divide(size_t index, const memory::Resident& shard, const at::Tensor& from, double scale, const at::Tensor& to,
              at::Tensor& squares) const;
  void add_to(std::vector<StateTensor>& tensors, const std::vector<memory::Shard>& shards) const;

 private:
  const LogicalTensors& tensors_;
  FactoredMoments matrices_;
  PieceStates others_;
  double scale_ = 1, decay_ = 0;
};

/// body(block of `buffer`, the logical indices of its first row and column, whether this rank counts it) for the blocks
/// of a matrix's piece. `buffer` is as long as the piece's shard.
void for_matrix_blocks(const memory::Piece& piece, const at::Tensor& buffer, const tensor::Place& place,
                       const std::function<void(at::Tensor block, int64_t row, int64_t column, bool counts)>& body);

}  // namespace colossal::optim
