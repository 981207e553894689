#include "colossal/comm/launch.h"

#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "colossal/base/error.h"
#include "colossal/comm/backends/gloo.h"
#include "colossal/comm/backends/nccl.h"
#include "colossal/comm/backends/shared_memory.h"
#include "colossal/comm/decorators/host_staging.h"
#include "colossal/comm/host.h"
#include "colossal/comm/meeting.h"
#include "colossal/comm/rank_world.h"

namespace colossal::comm {
namespace {

/// What the ranks told each other, and how this one reaches them.
struct Neighbourhood {
  std::shared_ptr<Store> store;
  std::vector<std::string> hosts;  // identity of every rank's host
  std::string address;
  int local_rank = 0, local_size = 1;
  bool several_hosts = false;
};

void check_backend(const std::string& backend) {
  const bool known = backend == "auto" || backend == "shm" || backend == "gloo" || backend == "nccl";
  require(known, "launch", "backend must be one of auto, shm, gloo, nccl: got \"", backend, "\"");
}

std::shared_ptr<Store> connect_to_store(const Environment& environment, bool server, std::chrono::milliseconds limit) {
  Store::Tcp tcp;
  tcp.host = environment.host;
  tcp.port = environment.port;
  tcp.server = server;
  tcp.limit = limit;
  auto store = Store::tcp(tcp);
  return environment.prefix.empty() ? store : store->with_prefix(environment.prefix);
}

Neighbourhood rendezvous(const LaunchOptions& options, const Environment& environment) {
  Neighbourhood result;
  const bool server = environment.rank == 0 && !environment.hosted_store;
  result.store = connect_to_store(environment, server, options.timeout);
  const Meeting meeting{result.store->with_prefix("ranks"), "the ranks of this run", environment.rank, environment.size,
                        options.timeout};
  result.hosts = gather_texts(meeting, host_identity(environment.host_name));
  // Rank 0 may refuse what it has read and end, and the store with it: not before everybody else has read it too.
  meeting.store->set(concat("read/", environment.rank), "");
  for (int r = 1; server && r < environment.size; ++r) meeting.store->get(concat("read/", r), options.timeout, meeting.what);
  const std::string& own = result.hosts[environment.rank];
  const auto begin = result.hosts.begin();
  result.local_size = static_cast<int>(std::count(begin, result.hosts.end(), own));
  result.local_rank = static_cast<int>(std::count(begin, begin + environment.rank, own));
  if (environment.local_rank >= 0 && environment.local_rank < result.local_size) {
    result.local_rank = environment.local_rank;
  }
  result.several_hosts = result.local_size < environment.size;
  result.address = local_address(environment.host, environment.port, result.several_hosts);
  return result;
}

std::string choose_backend(const LaunchOptions& options, const Neighbourhood& around) {
  if (options.backend != "auto") {
    require(options.backend != "shm" || !around.several_hosts, "launch",
            "backend = \"shm\" needs all ranks on one host: "
            "they are on ",
            std::set<std::string>(around.hosts.begin(), around.hosts.end()).size(),
            "; use backend = \"auto\", which picks for each group");
    return options.backend;
  }
  const bool gpu_each =
      options.device == "cuda" && has_nccl() && at::detail::getCUDAHooks().deviceCount() >= around.local_size;
  if (gpu_each) return "nccl";
  return around.several_hosts ? "gloo" : "shm";
}

std::string segment_name(const Environment& environment, const Neighbourhood& around, const Membership& member) {
  // The store's port tells concurrent jobs of one name apart.
  const uint64_t hash = stable_hash(concat(member.key, "@", environment.host, ":", around.store->port()));
  char text[32];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  std::string job;
  for (const char c : environment.job) job += std::isalnum(static_cast<unsigned char>(c)) ? c : '-';
  return concat("/colossal-", job.substr(0, 64), "-", text);
}

/// Makes the groups of a process: picks the transport for each.
class Transports {
 public:
  Transports(const LaunchOptions& options, const Environment& environment, Neighbourhood around, std::string backend)
      : options_(options), environment_(environment), around_(std::move(around)), backend_(std::move(backend)) {}

