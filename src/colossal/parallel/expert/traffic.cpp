#include "colossal/parallel/expert/traffic.h"

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

}  // namespace colossal::parallel
