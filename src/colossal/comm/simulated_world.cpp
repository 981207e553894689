#include "colossal/comm/simulated_world.h"

#include "colossal/base/error.h"
#include "colossal/comm/backends/idle_groups.h"
#include "colossal/comm/rank_world.h"

namespace colossal::comm {

std::unique_ptr<World> make_simulated_world(int rank, int size) {
  require(rank >= 0 && rank < size, "comm", "rank must be in [0, ", size, "): got ", rank);
  const RankWorld::Options options{rank, size, rank, size, "idle"};
  const Connect connect = [](const Membership& member) {
    return std::make_shared<IdleGroup>(member.name, member.rank, member.size());
  };
  return std::make_unique<RankWorld>(options, connect, nullptr);
}

}  // namespace colossal::comm