  std::shared_ptr<Backend> operator()(const Membership& member) const {
    const auto store = around_.store->with_prefix("group/" + member.key);
    auto host = std::make_shared<HostStaging>(share_memory(member) ? make_shared_memory(member, store)
                                                                   : make_gloo(member, store));
    if (backend_ != "nccl") return host;
    NcclOptions nccl;
    nccl.name = member.name;
    nccl.rank = member.rank;
    nccl.size = member.size();
    nccl.world_ranks = member.ranks;
    nccl.device = around_.local_rank;
    return make_nccl_group(nccl, store->with_prefix("nccl"), host);
  }

 private:
  bool share_memory(const Membership& member) const {
    if (options_.backend == "gloo") return false;
    return std::all_of(member.ranks.begin(), member.ranks.end(),
                       [&](int rank) { return around_.hosts[rank] == around_.hosts[member.ranks[0]]; });
  }

  std::shared_ptr<Backend> make_shared_memory(const Membership& member, const std::shared_ptr<Store>& store) const {
    const Meeting meeting{store->with_prefix("shm"), concat("group \"", member.name, "\""), member.rank, member.size(),
                          options_.watchdog};
    require(member.size() <= kMaxSharedRanks, "comm", "group \"", member.name, "\": shared memory holds up to ",
            kMaxSharedRanks, " ranks: got ", member.size(), "; use backend = \"gloo\"");
    auto segment =
        share_segment(meeting, segment_name(environment_, around_, member), Slots::segment_bytes(member.size()));
    return std::make_shared<SharedMemory>(std::move(segment), member.name, member.rank, member.size(),
                                          around_.local_size);
  }

  std::shared_ptr<Backend> make_gloo(const Membership& member, const std::shared_ptr<Store>& store) const {
    GlooOptions gloo;
    gloo.name = member.name;
    gloo.rank = member.rank;
    gloo.size = member.size();
    gloo.address = around_.address;
    // Gloo's own limit is far off: here it shows who does not come.
    gather_texts({store->with_prefix("come"), concat("group \"", member.name, "\""), member.rank, member.size(),
                  options_.watchdog},
                 "");
    return make_gloo_group(gloo, store->with_prefix("gloo"));
  }

  const LaunchOptions options_;
  const Environment environment_;
  const Neighbourhood around_;
  const std::string backend_;
};

void bind(const Environment& environment, const Neighbourhood& around) {
  std::vector<int> cores = allowed_cores();
  const bool binds = environment.launcher == Launcher::OpenMpi || environment.launcher == Launcher::Slurm;
  const bool bound = binds && static_cast<int>(cores.size()) < installed_cores();
  if (!bound) {
    cores = share_of_cores(cores, around.local_rank, around.local_size);
    bind_to_cores(cores);
  }
  if (!cores.empty()) at::set_num_threads(static_cast<int>(cores.size()));
}

}  // namespace

std::unique_ptr<World> launch(const LaunchOptions& options) {
  return launch(options, read_environment(process_variables()));
}

std::unique_ptr<World> launch(const LaunchOptions& options, const Environment& environment) {
  check_backend(options.backend);
  require(options.backend != "nccl" || has_nccl(), "launch",
          "backend = \"nccl\": this build has no NCCL; use \"auto\"");
  RankWorld::Options world;
  world.watchdog = options.watchdog;
  world.notice = options.notice;
  world.backend = "null";
  if (environment.size == 1) return std::make_unique<RankWorld>(world, Connect(), nullptr);
  Neighbourhood around = rendezvous(options, environment);
  if (options.bind_cores) bind(environment, around);
  world.rank = environment.rank;
  world.size = environment.size;
  world.local_rank = around.local_rank;
  world.local_size = around.local_size;
  world.backend = choose_backend(options, around);
  auto watchdog_store = connect_to_store(environment, false, options.timeout)->with_prefix("watchdog");
  Transports transports(options, environment, std::move(around), world.backend);
  return std::make_unique<RankWorld>(world, std::move(transports), std::move(watchdog_store));
}

}  // namespace colossal::comm
