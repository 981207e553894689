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

}  // namespace colossal::parallel
