// The logical tensors of a model, for update rules that need more of a tensor than one rank holds. A stack
// (nn::Parameter::is_stack) is as many tensors as it has slices: each expert of a mixture is a matrix of its own.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/memory/shard.h"

namespace colossal::optim {

/// Numbers the logical tensors identically on all ranks, in the order of the names of their parameters and then of the
/// slices. Parameters of other pipeline stages are included.
class LogicalTensors {
 public:
  /// A parameter and its logical tensors: the parameter itself, or the slices of a stack along dimension 0.
  struct Entry {
    std::string name;
    tensor::ShardSpec spec;        ///< spec of the parameter; its shape is the logical one
    bool hidden_matrix, is_stack;  ///< see nn::Parameter
    std::vector<int64_t> shape{};  ///< shape of each tensor: spec.shape, without dimension 0 if it is a stack
    size_t first = 0, count = 1;   ///< its tensors have the numbers [first, first + count)
    /// Returns the segments of dimension 0 of each tensor, such as gate and up. A tensor without dimensions has none.
    const std::vector<tensor::Segment>& segments() const { return spec.splits[is_stack ? 1 : 0].segments; }
    /// Returns the shape of a state that has `shape` for each tensor: [count, shape...] if it is a stack, else `shape`.
    std::vector<int64_t> shape_of_state(std::vector<int64_t> shape) const;
  };
  /// The elements of one logical tensor that a piece holds.
  struct Part {
    size_t tensor;
    memory::Piece piece;  ///< the piece, cut at the borders of slices
  };
  /// A box of one logical tensor that a piece holds.
  class Block {
   public:
    size_t tensor = 0;
    std::vector<int64_t> start, size;  ///< the box in the logical tensor
    bool counts = false;               ///< see blocks()
    /// Returns the elements of the box as a view of `buffer`, which is as long as the piece's shard.
    at::Tensor of(const at::Tensor& buffer) const;
    /// Returns the elements of the box as a view of `whole`, the logical tensor.
    at::Tensor in(const at::Tensor& whole) const;

   private:
    friend class LogicalTensors;
    memory::Piece piece_{};
    std::vector<int64_t> local_shape_;
    tensor::LocalBox box_{};  // in the parameter
    bool is_in_stack_ = false;
  };
  /// The ranks of which exactly one counts an element: those of the mesh, or those of each pipeline stage.
  enum class Counting : uint8_t { InMesh, InStage };
  /// Numbers the trained parameters of all ranks. No communication, because every rank declares the whole model
  /// (nn::Parameters::declared). `parameters` need not outlive the constructor; `mesh` must outlive this object.
  /// `borrow_device` is the device on which shards are leased (memory::OffloadStore::borrow_device) and rules compute;
  /// none = the device of the parameters. `includes`: selects the parameters that count; null = all.
  /// Errors ("optimizer"): in a pipeline, a parameter whose requires_grad differs from its treatment, because the ranks
  ///                       of other stages cannot know it.
  LogicalTensors(const nn::Parameters& parameters, comm::Mesh& mesh, std::optional<at::Device> borrow_device = {},
                 const std::function<bool(const nn::Parameter&)>& includes = {});
  const std::vector<Entry>& entries() const { return entries_; }
  const Entry& entry(const nn::Parameter& parameter) const { return entries_[index_.at(parameter.name)]; }
  /// Returns the number of logical tensors, called `tensors` below.
  size_t size() const { return size_; }
  /// Returns the parts of a piece, ascending: the piece itself, or one part for each slice of a stack. Parts cover the
  /// piece except for padding slices, which hold zeros.
  std::vector<Part> parts(const memory::Piece& piece) const;
  /// Returns the boxes of the parts of a piece, without padding. `counts` is true on exactly one rank for each element:
  /// one of the mesh, or one of each pipeline stage that holds the tensor.
  std::vector<Block> blocks(const memory::Piece& piece, Counting counting = Counting::InMesh) const;
  /// Returns indices of entries() in the order in which the model declares them: neighbours are mostly in one shard.
  const std::vector<size_t>& as_declared() const { return as_declared_; }
  comm::Mesh& mesh() const { return mesh_; }
  /// Returns the device of the parameters: an accelerator even if shards are leased on the host.
  at::Device model_device() const { return model_device_; }
  /// Returns the dtype of the parameters, also on a rank whose stage trains no parameter.
  at::ScalarType model_type() const { return model_type_; }

  /// Returns one zero per tensor: fp64 [tensors], on the device on which shards are leased.
  at::Tensor zeros() const;
  /// Adds to `squares` [tensors] the sums of the squares of `buffer`'s elements that this rank counts. `buffer` is as
  /// long as the shard that has `pieces`. Every element counts on exactly one rank under every layout. Does not wait
  /// for the device.
  void add_squares(const std::vector<memory::Piece>& pieces, const at::Tensor& buffer, at::Tensor& squares) const;
  /// Returns L2 norms of logical tensors: fp64 [numbers, tensors], on the device on which shards are leased. Element
  /// [k][i] is the norm of tensor i, whose squares (add_squares) on this rank are squares[k][i]. Does not wait for the
  /// device.
  /// Communication: one all_reduce of numbers times tensors doubles among all ranks.
  at::Tensor norms(const std::vector<at::Tensor>& squares) const;
  /// Returns the square root of each tensor's number of elements that train: fp64 [tensors], on the device on which
  /// shards are leased. A norm divided by it is a root mean square.
  const at::Tensor& roots_of_sizes() const { return roots_of_sizes_; }

 private:
  comm::Mesh& mesh_;
  at::Device model_device_, device_;
  at::ScalarType model_type_;
  std::vector<Entry> entries_;
  std::map<std::string, size_t> index_;  // index in entries_ of each name
  std::vector<size_t> as_declared_;
  size_t size_ = 0;
  at::Tensor roots_of_sizes_;
};

/// One factor per tensor, which a device may still be computing.
///
///   const TensorFactors trust(norms[0] / norms[1]);
///   descend(shard, piece, direction, {.rate = rate, .scale = trust.take(of_piece(direction, piece), tensor)});
class TensorFactors {
 public:
  /// `factors`: fp64 [tensors].
  explicit TensorFactors(const at::Tensor& factors);
  /// Returns the factor that the caller must still apply to `x`, elements of tensor number `tensor`. On the host this
  /// is the tensor's factor, for a later pass to apply. On a device this function multiplies `x` by the factor and
  /// returns 1, so the host does not wait. Cost on a device: a pass over x.
  double take(const at::Tensor& x, size_t tensor) const;

 private:
  at::Tensor factors_;
  std::vector<double> known_;  // the factors, on the host only
};

}  // namespace colossal::optim
