#include "colossal/comm/launch/launch.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "colossal/base/error.h"
#include "colossal/base/foreign_error.h"
#include "colossal/comm/backends/c10d.h"
#include "colossal/comm/backends/device_group.h"
#include "colossal/comm/backends/shared_memory.h"
#include "colossal/comm/decorators/host_staging.h"
#include "colossal/comm/launch/device.h"
#include "colossal/comm/launch/host.h"
#include "colossal/comm/launch/process_settings.h"
#include "colossal/comm/launch/rendezvous.h"
#include "colossal/comm/launch/transport_choice.h"
#include "colossal/comm/rank_world.h"

namespace colossal::comm {
namespace {

/// The reports of all ranks about themselves, and the address at which peers reach this one.
struct Neighbourhood {
  std::shared_ptr<Store> store;
  std::vector<RankFacts> ranks;
  std::string address;
  int local_rank = 0, local_size = 1;
  bool several_hosts = false;
};

void check_backend(const std::string& backend) {
  const bool known = backend == "auto" || backend == "shm" || backend == "gloo" || backend == "nccl";
  require(known, "launch", "backend must be one of auto, shm, gloo, nccl: got \"", backend, "\"");
}

std::shared_ptr<Store> connect_to_store(const LaunchOptions& options, const Environment& environment, bool server) {
  Store::Tcp tcp;
  tcp.host = environment.host;
  tcp.port = environment.port;
  tcp.server = server;
  tcp.limit = options.timeout;
  // The store is sealed even without a secret. That excludes no process, but reveals to a rank with a secret that
  // others have none.
  const auto store = Store::tcp(tcp)->sealed(environment.secret, options.note);
  return environment.prefix.empty() ? store : store->with_prefix(environment.prefix);
}

/// Returns true if run_local_ranks() started this rank.
bool is_of_local_ranks(const Environment& environment) {
  return environment.launcher == Launcher::Colossal && environment.hosted_store;
}

/// Reports to our launcher which process is the program of this rank, because the launcher may know only a wrapper.
void report_process(Store& store, const Environment& environment) {
  if (is_of_local_ranks(environment)) store.set(concat("process/", environment.rank), concat(getpid()));
}

RankFacts own_facts(const LaunchOptions& options, const Environment& environment) {
  RankFacts facts{host_identity(environment.host_name), options.backend, {}, has_nccl()};
  const int gpus = options.device == "cuda" ? options.devices->count() : 0;
  for (int i = 0; i < gpus; ++i) facts.gpus.push_back(options.devices->pci_id(i));
  return facts;
}

void require_equal_sizes(int first, int rank, int size) {
  require(size == first, "launch", "rank 0 was started as one of ", first, " ranks, rank ", rank, " as one of ", size,
          "; start all ranks with the same number of ranks");
}

/// Returns the remedy for a rank that has already joined. The store of torchrun's agent outlives the ranks. If
/// torchrun restarts ranks with the same restart count, the store still holds the old keys, among them old addresses.
std::string remedy_of_second_start(const Environment& environment) {
  const char* const ranks = "give each process a different rank";
  if (environment.launcher != Launcher::Torchrun || !environment.hosted_store) return ranks;
  return concat(ranks,
                "; if torchrun started it again because hosts joined or left, restart torchrun with "
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on all hosts, which gives each start a separate store");
}

/// Returns what every rank of the run reports about itself. Refuses mistakes that ranks would otherwise only notice by
/// waiting for each other: two processes with the same rank, and ranks started for runs of different sizes.
std::vector<RankFacts> gather_facts(const Rendezvous& rendezvous, const RankFacts& own, const std::string& remedy) {
  Store& store = *rendezvous.store;
  require(store.add(concat("joined/", rendezvous.rank), 1) == 1, "launch", "rank ", rendezvous.rank,
          " was started twice in this run; ", remedy);
  const std::string text = concat(rendezvous.size, " ", own.text());
  store.set(concat("here/", rendezvous.rank), text);  // before this rank may refuse, because others wait for it
  if (rendezvous.rank > 0) {
    std::string first;
    try {
      first = store.get("here/0", rendezvous.limit, rendezvous.what);
    } catch (const Error&) {
      throw_missing(rendezvous);
      throw;
    }
    store.set(concat("seen/", rendezvous.rank), "");
    require_equal_sizes(std::atoi(first.c_str()), rendezvous.rank, rendezvous.size);
  }
  const std::vector<std::string> said = gather_texts(rendezvous, text);
  // Rank 0 may refuse and end, which ends the store, so it first waits until the others have read its size.
  std::vector<std::string> seen;
  for (int r = 1; r < rendezvous.size; ++r) seen.push_back(concat("seen/", r));
  if (rendezvous.rank == 0) store.get_all(seen, rendezvous.limit, rendezvous.what);
  std::vector<RankFacts> facts;
  for (int r = 0; r < rendezvous.size; ++r) {
    require_equal_sizes(rendezvous.size, r, std::atoi(said[r].c_str()));
    facts.push_back(RankFacts::read(said[r].substr(std::min(said[r].find(' '), said[r].size())), r));
  }
  return facts;
}

Neighbourhood gather_neighbourhood(const LaunchOptions& options, const Environment& environment) {
  Neighbourhood result;
  const bool server = environment.rank == 0 && !environment.hosted_store;
  result.store = connect_to_store(options, environment, server);
  report_process(*result.store, environment);
  const Rendezvous rendezvous{result.store->with_prefix("ranks"), "the ranks of this run", environment.rank,
                              environment.size, options.timeout};
  result.ranks = gather_facts(rendezvous, own_facts(options, environment), remedy_of_second_start(environment));
  // Rank 0 may refuse what it has read and end, which ends the store, so it first waits until all ranks have read it.
  rendezvous.store->set(concat("read/", environment.rank), "");
  std::vector<std::string> read;
  for (int r = 1; server && r < environment.size; ++r) read.push_back(concat("read/", r));
  if (server) rendezvous.store->get_all(read, options.timeout, rendezvous.what);
  const std::string own = result.ranks[environment.rank].host;
  const auto shares_host = [&](const RankFacts& facts) { return facts.host == own; };
  const auto begin = result.ranks.begin();
  result.local_size = static_cast<int>(std::count_if(begin, result.ranks.end(), shares_host));
  result.local_rank = static_cast<int>(std::count_if(begin, begin + environment.rank, shares_host));
  result.several_hosts = result.local_size < environment.size;
  result.address = local_address(environment.host, environment.port, result.several_hosts);
  return result;
}

/// NCCL cannot be interrupted while it waits for a rank, so it starts only after all members have arrived.
std::shared_ptr<Backend> connect_gpus(const Store& store, int device, const Membership& member,
                                      const std::function<void()>& go_on) {
  const auto come = store.with_prefix("come");
  come->set(concat(member.rank), "");
  for (int r = 0; r < member.size(); ++r)
    for (auto pause = std::chrono::milliseconds(1); !come->holds(concat(r)); std::this_thread::sleep_for(pause)) {
      go_on();
      pause = std::min(2 * pause, std::chrono::milliseconds(100));
    }
  NcclOptions nccl;
  nccl.name = member.name;
  nccl.rank = member.rank;
  nccl.size = member.size();
  nccl.world_ranks = member.ranks;
  nccl.device = device;
  return make_nccl_group(nccl, store.with_prefix("nccl"));
}

/// Makes the groups of a process and picks the transport for each.
class Transports {
 public:
  Transports(const LaunchOptions& options, Neighbourhood around, const std::string& backend)
      : options_(options), around_(std::move(around)) {
    if (backend != "nccl") return;
    const int device = choose_device("cuda", around_.local_rank, *options_.devices).index();
    links_ = std::make_shared<DeviceLinks>(
        [store = around_.store, device](const Membership& member, const std::function<void()>& go_on) {
          return connect_gpus(*store->with_prefix("gpus/" + member.key), device, member, go_on);
        });
  }

  std::shared_ptr<Backend> operator()(const Membership& member) const {
    const auto store = around_.store->with_prefix("group/" + member.key);
    auto host = std::make_shared<HostStaging>(share_memory(member) ? make_shared_memory(member, store)
                                                                   : make_gloo(member, store));
    if (!links_) return host;
    return std::make_shared<DeviceGroup>(member, std::move(host), links_);
  }

 private:
  /// All members get the same answer: they know the same hosts, and choose_transport() has checked that they were
  /// configured with the same backend.
  bool share_memory(const Membership& member) const {
    if (options_.backend == "gloo") return false;
    const std::string& first = around_.ranks[member.ranks[0]].host;
    return std::all_of(member.ranks.begin(), member.ranks.end(),
                       [&](int rank) { return around_.ranks[rank].host == first; });
  }

  std::shared_ptr<Backend> make_shared_memory(const Membership& member, const std::shared_ptr<Store>& store) const {
    const Rendezvous rendezvous{store->with_prefix("shm"), concat("group \"", member.name, "\""), member.rank,
                                member.size(), options_.watchdog};
    require(member.size() <= kMaxSharedRanks, "comm", "group \"", member.name, "\": shared memory holds up to ",
            kMaxSharedRanks, " ranks: got ", member.size(), "; use backend = \"gloo\"");
    auto segment = share_segment(rendezvous, Slots::segment_bytes(member.size()));
    return std::make_shared<SharedMemory>(std::move(segment), member.name, member.rank, member.size(),
                                          around_.local_size);
  }

  std::shared_ptr<Backend> make_gloo(const Membership& member, const std::shared_ptr<Store>& store) const {
    GlooOptions gloo;
    gloo.name = member.name;
    gloo.rank = member.rank;
    gloo.size = member.size();
    gloo.address = around_.address;
    // Results of a token must not depend on how many others are in the message (nn/canonical.h).
    gloo.in_rank_order = member.name == "tensor";
    // This gather names the members that do not arrive, because Gloo's own limit is far longer.
    gather_texts({store->with_prefix("come"), concat("group \"", member.name, "\""), member.rank, member.size(),
                  options_.watchdog},
                 "");
    return make_gloo_group(gloo, store->with_prefix("gloo"));
  }

  const LaunchOptions options_;
  const Neighbourhood around_;
  std::shared_ptr<DeviceLinks> links_;  // null: device tensors are staged through host memory
};

/// Returns the GPUs that the ranks of `host` take, by local rank; returns none if one of the ranks takes no GPU.
std::vector<std::string> gpus_of_host(const Neighbourhood& around, const std::string& host) {
  std::vector<std::string> gpus;
  for (const RankFacts& facts : around.ranks) {
    if (facts.host != host) continue;
    if (facts.gpus.empty()) return {};
    gpus.push_back(facts.gpu_of(static_cast<int>(gpus.size())));
  }
  return gpus;
}

void bind(const LaunchOptions& options, const Environment& environment, const Neighbourhood& around) {
  std::vector<int> cores = allowed_cores();
  const bool binds = environment.launcher == Launcher::OpenMpi || environment.launcher == Launcher::Slurm;
  const bool bound = binds && static_cast<int>(cores.size()) < installed_cores();
  if (!bound) {
    const std::vector<std::string> gpus = gpus_of_host(around, around.ranks[environment.rank].host);
    cores = gpus.empty() ? share_of_cores(cores, around.local_rank, around.local_size)
                         : share_of_cores(cores, around.local_rank, gpus, options.sysfs);
    bind_to_cores(cores);
  }
  if (!cores.empty()) at::set_num_threads(static_cast<int>(cores.size()));
}

}  // namespace

std::unique_ptr<World> launch(const LaunchOptions& options) {
  return launch(options, read_environment(process_variables()));
}

std::unique_ptr<World> launch(const LaunchOptions& options, const Environment& environment) {
  exit_on_uncaught_error();
  check_backend(options.backend);
  if (options.device == "cuda") set_device_connections();  // before the first use of a GPU
  require(options.backend != "nccl" || has_nccl(), "launch",
          "backend = \"nccl\": this build has no NCCL; use \"auto\"");
  RankWorld::Options world;
  world.watchdog = options.watchdog;
  world.notice = options.notice;
  world.backend = "none";
  if (environment.size == 1) {
    if (is_of_local_ranks(environment)) report_process(*connect_to_store(options, environment, false), environment);
    make_current(choose_device(options.device, 0, *options.devices));
    return std::make_unique<RankWorld>(world, Connect(), nullptr);
  }
  Neighbourhood around = gather_neighbourhood(options, environment);
  if (options.bind_cores) bind(options, environment, around);
  world.rank = environment.rank;
  world.size = environment.size;
  world.local_rank = around.local_rank;
  world.local_size = around.local_size;
  const TransportChoice choice = choose_transport(around.ranks);
  // This precedes the first group and runs on the thread that makes the groups.
  make_current(choose_device(options.device, around.local_rank, *options.devices));
  if (options.note && world.rank == 0 && !choice.why.empty()) options.note(choice.why);
  world.backend = choice.backend;
  auto watchdog_store = connect_to_store(options, environment, false)->with_prefix("watchdog");
  Transports transports(options, std::move(around), world.backend);
  return std::make_unique<RankWorld>(world, std::move(transports), std::move(watchdog_store));
}

}  // namespace colossal::comm
