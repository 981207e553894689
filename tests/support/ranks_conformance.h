// What every transport must do, checked by one rank against values that it can compute alone. Used on threads and on
// processes.
#pragma once
#include <cstdint>

namespace colossal::comm {
class Group;
}

namespace colossal::test {

/// Each issues collectives, in the same order on all ranks, and throws std::runtime_error naming what was wrong.
void check_every_dtype(comm::Group& group, int64_t numel);
void check_every_collective(comm::Group& group, int64_t numel);
void check_uneven_exchange(comm::Group& group);
void check_send_and_recv(comm::Group& group, int64_t numel);
void check_issue_order(comm::Group& group);
void check_equal_bits_on_all_ranks(comm::Group& group, int64_t numel);
/// All of the above, for sizes from none to several pieces.
void check_transport(comm::Group& group);

}  // namespace colossal::test
