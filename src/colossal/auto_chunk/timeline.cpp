#include "colossal/auto_chunk/timeline.h"

#include <algorithm>
#include <set>

namespace colossal::auto_chunk {
namespace {

/// Memory of a loop's whole tensors, as seen by one block.
constexpr int kOutside = -1;

/// Tensors and the memory that they have, which views share. All reads are noted before tensors are added.
class Memory {
 public:
  explicit Memory(size_t nodes) : root_(nodes, kOutside), last_(nodes, -1), last_of_root_(nodes, -1) {}
  /// Notes that `node` is read at `step`.
  void read(int node, int step) { last_[node] = std::max(last_[node], step); }
  void add(int node, int root) {
    root_[node] = root;
    if (root != kOutside) last_of_root_[root] = std::max(last_of_root_[root], last_[node]);
  }
  int root(int node) const { return root_[node]; }
  int last(int node) const { return last_[node]; }
  /// Returns the last step that reads the memory: later views are read steps of what they are views of.
  int last_of_root(int root) const { return last_of_root_[root]; }

 private:
  std::vector<int> root_, last_, last_of_root_;
};

/// Whether the result of `node` may take the memory of its first operand, which is `source`.
bool takes_memory(const ChunkGraph& graph, const Memory& memory, int node, int step) {
  if (!graph.writes_over[node]) return false;
  const int source = graph.operand(node, 0), root = source < 0 ? kOutside : memory.root(source);
  if (root == kOutside || graph.is_fixed[root] || graph.node(source).output != graph.node(node).output ||
      graph.bytes[source] != graph.bytes[root] || memory.last_of_root(root) > step)
    return false;
  for (size_t k = 1; k < graph.operands(node); ++k) {
    const int other = graph.operand(node, k);
    if (other >= 0 && other != source && memory.root(other) == root) return false;
  }
  return true;
}

/// Returns the operand whose memory a node shares, or -1.
int shared_operand(const ChunkGraph& graph, int node) {
  const int shares = graph.traced.operators[node].shares;
  return shares < 0 ? -1 : graph.operand(node, static_cast<size_t>(shares));
}

class LoopSimulation {
 public:
  LoopSimulation(const ChunkGraph& graph, const Loop& loop, BlockTimeline& made)
      : graph_(graph), loop_(loop), made_(made), memory_(graph.bytes.size()) {}

  void run() {
    const int count = static_cast<int>(loop_.nodes.size());
    for (int i = 0; i < count; ++i)
      for (size_t k = 0; k < graph_.operands(loop_.nodes[i]); ++k) {
        const int source = graph_.operand(loop_.nodes[i], k);
        if (loop_.cut.count(source) > 0) memory_.read(source, i);
      }
    for (const int node : made_.results) memory_.read(node, count);  // copied when the block is done
    std::map<int, int64_t> alive;
    int64_t sum = 0;
    for (int i = 0; i < count; ++i) {
      const int node = loop_.nodes[i];
      made_.overwrites.push_back(add(node, i));
      const int root = memory_.root(node);
      if (root == node) alive[root] = bytes(node), sum += bytes(node);
      const int64_t beside =
          graph_.beside(node, loop_.cut.at(node), std::min(loop_.size, loop_.extent), dense_operands(node));
      made_.peak = std::max(made_.peak, sum + beside);
      made_.freed.emplace_back();
      for (int j = 0; j <= i; ++j)
        if (std::max(memory_.last(loop_.nodes[j]), j) == i) made_.freed.back().push_back(loop_.nodes[j]);
      for (auto it = alive.begin(); it != alive.end();) {
        const bool ends = memory_.last_of_root(it->first) <= i;
        if (ends) sum -= it->second;
        it = ends ? alive.erase(it) : std::next(it);
      }
    }
  }

 private:
  /// Returns a bit for each operand whose block has memory of its own.
  uint64_t dense_operands(int node) const {
    uint64_t dense = 0;
    for (size_t k = 0; k < std::min<size_t>(graph_.operands(node), 64); ++k) {
      const int source = graph_.operand(node, k);
      if (loop_.cut.count(source) > 0 && memory_.root(source) != kOutside) dense |= uint64_t{1} << k;
    }
    return dense;
  }
  int64_t bytes(int node) const {
    return graph_.bytes[node] / std::max<int64_t>(loop_.extent, 1) * std::min(loop_.size, loop_.extent);
  }
  /// Adds the node's block, and returns whether it takes the memory of operand 0.
  bool add(int node, int step) {
    const int shared = shared_operand(graph_, node);
    if (graph_.traced.operators[node].shares >= 0) {
      memory_.add(node, loop_.cut.count(shared) > 0 ? memory_.root(shared) : kOutside);
      return false;
    }
    const bool over = takes_memory(graph_, memory_, node, step);
    memory_.add(node, over ? memory_.root(graph_.operand(node, 0)) : node);
    return over;
  }

