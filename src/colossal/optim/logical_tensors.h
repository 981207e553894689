// The whole tensors of a model, as rules see them that need more of a tensor than a rank holds.
#pragma once
#include <map>
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
  /// Of the parameters that are trained, wherever they are. Nothing is communicated: every rank declares the whole
  /// model (nn::Parameters::declared). Needs no `parameters` later. Errors ("optimizer"): a parameter that is not
  /// trained, in a pipeline: the ranks of other stages could not tell.
  LogicalTensors(const nn::Parameters& parameters, comm::Mesh& mesh);
  const std::vector<Entry>& entries() const { return entries_; }
  size_t index(const nn::Parameter& parameter) const { return index_.at(parameter.name); }
  /// Their numbers in the order in which the model declares them: neighbours mostly lie in one shard.
  const std::vector<size_t>& as_declared() const { return as_declared_; }
  comm::Mesh& mesh() const { return mesh_; }

  /// For each tensor a number, at first zero: fp64 [tensors], on the device of the parameters.
  at::Tensor zeros() const;
  /// squares += sums of the squares that this rank counts of each tensor in `buffer`, as long as the shard that has
  /// `pieces`. Every element counts on one rank, whatever the layout. Nobody waits for the device here.
  void add_squares(const std::vector<memory::Piece>& pieces, const at::Tensor& buffer, at::Tensor& squares) const;
  /// L2 norms of whole tensors: norms()[k][i] of tensor i, whose squares (add_squares) on this rank are squares[k][i].
  /// Communication: one all_reduce of numbers times tensors doubles among all ranks. Cost: one wait for the device.
  std::vector<std::vector<double>> norms(const std::vector<at::Tensor>& squares) const;

 private:
  comm::Mesh& mesh_;
  at::Device device_;
  std::vector<Entry> entries_;
  std::map<std::string, size_t> index_;
  std::vector<size_t> as_declared_;
};

}  // namespace colossal::optim
