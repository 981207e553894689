// The hops of assignments from the ranks of their tokens to the ranks of their experts: straight, or by way of one rank
// in each node. Indices and counts are computed once for a micro-batch; rows then go there and back. No autograd.
//
//   const ExpertHop last(counts, 2, ranks, ExpertRanks::Among::All, index);   // counts: [ranks x 2] of this rank
//   const at::Tensor there = last.forth(rows);                                 // grouped by expert: last.ends()
//   const at::Tensor again = last.back(there);                                 // the same rows in the first order
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "colossal/nn/expert_ranks.h"
#include "colossal/ops/products/grouped_matmul.h"

namespace colossal::nn {

/// Returns the rows of x [R, H] with those indices. LibTorch has no C++ version of index_select for tensors on meta.
at::Tensor picked_rows(const at::Tensor& x, const at::Tensor& index);

/// Returns the numbers of assignments of each expert if they were even.
std::vector<int64_t> even_counts(int64_t assignments, int64_t count);

/// The hop to the ranks that hold the experts. Rows before the hop are sorted by expert.
class ExpertHop {
 public:
  /// `counts` has this rank's rows for each expert of the ranks of `among`, `here` experts for each rank: int64
  /// [ranks x here]. Indices are made on its device. On meta `on_meta` has the values, and the other ranks are assumed
  /// to have the same.
  /// Communication: one all_to_all of `here` int64 for each rank; on one rank nothing. On an accelerator the host waits
  ///                once, for sent and received counts together.
  ExpertHop(const at::Tensor& counts, const std::vector<int64_t>& on_meta, int64_t here,
            std::shared_ptr<const ExpertRanks> ranks, ExpertRanks::Among among);
  /// Does the same for counts that are on the host. `index` has the device of indices.
  ExpertHop(const std::vector<int64_t>& counts, int64_t here, std::shared_ptr<const ExpertRanks> ranks,
            ExpertRanks::Among among, const at::TensorOptions& index);

  /// Starts to send the rows. The arrival returns them grouped by expert, and by source within an expert.
  ExpertRanks::Arrival begin(const at::Tensor& rows, bool may_round) const;
  /// Returns begin() without rounding.
  at::Tensor forth(const at::Tensor& rows) const { return begin(rows, /*may_round=*/false)(); }
  /// Returns the rows of forth() to their source, in the order that they had there.
  at::Tensor back(const at::Tensor& rows) const;
  /// Number of rows that this rank sends, those to itself included.
  int64_t rows_sent() const;
  /// Number of ranks that exchange rows.
  int64_t ranks() const { return size_; }
  /// Ends of the groups of this rank's experts.
  const ops::GroupEnds& ends() const { return ends_; }

 private:
  void order_rows(const at::Tensor& arriving, int64_t here);

  std::shared_ptr<const ExpertRanks> ranks_;
  ExpertRanks::Among among_;
  int64_t size_;                          // number of ranks
  std::vector<int64_t> sent_, received_;  // rows to and from each rank
  at::Tensor by_expert_, by_source_;      // permutations between the order of arrival and that of experts
  ops::GroupEnds ends_;
};

/// The hop to this rank's counterpart in each node that has one of a token's experts. A token's row is sent to a node
/// once. The counterpart repeats it for each assignment to an expert of its node, in order of experts, for an ExpertHop
/// within the node. On the way back, and for gradients, each assignment has a row of its own, so that a sum over a
/// token's experts can be made in their order where the token is.
class NodeHop {
 public:
  /// `experts`: [T, used], ascending. `place`: [T, used], the places of assignments in the order of experts, with the
  /// number of assignments for dropped ones. `here`: experts of each rank. On meta loads are those of meant_counts(),
  /// each token's experts are in as many nodes as possible, and all ranks have the same counts.
  /// Communication: an all_to_all of 2 int64 for each node, then one of an int64 for each assignment to another node.
  ///                Waits for the results of both; on accelerators it first waits for `experts` and `place`.
  /// Errors ("experts"): received counts that contradict each other, because ranks did not run the same pass.
  NodeHop(const at::Tensor& experts, const at::Tensor& place, int64_t assignments, int64_t count, int64_t here,
          std::shared_ptr<const ExpertRanks> ranks);

  /// Number of rows that this rank passes on to each expert of its node.
  const std::vector<int64_t>& counts() const { return counts_; }
  /// Starts to send tokens x [T, H]. The arrival returns a row for each assignment to pass on, in order of experts.
  ExpertRanks::Arrival begin(const at::Tensor& x, bool may_round) const;
  /// Returns the rows to pass on, from a row for each assignment of this rank's tokens in order of experts.
  at::Tensor forth(const at::Tensor& rows) const;
  /// Returns the opposite of forth().
  at::Tensor back(const at::Tensor& rows) const;

 private:
  struct Codes;
  Codes codes_of(const at::Tensor& experts, const at::Tensor& place, int64_t assignments, int64_t of_node);
  void even(int64_t tokens, int64_t used, int64_t count, int64_t of_node);
  void exchange_counts(bool is_meta, const at::TensorOptions& index);
  void read(const std::vector<int64_t>& codes, int64_t of_node, const at::TensorOptions& index);

  std::shared_ptr<const ExpertRanks> ranks_;
  int64_t nodes_;
  std::vector<int64_t> rows_sent_, rows_received_;          // tokens to and from each node
  std::vector<int64_t> assigned_sent_, assigned_received_;  // their assignments
  std::vector<int64_t> counts_;
  at::Tensor token_of_;             // the token of each row that is sent
  at::Tensor by_node_, by_order_;   // permutations between assignments in order of experts and those by node and token
  at::Tensor row_of_;               // the received row of each assignment to pass on
  at::Tensor to_pass_, to_return_;  // permutations between received assignments and those to pass on
};

/// The load that a recorded run assumes for the experts of its rank. On meta there are no choices of experts, so counts
/// of assignments are invented.
///
///   const nn::MeantLoad load(1.4);   // this rank computes 1.4 times the mean of the ranks that exchange tokens
///   const std::vector<int64_t> counts = nn::meant_counts(assignments, tokens, 8, *ranks);
///
/// Sets the load of this rank's experts in passes on meta, on this thread, during its lifetime: their assignments over
/// the mean of the ranks that exchange tokens. The innermost scope applies. Without a scope the load is 1, and every
/// expert has the same share.
class MeantLoad {
 public:
  explicit MeantLoad(double load);
  ~MeantLoad();
  MeantLoad(const MeantLoad&) = delete;
  MeantLoad& operator=(const MeantLoad&) = delete;

 private:
  const double before_;
};

/// Returns how many of `assignments` choose each of `count` experts: with the load 1 the same share each. Otherwise the
/// experts of this rank have its load, as few of them as `tokens` allow, because an expert has a token at most once.
/// All other experts have the same share of the rest.
std::vector<int64_t> meant_counts(int64_t assignments, int64_t tokens, int64_t count, const ExpertRanks& ranks);

}  // namespace colossal::nn
