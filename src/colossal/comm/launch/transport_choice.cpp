#include "colossal/comm/launch/transport_choice.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "colossal/base/error.h"

namespace colossal::comm {
namespace {

/// The reason why not every rank has a GPU of its own that NCCL can use; empty when every rank has.
std::string obstacle_to_nccl(const std::vector<RankFacts>& ranks, const std::map<std::string, int>& ranks_of_host) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (!ranks[r].has_nccl) return concat("the build of rank ", r, " has no NCCL");
    const int sharing = ranks_of_host.at(ranks[r].host);
    if (ranks[r].gpus >= sharing) continue;
    return concat("the host of rank ", r, " has ", ranks[r].gpus, ranks[r].gpus == 1 ? " GPU" : " GPUs", " for its ",
                  sharing, sharing == 1 ? " rank" : " ranks");
  }
  return "";
}

}  // namespace

std::string RankFacts::text() const { return concat(backend, " ", gpus, " ", has_nccl, " ", host); }

RankFacts RankFacts::read(const std::string& text, int rank) {
  RankFacts facts;
  std::istringstream stream(text);
  stream >> facts.backend >> facts.gpus >> facts.has_nccl;
  std::getline(stream >> std::ws, facts.host);
  require(!stream.fail() && facts.gpus >= 0, "launch", "rank ", rank, " says \"", text,
          "\" of itself, which this build does not understand; do all ranks run the same build?");
  return facts;
}

TransportChoice choose_transport(const std::vector<RankFacts>& ranks) {
  std::map<std::string, int> ranks_of_host;
  bool any_gpu = false;
  for (size_t r = 0; r < ranks.size(); ++r) {
    require(ranks[r].backend == ranks[0].backend, "launch",
            "all ranks must be asked for the same backend: rank 0 for \"", ranks[0].backend, "\", rank ", r, " for \"",
            ranks[r].backend, "\"; start all with the same config");
    ++ranks_of_host[ranks[r].host];
    any_gpu = any_gpu || ranks[r].gpus > 0;
  }
  const size_t hosts = ranks_of_host.size();
  const std::string& asked = ranks[0].backend;
  require(asked != "shm" || hosts == 1, "launch", "backend = \"shm\" needs all ranks on one host: they are on ", hosts,
          "; use backend = \"auto\", which picks for each group");
  if (asked != "auto") return {asked, ""};
  const std::string obstacle = obstacle_to_nccl(ranks, ranks_of_host);
  if (obstacle.empty()) return {"nccl", ""};
  const std::string backend = hosts == 1 ? "shm" : "gloo";
  if (!any_gpu) return {backend, ""};
  return {backend, concat("tensors of GPUs travel through host memory, by ", backend, " and not nccl: ", obstacle)};
}

}  // namespace colossal::comm
