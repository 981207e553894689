#include "colossal/auto_chunk/candidates.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <string>

#include "colossal/plan/operators.h"

namespace colossal::auto_chunk {
namespace {

constexpr double kBytesASecond = 1e10, kSecondsAnOperator = 5e-6;

/// Steps of a schedule between two ends, of which some are cut.
class Window {
 public:
  Window(const ChunkGraph& graph, const Schedule& schedule, int first, int last) : graph_(graph) {
    for (int i = first; i <= last; ++i) nodes_.push_back(schedule.steps[i].node);
    inside_ = {nodes_.begin(), nodes_.end()};
  }

  /// Cuts the seed along a dimension of its result, all that depends on it, and what they read as blocks. Returns
  /// false if an operator needs all of a result that depends on the seed.
  bool cut(int seed, int dim) {
    if (!set(seed, dim)) return false;
    for (const int node : nodes_) {  // in order, so what a node reads is decided
      if (cut_.count(node) > 0) continue;
      int own = -1;
      for (size_t k = 0; k < graph_.operands(node); ++k) {
        const auto found = cut_.find(graph_.operand(node, k));
        if (found == cut_.end()) continue;
        const int index = graph_.dims[node].operands[k][found->second];
        const int of_output = index < 0 ? -1 : place_of(graph_.dims[node].output, index);
        if (of_output < 0 || (own >= 0 && own != of_output)) return false;
        own = of_output;
      }
      if (own >= 0 && !set(node, own)) return false;
    }
    for (const int node : nodes_) after_.insert(cut_.count(node) > 0 ? node : -1);
    for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node)
      if (cut_.count(*node) > 0 && !cut_operands(*node)) return false;
    return true;
  }

  /// Returns the nodes that are cut and that operators of the window which are not cut need, with what they need.
  std::set<int> needed_whole() const {
    std::set<int> needed;
    for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) {
      if (cut_.count(*node) > 0 && needed.count(*node) == 0) continue;
      for (size_t k = 0; k < graph_.operands(*node); ++k)
        if (cut_.count(graph_.operand(*node, k)) > 0) needed.insert(graph_.operand(*node, k));
    }
    return needed;
  }

  Loop loop(const std::set<int>& without, const std::set<int>& repeated, int64_t extent) const {
    Loop made{.repeated = repeated, .extent = extent};
    for (const int node : nodes_)
      if (cut_.count(node) > 0 && without.count(node) == 0) made.nodes.push_back(node), made.cut[node] = cut_.at(node);
    return made;
  }

 private:
  static int place_of(const std::vector<int>& dims, int index) {
    const auto found = std::find(dims.begin(), dims.end(), index);
    return found == dims.end() ? -1 : static_cast<int>(found - dims.begin());
  }
  bool set(int node, int dim) {
    if (graph_.dims[node].output[dim] < 0) return false;
    return cut_.emplace(node, dim).first->second == dim;
  }
  /// Cuts what a cut node reads as blocks, where that can be cut.
  bool cut_operands(int node) {
    for (size_t k = 0; k < graph_.operands(node); ++k) {
      const int source = graph_.operand(node, k), dim = graph_.cut_of_operand(node, k, cut_.at(node));
      if (source < 0 || inside_.count(source) == 0) continue;
      const auto found = cut_.find(source);
      if (found != cut_.end() && found->second != dim) {
        if (after_.count(source) > 0) return false;  // it depends on the seed, and is read whole
        cut_.erase(found);                           // two readers, two dimensions: it is made before the loop
        refused_.insert(source);
      } else if (dim >= 0 && refused_.count(source) == 0) {
        set(source, dim);
      } else if (dim < 0 && found == cut_.end()) {
        refused_.insert(source);
      }
    }
    return true;
  }

  const ChunkGraph& graph_;
  std::vector<int> nodes_;
  std::set<int> inside_, after_, refused_;
  std::map<int, int> cut_;
};

/// Returns the ends to which a loop may grow: beyond each, no more is alive than nearer to the seed.
std::vector<int> ends_of(const Schedule& schedule, const Timeline& timeline, int seed, int step, int reach) {
  std::vector<int> ends;
  int64_t least = std::numeric_limits<int64_t>::max();
  size_t level = 0;  // of ends, the first one with `least`
  const int count = static_cast<int>(schedule.steps.size());
  for (int i = seed, grown = 0; i >= 0 && i < count && grown <= reach; i += step, ++grown) {
    if (schedule.steps[i].loop >= 0) break;
    const int64_t outside = step > 0 ? timeline.left[i] : i == 0 ? 0 : timeline.left[i - 1];
    if (outside > least) continue;
    const size_t count_before = ends.size();
    if (outside == least && level + 1 < count_before) ends.pop_back();  // the nearest and the furthest of equal ones
    if (outside < least) level = count_before;
    least = outside;
    ends.push_back(i);
  }
  return ends;
}

