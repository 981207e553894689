// How the tokens and the experts of a mixture are divided over ranks. A mixture (nn/experts.h) is written once over it:
// one process uses ExpertRanks itself, which sends nothing; parallel/expert/ranks.h has the ranks of a mesh.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace colossal::nn {

struct ForwardContext;

/// One process: it has all tokens and all experts.
class ExpertRanks {
 public:
  virtual ~ExpertRanks() = default;
  /// Returns the number of ranks that hold different experts. The first ceil(count / ranks()) experts are on the first
  /// rank, and so on; the last ranks may have fewer, or none.
  virtual int64_t ranks() const { return 1; }
  /// Returns this rank's index among them.
  virtual int64_t rank() const { return 0; }

  /// Returns the tokens that this rank routes, [T, hidden] with whole features, from its hidden states between blocks.
  /// Every token of the micro-batch is routed by one rank, or by several that compute the same. With autograd.
  virtual at::Tensor enter(const at::Tensor& x /*[B, S, H_local]*/) const { return x.flatten(0, 1); }
  /// Returns hidden states like `like` from the results of those tokens. With autograd.
  virtual at::Tensor leave(const at::Tensor& y /*[T, hidden]*/, const at::Tensor& like) const {
    return y.view_as(like);
  }
  /// Returns the position of each of those tokens in the micro-batch of all ranks, row by row: int64 [T] on the CPU.
  /// Sets `tokens` to the number of tokens of the micro-batch.
  virtual at::Tensor positions(const at::Tensor& x, const ForwardContext& step, int64_t& tokens) const;

  /// Returns rows [sum of in_rows[<r], ...) to rank r, and gets out_rows[r] from it, with autograd (comm::all_to_all).
  virtual at::Tensor exchange(const at::Tensor& rows, const std::vector<int64_t>& /*out_rows*/,
                              const std::vector<int64_t>& /*in_rows*/) const {
    return rows;
  }
  /// Returns the sum of x over all ranks that route other tokens of the micro-batch; may overwrite x.
  virtual at::Tensor sum(at::Tensor x) const { return x; }
  /// Returns how many ranks route each token and take part of its result: 1, or the ranks that split each expert. The
  /// gradients of the router are then sums over them, so each of them attaches its share of a loss.
  virtual int64_t copies() const { return 1; }
  /// Returns true if this rank adds the bias of results to which several ranks contribute.
  virtual bool adds_bias() const { return true; }

  /// Returns the axes that split the stack of experts (dimension 0), and the features inside each expert.
  virtual std::vector<std::string> expert_axes() const { return {}; }
  virtual std::vector<std::string> feature_axes() const { return {}; }
  /// Returns the axes, besides those of the batch, along which ranks see other tokens or other parts of their results:
  /// gradients of the router are partial sums over them.
  virtual std::vector<std::string> token_axes() const { return {}; }
};

}  // namespace colossal::nn
