#include "colossal/auto_chunk/planner.h"

#include <algorithm>
#include <set>

#include "colossal/auto_chunk/candidates.h"
#include "colossal/auto_chunk/timeline.h"
#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/plan/choice_solver.h"

namespace colossal::auto_chunk {
namespace {

constexpr int kRounds = 12;
constexpr size_t kSeeds = 12, kChoices = 24;
/// Operators are seeds of regions if so much of the peak is alive at them.
constexpr double kFull = 0.6;
/// Entries of tables that a solve may compute: variables are few and have no pairs.
constexpr double kEntries = 1e6;
/// A loop is near the smallest peak if it needs so much more; levels of peaks are at least so far apart.
constexpr double kNear = 1.03, kLevels = 1.02;

/// Candidates of which one may be taken, and the steps that they have together.
struct Cluster {
  int first = 0, last = 0;
  std::vector<Candidate> choices;
};

/// How the next round's loops are chosen.
using Measure = int64_t Candidate::*;

/// Returns the cheapest candidate among those whose measure is near the smallest.
const Candidate& least_by(const std::vector<Candidate>& all, Measure measure) {
  const auto least = std::min_element(all.begin(), all.end(),
                                      [&](const Candidate& a, const Candidate& b) { return a.*measure < b.*measure; });
  const Candidate* best = &*least;
  for (const Candidate& one : all)
    if (static_cast<double>(one.*measure) <= kNear * static_cast<double>((*least).*measure) &&
        one.seconds < best->seconds)
      best = &one;
  return *best;
}

/// Keeps the candidates that no other beats in both bytes and time, and the one whose loop needs least.
void keep_best(std::vector<Candidate>& all) {
  if (all.empty()) return;
  const Candidate lowest = least_by(all, &Candidate::inside);
  std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    if (a.around != b.around) return a.around < b.around;
    return a.seconds != b.seconds ? a.seconds < b.seconds : a.last - a.first < b.last - b.first;
  });
  std::vector<Candidate> kept;
  for (Candidate& one : all)
    if (kept.empty() || one.seconds < kept.back().seconds) kept.push_back(std::move(one));
  const size_t step = (kept.size() + kChoices - 1) / kChoices;
  all.clear();
  for (size_t i = 0; i < kept.size(); i += step) all.push_back(std::move(kept[i]));
  all.push_back(lowest);
}

/// The list of steps of a round with the loops that it may add, and the sizes that loops of earlier rounds may have.
class Round {
 public:
  Round(const ChunkGraph& graph, Schedule schedule)
      : graph_(graph), schedule_(std::move(schedule)), timeline_(timeline_of(graph_, schedule_)) {
    find_clusters();
    build_problem();
  }

  bool has_choices() const { return !clusters_.empty(); }
  int64_t peak() const { return timeline_.peak; }

  /// Returns peaks that choices can lead to, the smallest first: that of each variable's smallest.
  std::vector<int64_t> levels() const {
    std::set<int64_t> all;
    int64_t least = 0;
    for (const plan::Variable& variable : problem_.variables) {
      std::vector<int64_t> peaks(variable.cost.size(), 0);
      for (const plan::LiveBytes& live : variable.live)
        for (size_t i = 0; i < peaks.size(); ++i) peaks[i] = std::max(peaks[i], live.bytes[i]);
      least = std::max(least, *std::min_element(peaks.begin(), peaks.end()));
      all.insert(peaks.begin(), peaks.end());
    }
    std::vector<int64_t> levels{least};
    for (const int64_t level : all)
      if (level > least && static_cast<double>(level) >= kLevels * static_cast<double>(levels.back()))
        levels.push_back(level);
    return levels;
  }

  /// Returns the cheapest schedule of which at most `limit` bytes are alive.
  Schedule solved(int64_t limit) const {
    const plan::ChoiceSolution solution = plan::solve_choices(problem_, limit, kEntries);
    Schedule made = schedule_;
    if (!solution.is_feasible) return made;
    for (size_t i = 0; i < made.loops.size(); ++i)
      made.loops[i].size = block_sizes(made.loops[i].extent)[solution.choices[clusters_.size() + i]];
    for (size_t i = 0; i < clusters_.size(); ++i)
      if (solution.choices[i] > 0) cut_out(made, clusters_[i].choices[solution.choices[i] - 1].loop);
    return made;
  }

  /// Returns the schedule with the loop of each cluster that has the least of a measure.
  Schedule smallest(Measure measure) const {
    Schedule made = schedule_;
    for (const Cluster& cluster : clusters_) cut_out(made, least_by(cluster.choices, measure).loop);
    return made;
  }

