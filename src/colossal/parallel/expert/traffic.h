// Traffic of a mixture of experts whose experts are split over the ranks of the axis "expert", by formula.
//
//   const std::vector<int64_t> chosen{0, 2, 1, 3};                      // 2 tokens with 2 of 4 experts each
//   const int64_t remote = remote_assignments(chosen, 2, 4, 2);         // 2 ranks: one assignment of each token
//   hidden_states_sent(remote, 64, /*recomputes_blocks=*/false);        // 4 * 64 * 2
//
// An assignment is a pair of a token and an expert that the token goes through. It is remote if the expert is on
// another rank than the token.
#pragma once
#include <cstdint>
#include <vector>

namespace colossal::parallel {

/// Returns the rank of the axis "expert" that holds `expert`: each of its `ranks` ranks holds count / ranks
/// neighbouring experts. `count` must be divisible by `ranks`.
int64_t expert_rank(int64_t expert, int64_t count, int64_t ranks);

/// Returns the number of remote assignments of a micro-batch. `chosen` has the `used` experts of each token, token
/// after token in the order of the batch. Each rank has an equal run of the tokens, and ranks hold whole experts.
/// Errors ("experts"): tokens or experts that do not divide by the ranks; an expert outside [0, count).
int64_t remote_assignments(const std::vector<int64_t>& chosen, int64_t used, int64_t count, int64_t ranks);

/// Returns the number of elements of hidden states that all ranks together send for one layer and micro-batch, forward
/// and backward: 4 x hidden x remote assignments.
///
/// Forward:   dispatch sends the hidden state of the token to the rank of the expert, and combine sends the result
///            back: 2 x hidden for each remote assignment. The rows of other assignments stay on their rank.
/// Backward:  the gradient of the result takes the way of the dispatch, and the gradient of the hidden state the way
///            of the combine: 2 x hidden again.
/// Recomputation of blocks: backward first repeats dispatch and combine, so the factor is 6.
///
/// If every expert gets equally many tokens of each rank, remote = used x tokens x (ranks - 1) / ranks. An assignment
/// that a capacity drops is not sent and must not be counted.
int64_t hidden_states_sent(int64_t remote, int64_t hidden, bool recomputes_blocks);

/// The rows that cross a rank's border in the two hops of a mixture with nodes (ExpertConfig::node).
struct NodeRows {
  int64_t tokens = 0;    ///< pairs of a token and another node that has one of its experts: rows of the dispatch
  int64_t to_nodes = 0;  ///< assignments to another node than the token's
  int64_t inside = 0;    ///< assignments whose expert's rank is at another position of its node than the token's rank
};

/// Returns those rows of a micro-batch. Rank r is at position r % node of node r / node. `chosen`, `used`, `count` and
/// `ranks` are as in remote_assignments(); the experts of a token are distinct. Errors ("experts"): a `node` that does
/// not divide `ranks`; errors of remote_assignments().
NodeRows node_rows(const std::vector<int64_t>& chosen, int64_t used, int64_t count, int64_t ranks, int64_t node);

/// Returns the number of elements of hidden states that all ranks together send with nodes, forward and backward:
/// hidden x (tokens + 3 to_nodes + 4 inside).
///
/// Forward:   the dispatch sends a token to each node once, and inside the node a row for each assignment. Combine
///            returns a row for each assignment in both hops, because a token adds its results in order of experts.
/// Backward:  gradients of results and of hidden states have a row for each assignment in both hops.
/// Recomputation of blocks: hidden x (2 tokens + 4 to_nodes + 6 inside).
int64_t hidden_states_sent(const NodeRows& rows, int64_t hidden, bool recomputes_blocks);

}  // namespace colossal::parallel
