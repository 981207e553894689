// How the tokens and the experts of a mixture are divided over ranks. A mixture (nn/experts.h) is written once over it:
// one process uses ExpertRanks itself, which sends nothing; parallel/expert/ranks.h has the ranks of a mesh.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace colossal::nn {

struct ForwardContext;

/// One process: it has all tokens and all experts.
class ExpertRanks {
 public:
  /// The ranks that exchange rows with each other.
  enum class Among : uint8_t {
    All,       ///< all ranks that hold different experts
    SameNode,  ///< the ranks of this rank's node
    Nodes,     ///< the ranks at this rank's position in each node
  };
  /// Waits for an exchange and returns the received rows. It must be called exactly once, and before the ranks end.
  using Arrival = std::function<at::Tensor()>;

  virtual ~ExpertRanks() = default;
  /// Returns the number of ranks that hold different experts. The first ceil(count / ranks()) experts are on the first
  /// rank, and so on; the last ranks may have fewer, or none.
  virtual int64_t ranks() const { return 1; }
  /// Returns this rank's index among them.
  virtual int64_t rank() const { return 0; }
  /// Returns the number of ranks of a node, if a token is sent to each node once and passed on there. Node n has the
  /// ranks from n x node(). Equal on all ranks; at least 2, and a divisor of ranks(). 0 = tokens go straight to ranks.
  virtual int64_t node() const { return 0; }

  /// Returns the tokens that this rank routes, [T, hidden] with whole features, from its hidden states between blocks.
  /// Every token of the micro-batch is routed by one rank, or by several that compute the same. With autograd.
  virtual at::Tensor enter(const at::Tensor& x /*[B, S, H_local]*/) const { return x.flatten(0, 1); }
  /// Returns hidden states like `like` from the results of those tokens. With autograd.
  virtual at::Tensor leave(const at::Tensor& y /*[T, hidden]*/, const at::Tensor& like) const {
    return y.view_as(like);
  }
  /// Returns the position of each of those tokens in the micro-batch of all ranks, row by row: int64 [T] on the
  /// device of x. Sets `tokens` to the number of tokens of the micro-batch.
  virtual at::Tensor positions(const at::Tensor& x, const ForwardContext& step, int64_t& tokens) const;

  /// Starts to send in_rows[r] rows to each rank r of `among`, in rank order, and to receive out_rows[r] rows from it.
  /// If `may_round`, rows that leave this rank may be sent with fewer bits. Without autograd. `rows` may be released,
  /// but not written to, before the arrival.
  virtual Arrival begin_exchange(const at::Tensor& rows, const std::vector<int64_t>& /*out_rows*/,
                                 const std::vector<int64_t>& /*in_rows*/, Among /*among*/, bool /*may_round*/) const {
    return [rows] { return rows; };
  }
  /// Returns the rows received in an exchange that rounds nothing.
  at::Tensor exchange(const at::Tensor& rows, const std::vector<int64_t>& out_rows, const std::vector<int64_t>& in_rows,
                      Among among) const {
    return begin_exchange(rows, out_rows, in_rows, among, /*may_round=*/false)();
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
