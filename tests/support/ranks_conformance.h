// Checks of the contract of a transport. Each rank compares results with values that it computes itself. The checks run
// on threads and on processes.
#pragma once
#include <cstdint>

namespace colossal::comm {
class Group;
}

namespace colossal::test {

// Each function issues collectives, in the same order on all ranks. It throws a std::runtime_error that names the wrong
// result.

void check_every_dtype(comm::Group& group, int64_t numel);
void check_every_collective(comm::Group& group, int64_t numel);
void check_uneven_exchange(comm::Group& group);
void check_send_and_recv(comm::Group& group, int64_t numel);
void check_issue_order(comm::Group& group);
void check_equal_bits_on_all_ranks(comm::Group& group, int64_t numel);
/// Runs all checks above, for sizes from zero to several pieces.
void check_transport(comm::Group& group);
/// Checks that each element of a sum is added up in the order of the ranks, whatever its place and the size of the
/// message. Groups of Gloo do so if they are of tensor parallelism.
void check_sums_in_rank_order(comm::Group& group, int64_t numel);

}  // namespace colossal::test
