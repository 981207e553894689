#include "colossal/predict/role_costs.h"

#include <algorithm>
#include <set>

namespace colossal::predict {

RoleCosts::RoleCosts(const plan::Cluster& cluster, const distributed::ParallelConfig& parallel,
                     const RecordedRoles& roles)
    : costs_(cluster),
      ranks_per_node_(cluster.ranks_per_node()),
      sizes_(axis_sizes(parallel)),
      roles_(roles),
      role_of_rank_(static_cast<size_t>(parallel.ranks()), -1) {
  for (size_t role = 0; role < roles.size(); ++role)
    for (const int rank : roles[role].ranks)
      if (static_cast<size_t>(rank) < role_of_rank_.size())
        role_of_rank_[static_cast<size_t>(rank)] = static_cast<int>(role);
}

int RoleCosts::role_of(int64_t rank) const {
  return rank < 0 || rank >= static_cast<int64_t>(role_of_rank_.size()) ? -1 : role_of_rank_[static_cast<size_t>(rank)];
}

int64_t RoleCosts::nodes_of(const std::vector<int>& ranks, int64_t distance) const {
  if (!std::is_sorted(ranks.begin(), ranks.end())) {
    std::set<int64_t> nodes;
    for (const int rank : ranks) nodes.insert((rank + distance) / ranks_per_node_);
    return static_cast<int64_t>(nodes.size());
  }
  int64_t nodes = 0, last = -1;
  for (const int rank : ranks) {
    const int64_t node = (rank + distance) / ranks_per_node_;
    nodes += node != last;
    last = node;
  }
  return nodes;
}

bool RoleCosts::has_same_roles(const std::vector<int>& ranks, int64_t distance) const {
  return std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return role_of(rank + distance) == role_of(rank); });
}

/// Replaces `widest` by the group that has the most nodes among `ranks` and those that it moves to.
void RoleCosts::widen(const std::vector<int>& ranks, std::vector<int>& widest, int64_t& nodes) const {
  const auto most = static_cast<int64_t>(ranks.size());  // no group of this size has more nodes
  const RankPlace first = place_of_rank(sizes_, ranks.front());
  RankPlace counts{1, 1, 1, 1, 1};  // places to move to along each axis
  for (size_t axis = kPipelineAxis + 1; axis < kLayoutAxes; ++axis)
    if (std::all_of(ranks.begin(), ranks.end(),
                    [&](int rank) { return place_of_rank(sizes_, rank)[axis] == first[axis]; }))
      counts[axis] = sizes_[axis];
  int64_t moves = 1;
  for (const int64_t count : counts) moves *= count;
  for (int64_t move = 0; move < moves && nodes < most; ++move) {
    const RankPlace to = place_of_rank(counts, move);
    int64_t distance = 0;
    for (size_t axis = 0; axis < kLayoutAxes; ++axis)
      if (counts[axis] > 1) distance += (to[axis] - first[axis]) * stride_of_axis(sizes_, axis);
    const int64_t found = nodes_of(ranks, distance);
    if (found <= nodes || !has_same_roles(ranks, distance)) continue;
    nodes = found;
    widest = ranks;
    for (int& rank : widest) rank += static_cast<int>(distance);
  }
}

/// Returns the messages of the same distance in the smallest group of both ranks, between ranks of their role. Empty if
/// they have different roles.
std::vector<std::vector<int>> RoleCosts::alike_messages(int from, int to) const {
  const int role = role_of(from);
  if (role < 0 || role_of(to) != role) return {};
  const auto place_in = [](const StepEvents::Group& group, int rank) {
    return std::find(group.ranks.begin(), group.ranks.end(), rank) - group.ranks.begin();
  };
  const StepEvents::Group* smallest = nullptr;
  for (const StepEvents::Group& group : roles_[static_cast<size_t>(role)].step.groups) {
    const auto size = static_cast<std::ptrdiff_t>(group.ranks.size());
    const bool has_both = place_in(group, from) < size && place_in(group, to) < size;
    if (has_both && (!smallest || group.ranks.size() < smallest->ranks.size())) smallest = &group;
  }
  if (!smallest) return {};
  std::vector<std::vector<int>> messages;
  const size_t size = smallest->ranks.size();
  const size_t distance = (static_cast<size_t>(place_in(*smallest, to) - place_in(*smallest, from)) + size) % size;
  for (size_t i = 0; i < size; ++i) {
    const int sender = smallest->ranks[i], receiver = smallest->ranks[(i + distance) % size];
    if (role_of(sender) == role && role_of(receiver) == role) messages.push_back({sender, receiver});
  }
  return messages;
}

plan::GroupPlace RoleCosts::place_of(const std::vector<int>& ranks) const {
  std::vector<int> widest = ranks;
  if (ranks.size() < 2) return costs_.place_of(widest);
  int64_t nodes = nodes_of(ranks, 0);
  widen(ranks, widest, nodes);
  if (ranks.size() == 2)
    for (const std::vector<int>& message : alike_messages(ranks[0], ranks[1])) {
      if (nodes == 2) break;
      widen(message, widest, nodes);
    }
  return costs_.place_of(widest);
}

}  // namespace colossal::predict
