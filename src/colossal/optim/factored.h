// Second moments of matrices, stored as the means of their rows and columns (Shazeer and Stern, arXiv:1804.04235).
#pragma once
#include <map>
#include <string>
#include <vector>

#include "colossal/optim/logical_tensors.h"
#include "colossal/optim/shard_states.h"

namespace colossal::optim {

/// Two running means, r [n] and c [m], for each logical matrix [n, m] of the model (LogicalTensors). They average the
/// squares of the buffers passed to add(); r c^T / mean(r) approximates the second moment. Every rank holds the means
/// of all matrices: n + m doubles per matrix.
class FactoredMoments {
 public:
  /// `kind` is the prefix of the states' names: "factored" gives "factored_rows.NAME" and "factored_columns.NAME". The
  /// states of a stack are [experts, n] and [experts, m].
  FactoredMoments(const LogicalTensors& tensors, std::string kind);

  /// Returns true for the parameters that this class handles: those whose logical tensors have two dimensions.
  bool is_matrix(const nn::Parameter& parameter) const { return is_matrix(tensors_.entry(parameter)); }

  /// An update in one pass: moments = decay moments + (1 - decay) means of ((scale buffer)^2 + epsilon). The caller
  /// calls begin(), then add() for each shard, then update(). `buffer` is as long as the shard that has `pieces`.
  void begin(double scale, double decay, double epsilon);
  void add(const std::vector<memory::Piece>& pieces, const at::Tensor& buffer);
  /// Completes the update. Communication: one all_reduce of the sum of n + m doubles among all ranks.
  void update();
  /// Sets to = scale from / sqrt(moments) for the matrices of a shard, in one pass; other pieces are unchanged. `to`
  /// may be `from`. Adds the squares of `to` to `squares`, as LogicalTensors::add_squares() does, before `to` is
  /// rounded.
  void divide(const std::vector<memory::Piece>& pieces, const at::Tensor& from, double scale, const at::Tensor& to,
              at::Tensor& squares) const;

  void add_to(std::vector<StateTensor>& tensors) const;

 private:
  using Entry = LogicalTensors::Entry;
  static bool is_matrix(const Entry& entry) { return entry.shape.size() == 2; }
  /// Return views of `flat`, a buffer like moments_: the rows [count, n] and columns [count, m] of a parameter's
  /// matrices.
  at::Tensor rows_of(const at::Tensor& flat, const Entry& entry) const;
  at::Tensor columns_of(const at::Tensor& flat, const Entry& entry) const;

  const LogicalTensors& tensors_;
  std::string kind_;
  at::Tensor moments_;  // the rows and columns of all parameters, concatenated
  at::Tensor sums_;     // sums of squares in the same order, between begin() and update()
  double scale_ = 1, decay_ = 0, epsilon_ = 0;
  // For each parameter with matrices, by the number of its first tensor: the offset in moments_ of the rows of all its
  // matrices, which their columns follow.
  std::map<size_t, int64_t> place_;
};

/// Second moments of all parameters: by rows and columns for matrices, element by element for others. They are saved as
/// "factored_rows", "factored_columns" and "exp_avg_sq".
class SecondMoments {
 public:
  SecondMoments(const std::vector<memory::Shard>& shards, const LogicalTensors& tensors);
  /// Returns the places of the states that add() writes and divide() reads.
  memory::Places places() const { return others_.places(); }
  /// An update: moments = decay moments + (1 - decay) ((scale buffer)^2 + 1e-30). The caller calls begin(), add() for
  /// each shard, then update().
  void begin(double scale, double decay);
  /// Adds the squares of `buffer`, for shard number `index`. It completes the moments of tensors that are not matrices;
  /// update() completes the moments of matrices.
  void add(size_t index, const memory::Resident& shard, const at::Tensor& buffer);
  /// Completes the update. Communication: as FactoredMoments::update().
  void update() { matrices_.update(); }
  /// Sets to = scale from / sqrt(moments). `to` may be `from`. Adds the squares of `to` to `squares`, as
  /// LogicalTensors::add_squares() does.
  void divide(size_t index, const memory::Resident& shard, const at::Tensor& from, double scale, const at::Tensor& to,
              at::Tensor& squares) const;
  void add_to(std::vector<StateTensor>& tensors, const std::vector<memory::Shard>& shards) const;

 private:
  const LogicalTensors& tensors_;
  FactoredMoments matrices_;
  PieceStates others_;
  double scale_ = 1, decay_ = 0;
};

}  // namespace colossal::optim