  const ChunkGraph& graph_;
  const Loop& loop_;
  BlockTimeline& made_;
  Memory memory_;
};

class Simulation {
 public:
  Simulation(const ChunkGraph& graph, const Schedule& schedule)
      : graph_(graph), schedule_(schedule), memory_(graph.bytes.size()) {}

  Timeline run() {
    const int count = static_cast<int>(schedule_.steps.size());
    made_.loops.resize(schedule_.loops.size());
    for (int i = 0; i < count; ++i) {
      reads_.push_back(read_by(graph_, schedule_, schedule_.steps[i]));
      for (const int node : reads_.back()) memory_.read(node, i);
    }
    for (int node = 0; node < static_cast<int>(graph_.bytes.size()); ++node) {
      const bool stays = graph_.is_output[node] || (graph_.traced.operators[node].input >= 0 && graph_.is_fixed[node]);
      if (stays) memory_.read(node, count);
    }
    for (int i = 0; i < count; ++i) {
      const Step& step = schedule_.steps[i];
      int64_t inside = 0;
      made_.overwrites.push_back(step.node >= 0 && add_node(step.node, i));
      inside = step.loop >= 0 ? add_loop(step.loop, i) : graph_.beside(step.node);
      made_.live.push_back(sum_ + inside);
      made_.peak = std::max(made_.peak, made_.live.back());
      release(i);
      made_.left.push_back(sum_);
    }
    return std::move(made_);
  }

 private:
  void hold(int node) {
    const trace::TracedOperator& run = graph_.traced.operators[node];
    const bool is_constant = run.input < 0 && !run.handle && !run.whole;
    alive_[node] = is_constant ? 0 : graph_.bytes[node];
    sum_ += alive_[node];
  }

  bool add_node(int node, int step) {
    values_.insert(node);
    const int shared = shared_operand(graph_, node);
    if (graph_.traced.operators[node].shares >= 0) {
      memory_.add(node, shared >= 0 ? memory_.root(shared) : kOutside);  // a view of a parameter
      return false;
    }
    const bool over = takes_memory(graph_, memory_, node, step);
    memory_.add(node, over ? memory_.root(graph_.operand(node, 0)) : node);
    if (!over) hold(node);
    return over;
  }

  int64_t add_loop(int index, int step) {
    BlockTimeline& made = made_.loops[index];
    const Loop& loop = schedule_.loops[index];
    made.results = results_of(graph_, schedule_, index);
    std::set<int> taken;
    for (const int node : made.results) {
      const int over = overwritten(loop, node, step, taken);
      values_.insert(node);
      if (over >= 0) {
        taken.insert(memory_.root(over));
        made.over[node] = over;
        memory_.add(node, memory_.root(over));
      } else {
        memory_.add(node, node);
        hold(node);
      }
    }
    LoopSimulation(graph_, loop, made).run();
    return made.peak;
  }

  /// Returns a whole tensor whose memory a result of the loop may take block by block: nothing reads it later, and the
  /// loop reads of it the block that it then writes. -1 = none.
  int overwritten(const Loop& loop, int node, int step, const std::set<int>& taken) const {
    for (const int source : reads_[step]) {
      const int root = memory_.root(source);
      if (root == kOutside || graph_.is_fixed[root] || taken.count(root) > 0 || memory_.last_of_root(root) > step ||
          graph_.bytes[source] != graph_.bytes[root] || graph_.node(source).output != graph_.node(node).output)
        continue;
      const int dim = loop.cut.at(node);
      bool fits = true;
      for (const int other : reads_[step]) fits = fits && (other == source || memory_.root(other) != root);
      for (const int reader : loop.nodes)
        for (size_t k = 0; k < graph_.operands(reader); ++k)
          if (graph_.operand(reader, k) == source)
            fits = fits && graph_.cut_of_operand(reader, k, loop.cut.at(reader)) == dim;
      if (fits) return source;
    }
    return -1;
  }

  void release(int step) {
    made_.freed.emplace_back();
    for (auto it = values_.begin(); it != values_.end();) {
      const bool ends = memory_.last(*it) <= step;
      if (ends) made_.freed.back().push_back(*it);
      it = ends ? values_.erase(it) : std::next(it);
    }
    for (auto it = alive_.begin(); it != alive_.end();) {
      const bool ends = memory_.last_of_root(it->first) <= step;
      if (ends) sum_ -= it->second;
      it = ends ? alive_.erase(it) : std::next(it);
    }
  }

  const ChunkGraph& graph_;
  const Schedule& schedule_;
  Memory memory_;
  std::vector<std::vector<int>> reads_;
  std::set<int> values_;          ///< nodes whose results exist
  std::map<int, int64_t> alive_;  ///< memory by its first node
  int64_t sum_ = 0;
  Timeline made_;
};

}  // namespace

Timeline timeline_of(const ChunkGraph& graph, const Schedule& schedule) { return Simulation(graph, schedule).run(); }

}  // namespace colossal::auto_chunk
