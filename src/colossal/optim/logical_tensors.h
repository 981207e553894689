// The whole tensors of a model, as rules see them that need more of a tensor than a rank holds.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/memory/shard.h"

namespace colossal::optim {

/// Numbers the parameters of all ranks alike, in the order of their names: of a pipeline's other stages too.
class LogicalTensors {
 public:
  struct Entry {
    std::string name;
    tensor::ShardSpec spec;  ///< its shape is the logical one
    bool hidden_matrix;      ///< see nn::Parameter
  };
  /// Numbers the trained parameters, on whichever rank they are. Nothing is communicated: every rank declares the whole
  /// model (nn::Parameters::declared). `parameters` need not outlive the constructor. `lent_on` is the device on which
  /// shards are lent (memory::Home::lends_on) and rules compute; none = the device of the parameters. Errors
  /// ("optimizer"): in a pipeline a parameter whose requires_grad differs from its treatment, because the ranks of
  /// other stages cannot know it.
  LogicalTensors(const nn::Parameters& parameters, comm::Mesh& mesh, std::optional<at::Device> lent_on = {});
  const std::vector<Entry>& entries() const { return entries_; }
  size_t index(const nn::Parameter& parameter) const { return index_.at(parameter.name); }
  /// Their numbers in the order in which the model declares them: neighbours mostly lie in one shard.
  const std::vector<size_t>& as_declared() const { return as_declared_; }
  comm::Mesh& mesh() const { return mesh_; }
  /// Device of the parameters: an accelerator even if shards are lent on the host.
  at::Device model_device() const { return model_device_; }
  /// Dtype of the parameters, also on a rank whose stage trains nothing.
  at::ScalarType model_type() const { return model_type_; }

  /// For each tensor a number, at first zero: fp64 [tensors], where shards are lent.
  at::Tensor zeros() const;
  /// squares += sums of the squares that this rank counts of each tensor in `buffer`, as long as the shard that has
  /// `pieces`. Every element counts on one rank, whatever the layout. Nobody waits for the device here.
  void add_squares(const std::vector<memory::Piece>& pieces, const at::Tensor& buffer, at::Tensor& squares) const;
  /// L2 norms of whole tensors: norms()[k][i] of tensor i, whose squares (add_squares) on this rank are squares[k][i];
  /// fp64 [numbers, tensors] where shards are lent. Nobody waits for it here.
  /// Communication: one all_reduce of numbers times tensors doubles among all ranks.
  at::Tensor norms(const std::vector<at::Tensor>& squares) const;
  /// Square roots of the numbers of elements, by which norms are root mean squares: fp64 [tensors], likewise.
  const at::Tensor& roots_of_sizes() const { return roots_of_sizes_; }

 private:
  comm::Mesh& mesh_;
  at::Device model_device_, device_;
  at::ScalarType model_type_;
  std::vector<Entry> entries_;
  std::map<std::string, size_t> index_;
  std::vector<size_t> as_declared_;
  at::Tensor roots_of_sizes_;
};

/// A factor for each tensor, which a device may still be computing.
///
///   const TensorFactors trust(norms[0] / norms[1]);
///   descend(shard, piece, direction, {.rate = rate, .scale = trust.take(of_piece(direction, piece), tensor)});
class TensorFactors {
 public:
  /// `factors`: fp64 [tensors].
  explicit TensorFactors(const at::Tensor& factors);
  /// What is left to multiply `x`, elements of tensor number `tensor`, by: on the host the factor itself, for a pass to
  /// come; on a device 1, as `x` is multiplied here, and nobody waits for the number. Cost there: a pass over x.
  double take(const at::Tensor& x, size_t tensor) const;

 private:
  at::Tensor factors_;
  std::vector<double> known_;  // on the host alone
};

}  // namespace colossal::optim
