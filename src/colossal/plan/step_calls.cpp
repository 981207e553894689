#include "colossal/plan/step_calls.h"

#include <algorithm>
#include <iterator>

#include "colossal/base/error.h"

namespace colossal::plan {
namespace {

const std::string kHostCopy = "a host copy", kDisk = "the disk";

std::vector<int> roles_of_ranks(const std::vector<Role>& roles) {
  std::vector<int> result;
  for (size_t r = 0; r < roles.size(); ++r) {
    require(!roles[r].ranks.empty(), "timeline", "a role must have ranks: got none in ", roles[r].name);
    for (const int rank : roles[r].ranks) {
      require(rank >= 0, "timeline", "a rank must not be negative: got ", rank, " in ", roles[r].name);
      const auto index = static_cast<size_t>(rank);
      if (index >= result.size()) result.resize(index + 1, -1);
      require(result[index] < 0, "timeline", "each rank must be in one role: got rank ", rank, " in ",
              result[index] < 0 ? "" : roles[static_cast<size_t>(result[index])].name, " and ", roles[r].name);
      result[index] = static_cast<int>(r);
    }
  }
  return result;
}

}  // namespace

StepCalls::StepCalls(const std::vector<Role>& roles, const Costs& costs)
    : roles_(roles), costs_(costs), role_of_rank_(roles_of_ranks(roles)), own_(roles.size()) {
  for (size_t r = 0; r < roles.size(); ++r) {
    Own& own = own_[r];
    own.streams = {"compute"};
    for (const StepEvents::Group& group : roles[r].events.groups) {
      own.groups.push_back({.stream = static_cast<int>(own.streams.size()), .place = costs.place_of(group.ranks)});
      own.streams.push_back(group.name);
    }
    const auto has = [&](StepEvent::Kind kind) {
      const auto& list = roles[r].events.list;
      return std::any_of(list.begin(), list.end(), [&](const StepEvent& event) { return event.kind == kind; });
    };
    const auto add = [&](const char* name) {
      own.streams.emplace_back(name);
      return static_cast<int>(own.streams.size()) - 1;
    };
    if (has(StepEvent::Kind::HostCopy)) own.copies = add("host copies");
    if (has(StepEvent::Kind::Disk)) own.disk = add("disk");
    own.first_queue = queues_;
    queues_ += static_cast<int>(own.streams.size());
  }
}

StepCalls::GroupOfRole& StepCalls::group_of(int role, const StepEvent& call) {
  Own& own = own_[static_cast<size_t>(role)];
  require(call.group >= 0 && static_cast<size_t>(call.group) < own.groups.size(), "timeline",
          "a call must name a group of its list: got group ", call.group, " of ", own.groups.size(), " in role ",
          roles_[static_cast<size_t>(role)].name);
  return own.groups[static_cast<size_t>(call.group)];
}

int StepCalls::stream_of(int role, const StepEvent& event) const {
  const Own& own = own_[static_cast<size_t>(role)];
  if (event.kind == StepEvent::Kind::HostCopy) return own.copies;
  if (event.kind == StepEvent::Kind::Disk) return own.disk;
  return own.groups[static_cast<size_t>(event.group)].stream;
}

int StepCalls::role_of(int rank, int role, const std::string& group) const {
  const bool has_role =
      rank >= 0 && static_cast<size_t>(rank) < role_of_rank_.size() && role_of_rank_[static_cast<size_t>(rank)] >= 0;
  require(has_role, "timeline", "every rank of a group must have a role: rank ", rank, " of group ", group, " of ",
          roles_[static_cast<size_t>(role)].name, " has none; list the ranks of all roles");
  return role_of_rank_[static_cast<size_t>(rank)];
}

int StepCalls::link_of(int role, int kind, bool outgoing) {
  const int next = static_cast<int>(links_.size());
  return links_.try_emplace({role, kind * 2 + (outgoing ? 1 : 0)}, next).first->second;
}

int StepCalls::collective_channel(int role, const StepEvent& call) {
  GroupOfRole& own = group_of(role, call);
  if (own.collectives >= 0) return own.collectives;
  const StepEvents::Group& group = roles_[static_cast<size_t>(role)].events.groups[static_cast<size_t>(call.group)];
  std::vector<int> members;
  for (const int rank : group.ranks) members.push_back(role_of(rank, role, group.name));
  std::sort(members.begin(), members.end());
  members.erase(std::unique(members.begin(), members.end()), members.end());
  const auto [found, is_new] = collectives_.try_emplace({group.name, members}, static_cast<int>(channels_.size()));
  if (is_new) {
    Channel channel{
        .title = "a call of group " + group.name, .roles = members, .reached = std::vector<size_t>(members.size())};
    for (const int member : members)
      for (const bool outgoing : {true, false}) channel.links.push_back(link_of(member, own.place.link, outgoing));
    channels_.push_back(std::move(channel));
  }
  return own.collectives = found->second;
}

int StepCalls::message_channel(int role, const StepEvent& call) {
  GroupOfRole& own = group_of(role, call);
  const bool is_send = call.collective == StepEvent::kSend;
  auto& known = is_send ? own.sent : own.received;
  if (const auto at = known.find(call.peer); at != known.end()) return at->second;
  const Role& self = roles_[static_cast<size_t>(role)];
  const StepEvents::Group& group = self.events.groups[static_cast<size_t>(call.group)];
  require(call.peer >= 0 && static_cast<size_t>(call.peer) < group.ranks.size(), "timeline",
          "the peer of a message must be in its group: got peer ", call.peer, " of ", group.ranks.size(), " in group ",
          group.name, " of ", self.name);
  const int peer_rank = group.ranks[static_cast<size_t>(call.peer)], peer = role_of(peer_rank, role, group.name);
  // The rank whose events these are is the member of the group that has this role; in a group within one role any.
  const auto mine = std::find_if(group.ranks.begin(), group.ranks.end(), [&](int rank) {
    return rank != peer_rank && role_of(rank, role, group.name) == role;
  });
  const int own_rank = mine == group.ranks.end() ? peer_rank : *mine;
  const GroupPlace place =
      costs_.place_of(is_send ? std::vector<int>{own_rank, peer_rank} : std::vector<int>{peer_rank, own_rank});
  own.to[call.peer] = place;
  const std::vector<int> ends = is_send ? std::vector<int>{role, peer} : std::vector<int>{peer, role};
  const auto [found, is_new] = messages_.try_emplace({group.name, ends}, static_cast<int>(channels_.size()));
  if (is_new)
    channels_.push_back({.title = "a message of group " + group.name,
                         .roles = ends,
                         .reached = {0, 0},
                         .links = {link_of(ends[0], place.link, true), link_of(ends[1], place.link, false)},
                         .queue = queues_++});
  return known[call.peer] = found->second;
}

int StepCalls::own_transfer(int role, int stream, const std::string& what, Transfers& transfers) const {
  const int transfer = transfers.add({.name = &what});
  transfers.enqueue(transfer, own_[static_cast<size_t>(role)].first_queue + stream);
  return transfer;
}

StepCalls::Joined StepCalls::join(int role, const StepEvent& event, Transfers& transfers) {
  const Own& own = own_[static_cast<size_t>(role)];
  const std::string& whose = roles_[static_cast<size_t>(role)].name;
  if (event.kind == StepEvent::Kind::HostCopy)
    return {own_transfer(role, own.copies, kHostCopy, transfers),
            checked_seconds(costs_.host_copy_seconds(event.bytes), whose)};
  if (event.kind == StepEvent::Kind::Disk)
    return {own_transfer(role, own.disk, kDisk, transfers), checked_seconds(costs_.disk_seconds(event.bytes), whose)};
  const bool is_send = event.collective == StepEvent::kSend, is_receive = event.collective == StepEvent::kReceive;
  const bool is_message = is_send || is_receive;
  const int index = is_message ? message_channel(role, event) : collective_channel(role, event);
  Channel& channel = channels_[static_cast<size_t>(index)];
  // Sender and receiver of a message may be the same role, so their places are fixed.
  const auto place =
      is_message ? static_cast<size_t>(is_receive ? 1 : 0)
                 : static_cast<size_t>(std::distance(
                       channel.roles.begin(), std::lower_bound(channel.roles.begin(), channel.roles.end(), role)));
  const size_t number = channel.reached[place]++;
  if (number == channel.transfers.size())
    channel.transfers.push_back(transfers.add({.name = &channel.title,
                                               .members = is_message ? 1 : static_cast<int>(channel.roles.size()),
                                               .links = channel.links}));
  const int transfer = channel.transfers[number];
  if (is_receive) return {transfer, 0};
  GroupOfRole& group = group_of(role, event);
  transfers.enqueue(transfer, is_send ? channel.queue : own.first_queue + group.stream);
  const GroupPlace& where = is_send ? group.to.at(event.peer) : group.place;
  return {transfer, checked_seconds(costs_.call_seconds(event, where), whose)};
}

}  // namespace colossal::plan