 private:
  void find_clusters() {
    std::vector<int> seeds;
    for (int i = 0; i < static_cast<int>(schedule_.steps.size()); ++i)
      if (schedule_.steps[i].node >= 0 && static_cast<double>(timeline_.live[i]) >= kFull * static_cast<double>(peak()))
        seeds.push_back(i);
    std::stable_sort(seeds.begin(), seeds.end(), [&](int a, int b) { return timeline_.live[a] > timeline_.live[b]; });
    std::vector<Candidate> all;
    size_t tried = 0;
    for (const int seed : seeds) {
      const bool covered =
          std::any_of(all.begin(), all.end(), [&](const Candidate& c) { return c.first <= seed && seed <= c.last; });
      if (covered || tried >= kSeeds) continue;
      std::vector<Candidate> more = candidates_at(graph_, schedule_, timeline_, seed);
      tried += more.empty() ? 0 : 1;
      keep_best(more);
      all.insert(all.end(), more.begin(), more.end());
    }
    std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.first < b.first; });
    for (Candidate& one : all) {
      if (clusters_.empty() || clusters_.back().last < one.first) clusters_.push_back({one.first, one.last, {}});
      clusters_.back().last = std::max(clusters_.back().last, one.last);
      clusters_.back().choices.push_back(std::move(one));
    }
    for (Cluster& cluster : clusters_) keep_best(cluster.choices);
  }

  /// Returns the bytes alive at a step of a cluster: those of a loop's steps are counted at each of them.
  int64_t bytes_at(int step, const Candidate* choice) const {
    const bool changed = choice != nullptr && choice->first <= step && step <= choice->last;
    return changed ? choice->peak : timeline_.live[step];
  }

  void add_cluster(const Cluster& cluster) {
    plan::Variable variable{.cost = {0}};
    for (const Candidate& choice : cluster.choices) variable.cost.push_back(choice.seconds);
    for (int step = cluster.first; step <= cluster.last; ++step) {
      plan::LiveBytes live{{step, step}, {bytes_at(step, nullptr)}};
      for (const Candidate& choice : cluster.choices) live.bytes.push_back(bytes_at(step, &choice));
      variable.live.push_back(std::move(live));
    }
    problem_.variables.push_back(std::move(variable));
  }

  /// Adds the sizes of a loop that an earlier round made.
  void add_sizes(int loop) {
    const auto at = std::find_if(schedule_.steps.begin(), schedule_.steps.end(),
                                 [&](const Step& step) { return step.loop == loop; });
    const int step = static_cast<int>(at - schedule_.steps.begin());
    plan::Variable variable;
    plan::LiveBytes live{{step, step}, {}};
    Schedule other = schedule_;
    for (const int64_t size : block_sizes(schedule_.loops[loop].extent)) {
      other.loops[loop].size = size;
      const Timeline timeline = timeline_of(graph_, other);
      live.bytes.push_back(timeline.live[step]);
      variable.cost.push_back(added_seconds(graph_, other.loops[loop], timeline.loops[loop]));
    }
    variable.live.push_back(std::move(live));
    problem_.variables.push_back(std::move(variable));
  }

  void build_problem() {
    problem_.moments = static_cast<int>(schedule_.steps.size());
    for (const Cluster& cluster : clusters_) add_cluster(cluster);
    for (int loop = 0; loop < static_cast<int>(schedule_.loops.size()); ++loop) add_sizes(loop);
    plan::Variable rest{.cost = {0}};
    for (int step = 0; step < problem_.moments; ++step) {
      const bool is_in_cluster = std::any_of(clusters_.begin(), clusters_.end(), [&](const Cluster& cluster) {
        return cluster.first <= step && step <= cluster.last;
      });
      if (!is_in_cluster && schedule_.steps[step].loop < 0) rest.live.push_back({{step, step}, {timeline_.live[step]}});
    }
    problem_.variables.push_back(std::move(rest));
  }

  const ChunkGraph& graph_;
  Schedule schedule_;
  Timeline timeline_;
  std::vector<Cluster> clusters_;
  plan::ChoiceProblem problem_;
};

PlannedChunks planned(const ChunkGraph& graph, const Schedule& schedule) {
  const Timeline timeline = timeline_of(graph, schedule);
  PlannedChunks made{.peak = timeline.peak};
  for (size_t i = 0; i < schedule.loops.size(); ++i) {
    made.plan.regions.push_back(region_of(graph, schedule.loops[i]));
    made.seconds += added_seconds(graph, schedule.loops[i], timeline.loops[i]);
  }
  return made;
}

}  // namespace

ChunkPlanner::ChunkPlanner(const ChunkGraph& graph) : graph_(graph), plain_(planned(graph, plain_schedule(graph))) {}

const std::vector<PlannedChunks>& ChunkPlanner::plans() const {
  if (!plans_.empty()) return plans_;
  plans_.push_back(plain_);
  for (const Measure measure : {&Candidate::around, &Candidate::inside}) {
    Schedule schedule = plain_schedule(graph_);
    for (int i = 0; i < kRounds; ++i) {
      const Round round(graph_, schedule);
      for (const int64_t level : round.levels()) plans_.push_back(planned(graph_, round.solved(level)));
      if (!round.has_choices()) break;
      schedule = round.smallest(measure);
    }
  }
  std::sort(plans_.begin(), plans_.end(), [](const PlannedChunks& a, const PlannedChunks& b) {
    return a.seconds != b.seconds ? a.seconds < b.seconds : a.peak < b.peak;
  });
  std::vector<PlannedChunks> kept;
  for (PlannedChunks& one : plans_)
    if (kept.empty() || one.peak < kept.back().peak) kept.push_back(std::move(one));
  plans_ = std::move(kept);
  return plans_;
}

PlannedChunks ChunkPlanner::plan(int64_t budget) const {
  if (budget == 0 || budget >= plain_.peak) return plain_;
  for (const PlannedChunks& one : plans())
    if (one.peak <= budget) return one;
  throw Error("auto_chunk", concat("the budget of a pass must be at least ", readable_bytes(smallest_peak()), ": got ",
                                   readable_bytes(budget)));
}

}  // namespace colossal::auto_chunk
