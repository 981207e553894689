// record_roles(): records the ranks of a layout and joins those that do the same work.
#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/predict/rank_places.h"
#include "colossal/predict/step.h"

namespace colossal::predict {
namespace {

/// Returns "3", "0-2" or "0, 2, 5-7".
std::string numbers_text(const std::set<int64_t>& numbers) {
  std::string text;
  for (auto first = numbers.begin(); first != numbers.end();) {
    auto last = first;
    while (std::next(last) != numbers.end() && *std::next(last) == *last + 1) ++last;
    text += concat(text.empty() ? "" : ", ", *first);
    if (*last > *first) text += concat("-", *last);
    first = std::next(last);
  }
  return text;
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
  std::string name;
  for (size_t axis = 0; axis < kLayoutAxes; ++axis)
    if (static_cast<int64_t>(places[axis].size()) < sizes[axis])
      name += (name.empty() ? "" : ", ") + axis_text(axis, places[axis]);
  return name.empty() ? "all ranks" : name;
}

/// A recorded step as another rank could have recorded it: with places relative to the rank.
class RelativeStep {
 public:
  RelativeStep(const train::RecordedStep& step, int rank) : step_(step) {
    for (const StepEvents::Group& group : step.groups) {
      const auto found = std::find(group.ranks.begin(), group.ranks.end(), rank);
      own_.push_back(found == group.ranks.end() ? 0 : found - group.ranks.begin());
    }
  }
  bool does_the_same(const RelativeStep& other) const {
    if (step_.memory != other.step_.memory || step_.list.size() != other.step_.list.size()) return false;
    const auto is_alike = [](const StepEvents::Group& a, const StepEvents::Group& b) {
      return a.name == b.name && a.ranks.size() == b.ranks.size();
    };
    if (!std::equal(step_.groups.begin(), step_.groups.end(), other.step_.groups.begin(), other.step_.groups.end(),
                    is_alike))
      return false;
    for (size_t i = 0; i < step_.list.size(); ++i)
      if (event(i) != other.event(i)) return false;
    return true;
  }

 private:
  /// The event with its peer relative to the rank: messages by distance, roots by whether the rank is the root.
  StepEvent event(size_t index) const {
    StepEvent event = step_.list[index];
    if (event.kind != StepEvent::Kind::Call || event.peer < 0) return event;
    const auto group = static_cast<size_t>(event.group);
    const auto size = static_cast<int64_t>(step_.groups[group].ranks.size());
    const bool is_message = event.collective == StepEvent::kSend || event.collective == StepEvent::kReceive;
    const int64_t distance = (event.peer - own_[group] + size) % size;
    event.peer = static_cast<int32_t>(is_message ? distance : std::min<int64_t>(distance, 1));
    return event;
  }

  const train::RecordedStep& step_;
  std::vector<int64_t> own_;  // place of the rank in each group
};

/// Returns the sets of ranks of which one is recorded, in the order of their first ranks.
std::vector<std::vector<int>> recorded_sets(const RankPlace& sizes, int64_t ranks) {
  std::vector<std::vector<int>> sets;
  std::map<std::pair<int64_t, int64_t>, size_t> known;
  for (int rank = 0; rank < static_cast<int>(ranks); ++rank) {
    const RankPlace place = place_of_rank(sizes, rank);
    size_t set = sets.size();
    if (ranks > kRecordedRanks) set = known.try_emplace({place[kPipelineAxis], place[kSequenceAxis]}, set).first->second;
    if (set == sets.size()) sets.emplace_back();
    sets[set].push_back(rank);
  }
  return sets;
}

}  // namespace

RecordedRoles record_roles(const run::Config& config, const models::ModelShape& shape) {
  const RankPlace sizes = axis_sizes(config.parallel);
  RecordedRoles roles;
  for (std::vector<int>& ranks : recorded_sets(sizes, config.parallel.ranks())) {
    const int first = ranks.front();
    train::RecordedStep step = train::record_step(config, shape, first);
    const RelativeStep relative(step, first);
    // Stages with equal work are roles of their own, because they do it at different times.
    const auto same = std::find_if(roles.begin(), roles.end(), [&](const RecordedRole& role) {
      const int known = role.ranks.front();
      return place_of_rank(sizes, known)[kPipelineAxis] == place_of_rank(sizes, first)[kPipelineAxis] &&
             relative.does_the_same(RelativeStep(role.step, known));
    });
    if (same == roles.end())
      roles.push_back({"", std::move(ranks), std::move(step)});
    else
      same->ranks.insert(same->ranks.end(), ranks.begin(), ranks.end());
  }
  for (RecordedRole& role : roles) {
    std::sort(role.ranks.begin(), role.ranks.end());
    role.name = name_of(role.ranks, sizes);
  }
  return roles;
}

}  // namespace colossal::predict
