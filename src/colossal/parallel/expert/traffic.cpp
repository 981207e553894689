#include "colossal/parallel/expert/traffic.h"

#include <set>

#include "colossal/base/error.h"

namespace colossal::parallel {

int64_t expert_rank(int64_t expert, int64_t count, int64_t ranks) { return expert / (count / ranks); }

int64_t remote_assignments(const std::vector<int64_t>& chosen, int64_t used, int64_t count, int64_t ranks) {
  const auto assignments = static_cast<int64_t>(chosen.size());
  require(ranks > 0 && count % ranks == 0, "experts", "the experts must be divisible by the ranks: got ", count,
          " experts on ", ranks, " ranks");
  require(used > 0 && assignments % (used * ranks) == 0, "experts", "the tokens must be divisible by the ranks: got ",
          assignments, " assignments of ", used, " experts per token on ", ranks, " ranks");
  int64_t remote = 0;
  for (int64_t i = 0; i < assignments; ++i) {
    const int64_t expert = chosen[i];
    require(expert >= 0 && expert < count, "experts", "an expert must be in [0, ", count, "): got ", expert);
    remote += expert_rank(expert, count, ranks) != i / (assignments / ranks);
  }
  return remote;
}

int64_t hidden_states_sent(int64_t remote, int64_t hidden, bool recomputes_blocks) {
  return (recomputes_blocks ? 6 : 4) * hidden * remote;
}

NodeRows node_rows(const std::vector<int64_t>& chosen, int64_t used, int64_t count, int64_t ranks, int64_t node) {
  remote_assignments(chosen, used, count, ranks);  // checks the sizes
  require(node > 0 && ranks % node == 0, "experts", "the ranks must be divisible by those of a node: got ", ranks,
          " ranks, ", node, " in a node");
  const int64_t of_rank = static_cast<int64_t>(chosen.size()) / ranks;
  NodeRows rows;
  for (size_t token = 0; token < chosen.size(); token += used) {
    const int64_t own = static_cast<int64_t>(token) / of_rank;
    std::set<int64_t> others;
    for (size_t i = token; i < token + used; ++i) {
      const int64_t rank = expert_rank(chosen[i], count, ranks);
      rows.inside += rank % node != own % node;
      if (rank / node == own / node) continue;
      ++rows.to_nodes;
      others.insert(rank / node);
    }
    rows.tokens += static_cast<int64_t>(others.size());
  }
  return rows;
}

int64_t hidden_states_sent(const NodeRows& rows, int64_t hidden, bool recomputes_blocks) {
  const int64_t forward = rows.tokens + rows.to_nodes + 2 * rows.inside;
  const int64_t backward = 2 * (rows.to_nodes + rows.inside);
  return hidden * ((recomputes_blocks ? 2 : 1) * forward + backward);
}

}  // namespace colossal::parallel