bool is_cheap(const ChunkGraph& graph, int node) {
  static const std::set<std::string> products{"colossal::linear", "colossal::attention", "colossal::biased_attention",
                                              "colossal::triangle_product", "colossal::outer_product_mean"};
  if (products.count(graph.node(node).op) > 0) return false;
  if (graph.traced.operators[node].whole) return true;
  return plan::index_operator(graph.traced.graph, node).work != plan::Work::Product;
}

class Search {
 public:
  Search(const ChunkGraph& graph, const Schedule& schedule, const Timeline& timeline)
      : graph_(graph), schedule_(schedule), timeline_(timeline) {}

  std::vector<Candidate> run(int seed, int reach) {
    const int node = schedule_.steps[seed].node;
    const std::vector<int64_t>& shape = graph_.node(node).output.shape;
    const std::vector<int> firsts = ends_of(schedule_, timeline_, seed, -1, reach),
                           lasts = ends_of(schedule_, timeline_, seed, 1, reach);
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      if (graph_.dims[node].output[dim] < 0 || shape[dim] < 2) continue;
      for (const int first : firsts)
        for (const int last : lasts) try_window(seed, static_cast<int>(dim), first, last, shape[dim]);
    }
    return std::move(found_);
  }

 private:
  void try_window(int seed, int dim, int first, int last, int64_t extent) {
    Window window(graph_, schedule_, first, last);
    if (!window.cut(schedule_.steps[seed].node, dim)) return;
    const std::set<int> needed = window.needed_whole();
    const bool cheap = std::all_of(needed.begin(), needed.end(), [&](int node) { return is_cheap(graph_, node); });
    try_loop(window.loop(needed, {}, extent), first, last);
    if (!needed.empty() && cheap) try_loop(window.loop({}, needed, extent), first, last);
  }

  void try_loop(Loop loop, int first, int last) {
    if (!tried_.insert({loop.cut, loop.repeated}).second) return;  // a wider window with nothing more to cut
    const auto peak = std::max_element(timeline_.live.begin() + first, timeline_.live.begin() + last + 1);
    std::vector<int64_t> sizes = block_sizes(loop.extent);
    for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {  // the smallest block says whether any helps
      loop.size = *size;
      const std::optional<Candidate> made = measured(loop, first, last);
      if (!made || made->peak >= *peak) return;
      found_.push_back(*made);
    }
  }

  std::optional<Candidate> measured(const Loop& loop, int first, int last) const {
    if (loop.nodes.empty()) return std::nullopt;
    Schedule changed = schedule_;
    cut_out(changed, loop);
    const Timeline timeline = timeline_of(graph_, changed);
    Candidate made{.loop = loop, .first = first, .last = last};
    const auto more = static_cast<int>(changed.steps.size()) - static_cast<int>(schedule_.steps.size());
    for (int i = first; i <= last + more; ++i) {
      made.peak = std::max(made.peak, timeline.live[i]);
      if (changed.steps[i].loop + 1 == static_cast<int>(changed.loops.size())) made.inside = timeline.live[i];
    }
    made.around = made.peak;
    if (first > 0) made.around = std::max(made.around, timeline_.live[first - 1]);
    if (last + 1 < static_cast<int>(timeline_.live.size()))
      made.around = std::max(made.around, timeline_.live[last + 1]);
    made.seconds = added_seconds(graph_, loop, timeline.loops.back());
    return made;
  }

  const ChunkGraph& graph_;
  const Schedule& schedule_;
  const Timeline& timeline_;
  std::set<std::pair<std::map<int, int>, std::set<int>>> tried_;
  std::vector<Candidate> found_;
};

}  // namespace

std::vector<int64_t> block_sizes(int64_t extent) {
  std::vector<int64_t> sizes;
  for (int64_t blocks = 2; blocks < 2 * extent; blocks *= 2) {
    const int64_t size = (extent + blocks - 1) / blocks;
    if (sizes.empty() || sizes.back() != size) sizes.push_back(size);
  }
  return sizes;
}

double added_seconds(const ChunkGraph& graph, const Loop& loop, const BlockTimeline& inside) {
  const auto more = static_cast<double>((loop.extent + loop.size - 1) / loop.size - 1);
  double bytes = 0, operators = static_cast<double>(loop.nodes.size() + inside.results.size());
  for (const int node : loop.nodes) {
    const std::vector<plan::Source>& operands = graph.traced.graph.operands[node];
    if (graph.traced.operators[node].shares >= 0) continue;
    for (size_t k = 0; k < operands.size(); ++k)
      if (graph.cut_of_operand(node, k, loop.cut.at(node)) < 0)
        bytes += more * static_cast<double>(graph.traced.graph.type_of(operands[k]).bytes());
  }
  for (const int node : inside.results) bytes += 2 * static_cast<double>(graph.bytes[node]);
  for (const int node : loop.repeated) bytes += 3 * static_cast<double>(graph.bytes[node]);
  return bytes / kBytesASecond + more * operators * kSecondsAnOperator;
}

std::vector<Candidate> candidates_at(const ChunkGraph& graph, const Schedule& schedule, const Timeline& timeline,
                                     int seed, int reach) {
  return Search(graph, schedule, timeline).run(seed, reach);
}

}  // namespace colossal::auto_chunk
