#include "colossal/predict/roles.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/ops/device/operators.h"
#include "colossal/predict/rank_load.h"
#include "colossal/predict/rank_places.h"
#include "colossal/train/recompute_choice.h"

namespace colossal::predict {
namespace {

/// Returns "3", "0-2" or "0, 2, 5-7".
std::string numbers_text(const std::set<int64_t>& numbers) {
  std::vector<std::string> runs;
  for (auto first = numbers.begin(); first != numbers.end();) {
    auto last = first;
    while (std::next(last) != numbers.end() && *std::next(last) == *last + 1) ++last;
    runs.push_back(*last > *first ? concat(*first, "-", *last) : concat(*first));
    first = std::next(last);
  }
  return join(runs);
}

std::string axis_text(size_t axis, const std::set<int64_t>& places) {
  const bool is_one = places.size() == 1;
  if (axis == kPipelineAxis) return (is_one ? "stage " : "stages ") + numbers_text(places);
  return concat(is_one ? "rank " : "ranks ", numbers_text(places), " of ", kAxisNames[axis]);
}

/// Names ranks by their places along the axes, as long as they are all ranks with such places.
std::string name_of(const std::vector<int>& ranks, const RankPlace& sizes) {
  std::array<std::set<int64_t>, kLayoutAxes> places;
  for (const int rank : ranks) {
    const RankPlace place = place_of_rank(sizes, rank);
    for (size_t axis = 0; axis < kLayoutAxes; ++axis) places[axis].insert(place[axis]);
  }
  size_t count = 1;
  for (const auto& along : places) count *= along.size();
  if (count != ranks.size())
    return concat(ranks.size() == 1 ? "rank " : "ranks ", numbers_text({ranks.begin(), ranks.end()}));
  std::vector<std::string> names;
  for (size_t axis = 0; axis < kLayoutAxes; ++axis)
    if (static_cast<int64_t>(places[axis].size()) < sizes[axis]) names.push_back(axis_text(axis, places[axis]));
  return names.empty() ? "all ranks" : join(names);
}

bool is_message(const StepEvent& event) {
  return event.collective == StepEvent::kSend || event.collective == StepEvent::kReceive;
}

/// The most bytes of a kind by which ranks of one role differ.
constexpr int64_t kAlikeBytes = 4096;

/// A recorded step as another rank could have recorded it: with places relative to the rank.
class RelativeStep {
 public:
  RelativeStep(const train::RecordedStep& step, int rank) : step_(step) {
    for (const StepEvents::Group& group : step.groups) {
      const auto found = std::find(group.ranks.begin(), group.ranks.end(), rank);
      own_.push_back(found == group.ranks.end() ? 0 : found - group.ranks.begin());
    }
    for (size_t i = 0; i < step.list.size(); ++i)
      if (!belongs_to_one_rank(step.list[i])) shared_.push_back(i);
  }
  bool does_the_same(const RelativeStep& other) const {
    if (!has_alike_memory(other) || shared_.size() != other.shared_.size()) return false;
    const auto is_alike = [](const StepEvents::Group& a, const StepEvents::Group& b) {
      return a.name == b.name && a.ranks.size() == b.ranks.size();
    };
    if (!std::equal(step_.groups.begin(), step_.groups.end(), other.step_.groups.begin(), other.step_.groups.end(),
                    is_alike))
      return false;
    for (size_t i = 0; i < shared_.size(); ++i)
      if (event(shared_[i]) != other.event(other.shared_[i])) return false;
    return true;
  }

 private:
  /// The norm of the gradients counts a tensor that several ranks have once, on the first of them. This is little work,
  /// so it does not make a role. It has the phase `other`, which follows `optimizer`.
  static bool belongs_to_one_rank(const StepEvent& event) {
    return event.kind == StepEvent::Kind::Elementwise && event.phase >= StepEvent::kOptimizer;
  }
  bool has_alike_memory(const RelativeStep& other) const {
    const StepMemory &a = step_.memory, &b = other.step_.memory;
    const auto is_near = [](int64_t x, int64_t y) { return std::abs(x - y) <= kAlikeBytes; };
    using Kinds = StepMemory::Kinds;
    for (const auto kind :
         {&Kinds::parameters, &Kinds::gradients, &Kinds::states, &Kinds::activations, &Kinds::buffers, &Kinds::host})
      if (!is_near(a.kinds.*kind, b.kinds.*kind)) return false;
    return is_near(a.peak_bytes, b.peak_bytes);
  }
  /// The event with its peer relative to the rank: messages by distance, roots by whether the rank is the root.
  StepEvent event(size_t index) const {
    StepEvent event = step_.list[index];
    if (event.kind != StepEvent::Kind::Call || event.peer < 0) return event;
    const auto group = static_cast<size_t>(event.group);
    const auto size = static_cast<int64_t>(step_.groups[group].ranks.size());
    const int64_t distance = (event.peer - own_[group] + size) % size;
    event.peer = static_cast<int32_t>(is_message(event) ? distance : std::min<int64_t>(distance, 1));
    return event;
  }

