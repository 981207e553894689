// Which calls of a step belong together: the events of several roles that are one collective or one message.
#pragma once
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "colossal/plan/costs.h"
#include "colossal/plan/timeline.h"
#include "colossal/plan/transfers.h"

namespace colossal::plan {

/// Matches the calls of roles and makes their transfers. Queues: one of each role and stream, and one of each pair of
/// roles that exchange messages through a group. Links: an outgoing and an incoming one of each role and kind.
class StepCalls {
 public:
  /// Both must outlive this object. Errors: those of simulate_step() about roles.
  StepCalls(const std::vector<Role>& roles, const Costs& costs);

  /// Returns the names of the role's streams: "compute", its groups in their order, "host copies", "disk"; the last
  /// two only if it has such events.
  const std::vector<std::string>& streams(int role) const { return own_[static_cast<size_t>(role)].streams; }
  /// Returns the index in streams() of a call, a copy or a disk event.
  int stream_of(int role, const StepEvent& event) const;

  struct Joined {
    int transfer = -1;
    double seconds = 0;  ///< of the transfer alone, as this member sees it
  };
  /// Returns the transfer that an event of a role belongs to, with the role's queue, but does not join it.
  Joined join(int role, const StepEvent& event, Transfers& transfers);

 private:
  /// Calls of one collective group, or messages between two roles in one direction.
  struct Channel {
    std::string title;            // for messages of errors
    std::vector<int> roles;       // members; of messages sender and receiver
    std::vector<size_t> reached;  // number of calls that each of `roles` has reached
    std::vector<int> transfers;
    std::vector<int> links;
    int queue = -1;  // of messages
  };
  using Key = std::pair<std::string, std::vector<int>>;
  struct GroupOfRole {
    int stream = 0;                     // index in streams
    int collectives = -1;               // channel; -1 = not used yet
    std::map<int, int> sent, received;  // channels of messages, by peer in the group
    std::map<int, GroupPlace> to;       // places of messages, by peer
    GroupPlace place;
  };
  struct Own {
    std::vector<std::string> streams;
    std::vector<GroupOfRole> groups;
    int copies = -1, disk = -1;  // streams
    int first_queue = 0;         // queue of stream 0
  };

  GroupOfRole& group_of(int role, const StepEvent& call);
  int collective_channel(int role, const StepEvent& call);
  int message_channel(int role, const StepEvent& call);
  int role_of(int rank, int role, const std::string& group) const;
  int own_transfer(int role, int stream, const std::string& what, Transfers& transfers) const;
  int link_of(int role, int kind, bool outgoing);

  const std::vector<Role>& roles_;
  const Costs& costs_;
  std::vector<int> role_of_rank_;  // -1 = none
  std::vector<Own> own_;
  std::deque<Channel> channels_;  // transfers refer to their titles
  std::map<Key, int> collectives_, messages_;
  std::map<std::pair<int, int>, int> links_;  // by role and kind * 2 + direction
  int queues_ = 0;
};

}  // namespace colossal::plan
