#include "colossal/comm/launch/transport_choice.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "colossal/base/error.h"
#include "colossal/comm/launch/device.h"

namespace colossal::comm {
namespace {

/// Returns the reason why not every rank has a separate GPU that NCCL can use; empty if every rank has.
std::string obstacle_to_nccl(const std::vector<RankFacts>& ranks) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (!ranks[r].has_nccl) return concat("the build of rank ", r, " has no NCCL");
    if (ranks[r].gpus.empty()) return concat("rank ", r, " has no GPU");
  }
  std::map<std::string, int> ranks_of_host;                      // ranks counted so far
  std::map<std::pair<std::string, std::string>, size_t> takers;  // rank that takes a GPU, by host and GPU
  for (size_t r = 0; r < ranks.size(); ++r) {
    const std::vector<std::string>& gpus = ranks[r].gpus;
    const std::string& gpu = ranks[r].gpu_of(ranks_of_host[ranks[r].host]++);
    const auto [other, is_first] = takers.insert({{ranks[r].host, gpu}, r});
    if (!is_first)
      return concat("ranks ", other->second, " and ", r, " share the GPU at ", gpu, " of their host, where rank ", r,
                    " sees ", gpus.size(), gpus.size() == 1 ? " GPU" : " GPUs");
  }
  return "";
}

}  // namespace

const std::string& RankFacts::gpu_of(int local_rank) const {
  return gpus.at(static_cast<size_t>(device_of(local_rank, static_cast<int>(gpus.size()))));
}

std::string RankFacts::text() const {
  std::string text = concat(backend, " ", gpus.size());
  for (const std::string& gpu : gpus) text += " " + gpu;
  return concat(text, " ", has_nccl, " ", host);
}

RankFacts RankFacts::read(const std::string& text, int rank) {
  RankFacts facts;
  std::istringstream stream(text);
  int gpus = -1;
  stream >> facts.backend >> gpus;
  for (std::string gpu; gpus > static_cast<int>(facts.gpus.size()) && stream >> gpu;) facts.gpus.push_back(gpu);
  stream >> facts.has_nccl;
  std::getline(stream >> std::ws, facts.host);
  require(!stream.fail() && gpus >= 0, "launch", "rank ", rank, " sent \"", text,
          "\", which this build cannot read; start all ranks with the same build");
  return facts;
}

TransportChoice choose_transport(const std::vector<RankFacts>& ranks) {
  std::set<std::string> named;
  bool any_gpu = false;
  for (size_t r = 0; r < ranks.size(); ++r) {
    require(ranks[r].backend == ranks[0].backend, "launch", "all ranks must use the same backend: got \"",
            ranks[0].backend, "\" on rank 0, \"", ranks[r].backend, "\" on rank ", r,
            "; start all with the same config");
    named.insert(ranks[r].host);
    any_gpu = any_gpu || !ranks[r].gpus.empty();
  }
  const size_t hosts = named.size();
  const std::string& asked = ranks[0].backend;
  require(asked != "shm" || hosts == 1, "launch", "backend = \"shm\" needs all ranks on one host: they are on ", hosts,
          "; use backend = \"auto\", which chooses a transport per group");
  if (asked != "auto" && asked != "nccl") return {asked, ""};
  const std::string obstacle = obstacle_to_nccl(ranks);
  require(asked != "nccl" || !any_gpu || obstacle.empty(), "launch",
          "backend = \"nccl\" needs one GPU per rank: ", obstacle, "; use backend = \"auto\", or one rank per GPU");
  if (asked == "nccl") return {asked, ""};
  if (obstacle.empty()) return {"nccl", ""};
  const std::string backend = hosts == 1 ? "shm" : "gloo";
  if (!any_gpu) return {backend, ""};
  return {backend, concat("GPU tensors are sent through host memory, by ", backend, " instead of nccl: ", obstacle)};
}

}  // namespace colossal::comm