  const train::RecordedStep& step_;
  std::vector<int64_t> own_;    // place of the rank in each group
  std::vector<size_t> shared_;  // events that all ranks of a role have
};

/// Ranks of which the first is recorded, and whom it communicates with.
struct RecordedSet {
  std::vector<int> ranks;
  std::vector<StepEvents::Group> groups;
  std::set<std::array<int64_t, 3>> messages;  // group, collective, rank of the peer
};

RecordedSet recorded_set(std::vector<int> ranks, const StepEvents& events) {
  RecordedSet set{std::move(ranks), events.groups, {}};
  for (const StepEvent& event : events.list)
    if (event.kind == StepEvent::Kind::Call && is_message(event))
      set.messages.insert({event.group, event.collective,
                           events.groups[static_cast<size_t>(event.group)].ranks[static_cast<size_t>(event.peer)]});
  return set;
}

/// Splits roles until all sets of a role communicate with the same roles. Otherwise the calls of a step would not
/// match, because the first rank of a role stands for all others.
void split_roles(const std::vector<RecordedSet>& sets, std::vector<size_t>& role_of_set) {
  size_t roles = 0;
  for (const size_t role : role_of_set) roles = std::max(roles, role + 1);
  for (size_t before = 0; before != roles;) {
    std::map<int, size_t> role_of_rank;
    for (size_t i = 0; i < sets.size(); ++i)
      for (const int rank : sets[i].ranks) role_of_rank[rank] = role_of_set[i];
    using Signature = std::tuple<size_t, std::vector<std::set<size_t>>, std::set<std::array<int64_t, 3>>>;
    std::map<Signature, size_t> known;
    std::vector<size_t> split;
    for (size_t i = 0; i < sets.size(); ++i) {
      Signature signature{role_of_set[i], {}, {}};
      for (const StepEvents::Group& group : sets[i].groups) {
        auto& members = std::get<1>(signature).emplace_back();
        for (const int rank : group.ranks) members.insert(role_of_rank.at(rank));
      }
      for (const auto& [group, collective, peer] : sets[i].messages)
        std::get<2>(signature).insert(
            {group, collective, static_cast<int64_t>(role_of_rank.at(static_cast<int>(peer)))});
      split.push_back(known.try_emplace(std::move(signature), known.size()).first->second);
    }
    role_of_set = std::move(split);
    before = std::exchange(roles, known.size());
  }
}

/// Returns the sets of ranks of which one is recorded, in the order of their first ranks.
std::vector<std::vector<int>> recorded_sets(const RankPlace& sizes, int64_t ranks) {
  std::vector<std::vector<int>> sets;
  std::map<std::pair<int64_t, int64_t>, size_t> known;
  for (int rank = 0; rank < static_cast<int>(ranks); ++rank) {
    const RankPlace place = place_of_rank(sizes, rank);
    size_t set = sets.size();
    if (ranks > kRecordedRanks)
      set = known.try_emplace({place[kPipelineAxis], place[kSequenceAxis]}, set).first->second;
    if (set == sets.size()) sets.emplace_back();
    sets[set].push_back(rank);
  }
  return sets;
}

/// Makes steps that are recorded on this thread use the operators that the devices of `cluster` have, during its
/// lifetime. Accelerators are taken to have all of them. They multiply 8-bit values if their profile names a higher
/// rate for them (device.fp8) than for bf16 and fp16.
class DevicesMeant {
 public:
  explicit DevicesMeant(const plan::Cluster& cluster) {
    const plan::DeviceProfile& device = cluster.profile().device;
    if (device.fp8 <= std::max(device.bf16, device.fp16)) without_products_.emplace(ops::DeviceOperator::ScaledProduct);
  }

