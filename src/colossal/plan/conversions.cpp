#include "colossal/plan/conversions.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::plan {
namespace {

/// Returns the last axis of a set, or -1 if the set is empty.
int last_axis(uint8_t set) {
  int axis = -1;
  for (int bit = 0; bit < 8; ++bit)
    if (set >> bit & 1) axis = bit;
  return axis;
}

/// A spec that one step reaches.
struct NextSpec {
  Movement movement;
  int axis;
  Spec spec;
};

/// Returns the specs that one step reaches. An axis can only follow the axes that come earlier in the mesh, because the
/// first axis of a dimension makes the largest blocks.
std::vector<NextSpec> specs_after(const Spec& spec, const std::vector<int64_t>& shape, const Mesh& mesh) {
  std::vector<NextSpec> reached;
  const auto add = [&](Movement movement, int axis, Spec result) {
    if (is_legal(result, shape, mesh)) reached.push_back({movement, axis, std::move(result)});
  };
  uint8_t used = 0;
  for (const uint8_t set : spec) used = static_cast<uint8_t>(used | set);
  for (size_t dim = 0; dim < spec.size(); ++dim) {
    const int last = last_axis(spec[dim]);
    for (int axis = last + 1; axis < static_cast<int>(mesh.axes.size()); ++axis) {
      if (used >> axis & 1) continue;
      Spec sliced = spec;
      sliced[dim] = static_cast<uint8_t>(sliced[dim] | (1u << axis));
      add(Movement::Slice, axis, std::move(sliced));
    }
    if (last < 0) continue;
    Spec gathered = spec;
    gathered[dim] = static_cast<uint8_t>(gathered[dim] & ~(1u << last));
    for (size_t other = 0; other < spec.size(); ++other) {
      if (other == dim || last_axis(spec[other]) > last) continue;
      Spec moved = gathered;
      moved[other] = static_cast<uint8_t>(moved[other] | (1u << last));
      add(Movement::AllToAll, last, std::move(moved));
    }
    add(Movement::AllGather, last, std::move(gathered));
  }
  return reached;
}

struct Arrival {
  double seconds = 0;
  int calls = 0;
  Spec from;
  Call call;
  bool operator<(const Arrival& other) const {
    return std::pair(seconds, calls) < std::pair(other.seconds, other.calls);
  }
};

Conversion path_to(const Spec& from, Spec to, const std::map<Spec, Arrival>& arrivals) {
  Conversion path;
  while (to != from) {
    const Arrival& arrival = arrivals.at(to);
    path.calls.push_back(arrival.call);
    path.seconds += arrival.call.seconds;
    path.bytes += arrival.call.bytes;
    to = arrival.from;
  }
  std::reverse(path.calls.begin(), path.calls.end());
  return path;
}

}  // namespace

const char* name_of(Movement movement) {
  switch (movement) {
    case Movement::AllReduce:
      return "all_reduce";
    case Movement::AllGather:
      return "all_gather";
    case Movement::ReduceScatter:
      return "reduce_scatter";
    case Movement::AllToAll:
      return "all_to_all";
    default:
      return "slice";
  }
}

Call price(Movement movement, int axis, int64_t local_bytes, const Mesh& mesh, const Links& links) {
  Call call{.movement = movement, .axis = axis};
  const int64_t size = mesh.axes[axis].size;
  if (movement == Movement::Slice || size == 1) return call;
  if (movement == Movement::AllGather) {
    call.bytes = (size - 1) * local_bytes;
  } else {
    const int64_t rounds = movement == Movement::AllReduce ? 2 : 1;
    call.bytes = static_cast<int64_t>(static_cast<__int128>(rounds) * (size - 1) * local_bytes / size);
  }
  const int64_t hops = (movement == Movement::AllReduce ? 2 : 1) * (size - 1);
  const Link& link = links.link(axis);
  call.seconds =
      links.start + static_cast<double>(hops) * link.latency + static_cast<double>(call.bytes) / link.bandwidth;
  return call;
}

Conversion convert(const TensorType& type, const Spec& from, const Spec& to, const Mesh& mesh, const Links& links) {
  for (const Spec* spec : {&from, &to}) {
    require(is_legal(*spec, type.shape, mesh), "plan", "a spec must divide the sizes of its tensor: got ",
            print_spec(*spec, mesh), " for ", print_shape(type.shape), " on the mesh ", print_mesh(mesh));
  }
  std::map<Spec, Arrival> arrivals{{from, {}}};
  using Entry = std::pair<std::pair<double, int>, Spec>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  queue.push({{0, 0}, from});
  while (!queue.empty()) {
    const auto [order, spec] = queue.top();
    queue.pop();
    if (spec == to) break;
    if (arrivals.at(spec).seconds < order.first) continue;
    const int64_t local_bytes = type.bytes() / blocks_of(spec, mesh);
    for (const NextSpec& step : specs_after(spec, type.shape, mesh)) {
      Arrival next{.from = spec, .call = price(step.movement, step.axis, local_bytes, mesh, links)};
      next.call.result = step.spec;
      next.seconds = order.first + next.call.seconds;
      next.calls = order.second + 1;
      const auto found = arrivals.find(step.spec);
      if (found != arrivals.end() && !(next < found->second)) continue;
      queue.push({{next.seconds, next.calls}, step.spec});
      arrivals[step.spec] = std::move(next);
    }
  }
  return path_to(from, to, arrivals);
}

const Conversion& Conversions::get(const TensorType& type, const Spec& from, const Spec& to) {
  Key key{type.shape, dtype_bytes(type.dtype), from, to};
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  Conversion path = convert(type, from, to, mesh_, links_);
  return known_.emplace(std::move(key), std::move(path)).first->second;
}

}  // namespace colossal::plan