 private:
  std::optional<ops::MeantWithoutOperator> without_products_;
};

}  // namespace

RecordedRoles record_roles(const train::ConfiguredRun& run, const RecordingProgress& progress) {
  const RankPlace sizes = axis_sizes(run.config.parallel);
  std::vector<RecordedSet> sets;
  std::vector<size_t> role_of_set;
  RecordedRoles found;  // the first set of each role, with its step
  std::vector<std::vector<int>> all = recorded_sets(sizes, run.config.parallel.ranks());
  for (std::vector<int>& ranks : all) {
    const int first = ranks.front();
    if (progress) progress(static_cast<int64_t>(sets.size()), static_cast<int64_t>(all.size()));
    train::RecordedStep step = train::record_step(run, first);
    const RelativeStep relative(step, first);
    // Stages with equal work are roles of their own, because they do it at different times.
    const auto same = std::find_if(found.begin(), found.end(), [&](const RecordedRole& role) {
      const int known = role.ranks.front();
      return place_of_rank(sizes, known)[kPipelineAxis] == place_of_rank(sizes, first)[kPipelineAxis] &&
             relative.does_the_same(RelativeStep(role.step, known));
    });
    role_of_set.push_back(static_cast<size_t>(same - found.begin()));
    const bool is_new = same == found.end();
    sets.push_back(recorded_set(std::move(ranks), step));
    if (is_new) found.push_back({"", {first}, std::move(step)});
  }
  split_roles(sets, role_of_set);
  RecordedRoles roles;
  for (size_t i = 0; i < sets.size(); ++i) {
    if (role_of_set[i] == roles.size()) {  // roles are numbered in the order of their first sets
      const int first = sets[i].ranks.front();
      const auto kept = std::find_if(found.begin(), found.end(),
                                     [&](const RecordedRole& role) { return role.ranks.front() == first; });
      roles.push_back({"", {}, kept == found.end() ? train::record_step(run, first) : std::move(kept->step)});
    }
    std::vector<int>& ranks = roles[role_of_set[i]].ranks;
    ranks.insert(ranks.end(), sets[i].ranks.begin(), sets[i].ranks.end());
  }
  for (RecordedRole& role : roles) {
    std::sort(role.ranks.begin(), role.ranks.end());
    role.name = name_of(role.ranks, sizes);
    role.at_worst = worst_memory(run, role.ranks.front());
  }
  return roles;
}

RecordedRoles record_roles(const train::ConfiguredRun& run, const plan::Cluster& cluster,
                           const RecordingProgress& progress) {
  const DevicesMeant devices(cluster);
  return record_roles(on_devices(run, cluster), progress);
}

RecordedRoles record_stages(const train::ConfiguredRun& run) {
  const distributed::ParallelConfig& parallel = run.config.parallel;
  const int64_t stages = parallel.pipeline.size, ranks = parallel.ranks() / stages;
  RecordedRoles roles;
  for (int64_t stage = 0; stage < stages; ++stage) {  // "pipeline" is the outermost axis, so its ranks are neighbours
    RecordedRole role{.name = stages == 1 ? "all ranks" : concat("stage ", stage),
                      .ranks = std::vector<int>(static_cast<size_t>(ranks))};
    std::iota(role.ranks.begin(), role.ranks.end(), static_cast<int>(stage * ranks));
    role.step = train::record_step(run, role.ranks.front());
    role.at_worst = worst_memory(run, role.ranks.front());
    roles.push_back(std::move(role));
  }
  return roles;
}

RecordedRoles record_stages(const train::ConfiguredRun& run, const plan::Cluster& cluster) {
  const DevicesMeant devices(cluster);
  return record_stages(on_devices(run, cluster));
}

double recording_work(int64_t stages, int64_t micro_batches, bool recomputes, int64_t blocks) {
  constexpr double kBuilding = 20;  // a rank without blocks
  return kBuilding * static_cast<double>(stages) + (recomputes ? 1.3 : 1) * static_cast<double>(blocks * micro_batches);
}

double recording_work(const run::Config& config, int64_t blocks) {
  return recording_work(config.parallel.pipeline.size, config.micro_batches(), config.memory.recompute != "none",
                        blocks);
}

train::ConfiguredRun on_devices(train::ConfiguredRun run, const plan::Cluster& cluster) {
  run::MemoryConfig& memory = run.config.memory;
  if (memory.recompute != "auto" || memory.activations > 0 || cluster.profile().device.shared) return run;
  const int64_t bytes = memory.device > 0 ? std::min(memory.device, cluster.device_bytes()) : cluster.device_bytes();
  const distributed::ParallelConfig& parallel = run.config.parallel;
  const int64_t stages = parallel.pipeline.size, ranks = parallel.ranks() / stages;
  int64_t least = std::numeric_limits<int64_t>::max();  // as the ranks of a run agree
  for (int64_t stage = 0; stage < stages; ++stage) {
    const auto first = static_cast<int>(stage * ranks);
    least = std::min(least, train::activation_budget(run, first, bytes));
  }
  memory.activations = std::max<int64_t>(least, 1);
  return run;
}

}  // namespace colossal::predict
