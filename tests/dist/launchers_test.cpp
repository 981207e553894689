// Ranks that another launcher starts: torchrun, Slurm, mpirun, several hosts.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "colossal/base/error.h"
#include "colossal/comm/store.h"
#include "dist/probe_process.h"
#include "support/paths.h"
#include "support/process.h"

namespace colossal::test::launchers_test {
namespace {

using testing::HasSubstr;

/// Starts the ranks as a launcher would: one process each, with the variables from `variables`.
std::vector<Finished> started(int ranks, const std::function<std::map<std::string, std::string>(int)>& variables,
                              const std::vector<std::string>& arguments) {
  std::vector<Process> processes(ranks);
  for (int r = 0; r < ranks; ++r) {
    processes[r].command = {comm_probe()};
    processes[r].command.insert(processes[r].command.end(), arguments.begin(), arguments.end());
    processes[r].variables = clean(variables(r));
    processes[r].limit = std::chrono::seconds(120);
  }
  return run_processes(processes);
}

TEST(Launchers, ReadsSlurmVariables) {
  const std::string port = std::to_string(free_port());
  const auto results =
      started(2,
              [&](int r) {
                return std::map<std::string, std::string>{
                    {"SLURM_PROCID", std::to_string(r)},  {"SLURM_STEP_NUM_TASKS", "2"},   {"SLURM_JOB_ID", "7"},
                    {"SLURM_LOCALID", std::to_string(r)}, {"SLURM_NODELIST", "localhost"}, {"MASTER_PORT", port}};
              },
              {"pairs"});
  expect_success(results);
  EXPECT_THAT(results[0].output, HasSubstr("rank 0 of 2 ok on shm"));
}

TEST(Launchers, ReadsOpenMpiVariables) {
  const std::string job = std::to_string(getpid());
  expect_success(started(2,
                         [&](int r) {
                           return std::map<std::string, std::string>{{"OMPI_COMM_WORLD_RANK", std::to_string(r)},
                                                                     {"OMPI_COMM_WORLD_SIZE", "2"},
                                                                     {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(r)},
                                                                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                                                     {"PMIX_NAMESPACE", job}};
                         },
                         {"pairs"}));
}

TEST(Launchers, UsesSharedMemoryWithinHostsAndGlooBetween) {
  const std::string port = std::to_string(free_port());
  const auto results = started(4,
                               [&](int r) {
                                 return std::map<std::string, std::string>{
                                     {"RANK", std::to_string(r)},  {"WORLD_SIZE", "4"},
                                     {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port},
                                     {"GLOO_SOCKET_IFNAME", "lo"}, {"COLOSSAL_HOST", r < 2 ? "one" : "two"}};
                               },
                               {"pairs"});
  expect_success(results);
  EXPECT_THAT(results[3].output, HasSubstr("rank 3 of 4 ok on gloo"));
}

// Each agent counts its own ranks from 0. With these numbers both would bind to the same cores and use the same GPU.
TEST(Launchers, SplitsTheCoresOfAHostAmongSeveralAgents) {
  const std::string port = std::to_string(free_port());
  const auto results = started(2,
                               [&](int r) {
                                 return std::map<std::string, std::string>{{"RANK", std::to_string(r)},
                                                                           {"WORLD_SIZE", "2"},
                                                                           {"LOCAL_RANK", "0"},
                                                                           {"LOCAL_WORLD_SIZE", "1"},
                                                                           {"MASTER_PORT", port}};
                               },
                               {"pairs"});
  expect_success(results);
  for (int r = 0; r < 2; ++r) EXPECT_THAT(results[r].output, HasSubstr(concat("ok on shm, local rank ", r)));
}

TEST(Launchers, ReportsRanksWithoutTheSecret) {
  const std::string port = std::to_string(free_port());
  const auto results = started(2,
                               [&](int r) {
                                 return std::map<std::string, std::string>{{"RANK", std::to_string(r)},
                                                                           {"WORLD_SIZE", "2"},
                                                                           {"MASTER_PORT", port},
                                                                           {"COLOSSAL_SECRET", r ? "hush" : ""}};
                               },
                               {"pairs", "auto", "8000", "8000"});
  for (const auto& result : results) {
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.output, HasSubstr("set the same COLOSSAL_SECRET on all ranks"));
  }
}

TEST(Launchers, EndsTheRunIfTheStoreNoLongerAnswers) {
  const std::string port = std::to_string(free_port());
  const auto results = started(2,
                               [&](int r) {
                                 return std::map<std::string, std::string>{
                                     {"RANK", std::to_string(r)}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", port}};
                               },
                               {"stop_with_the_store", "shm", "2000", "10000"});
  EXPECT_EQ(results[1].status, 1);
  EXPECT_FALSE(results[1].late);
  EXPECT_THAT(results[1].output,
              HasSubstr("[watchdog] barrier #2 did not finish within 2 s, and the store that knows the "
                        "other ranks' calls cannot be reached: "));
}

TEST(Launchers, RefusesSharedMemoryBetweenHosts) {
  const std::string port = std::to_string(free_port());
  const auto results = started(2,
                               [&](int r) {
                                 return std::map<std::string, std::string>{{"RANK", std::to_string(r)},
                                                                           {"WORLD_SIZE", "2"},
                                                                           {"MASTER_PORT", port},
                                                                           {"COLOSSAL_HOST", std::to_string(r)}};
                               },
                               {"pairs", "shm"});
  for (const auto& result : results) {
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.output, HasSubstr("[launch] backend = \"shm\" needs all ranks on one host: they are on 2"));
  }
}

TEST(Launchers, NamesTheMissingRanks) {
  const std::string port = std::to_string(free_port());
  const auto results =
      started(1,
              [&](int) {
                return std::map<std::string, std::string>{{"RANK", "0"}, {"WORLD_SIZE", "3"}, {"MASTER_PORT", port}};
              },
              {"pairs", "auto", "3000", "3000"});
  EXPECT_EQ(results[0].status, 1);
  EXPECT_THAT(results[0].output, HasSubstr("2 of 3 ranks did not join: 1, 2"));
}

TEST(Launchers, RefusesTwoProcessesWithTheSameRank) {
  const std::string port = std::to_string(free_port());
  const auto results =
      started(3,
              [&](int process) {
                const std::string rank = std::to_string(std::min(process, 1));
                return std::map<std::string, std::string>{{"RANK", rank}, {"WORLD_SIZE", "3"}, {"MASTER_PORT", port}};
              },
              {"pairs", "auto", "3000", "3000"});
  for (const auto& result : results) EXPECT_EQ(result.status, 1);
  EXPECT_THAT(results[0].output, HasSubstr("1 of 3 ranks did not join: 2"));
  EXPECT_THAT(results[1].output + results[2].output,
              HasSubstr("[launch] rank 1 was started twice in this run; give each process a different rank"));
}

// The agent's store outlives the ranks: it still holds the ranks from before a change of members.
TEST(Launchers, NamesTheRemedyForASecondStartOnTheStoreOfTorchrun) {
  comm::Store::Tcp tcp;
  tcp.host = "127.0.0.1";
  tcp.server = true;
  const auto agent = comm::Store::tcp(tcp);
  const auto start = [&](const std::string& restart) {
    return started(1,
                   [&](int) {
                     return std::map<std::string, std::string>{{"RANK", "1"},
                                                               {"WORLD_SIZE", "2"},
                                                               {"MASTER_PORT", std::to_string(agent->port())},
                                                               {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                                               {"TORCHELASTIC_RUN_ID", "run"},
                                                               {"TORCHELASTIC_RESTART_COUNT", restart}};
                   },
                   {"pairs", "auto", "1000", "1000"})[0]
        .output;
  };
  EXPECT_THAT(start("0"), HasSubstr("1 of 2 ranks did not join: 0"));
  EXPECT_THAT(start("0"), HasSubstr("rank 1 was started twice in this run; give each process a different rank; if "
                                    "torchrun started it again because hosts joined or left, restart torchrun "
                                    "with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on all hosts"));
  EXPECT_THAT(start("1"), HasSubstr("1 of 2 ranks did not join: 0")) << "a restart that torchrun counts is none";
}

TEST(Launchers, RefusesRanksOfRunsOfDifferentSizes) {
  const std::string port = std::to_string(free_port());
  const auto results =
      started(2,
              [&](int r) {
                return std::map<std::string, std::string>{
                    {"RANK", std::to_string(r)}, {"WORLD_SIZE", std::to_string(2 + 2 * r)}, {"MASTER_PORT", port}};
              },
              {"pairs", "auto", "60000", "3000"});
  for (const auto& result : results) {
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.output, HasSubstr("[launch] rank 0 was started as one of 2 ranks, rank 1 as one of 4; start all "
                                         "ranks with the same number of ranks"));
  }
}

TEST(Launchers, ReportsAPortInUse) {
  const int descriptor = socket(AF_INET6, SOCK_STREAM, 0);  // both families, as the store listens
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(descriptor, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(descriptor, 1), 0);
  getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length);
  const std::string port = std::to_string(ntohs(address.sin6_port));
  const auto results =
      started(1,
              [&](int) {
                return std::map<std::string, std::string>{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", port}};
              },
              {"pairs", "auto", "1000", "5000"});
  close(descriptor);
  EXPECT_EQ(results[0].status, 1);
  EXPECT_THAT(results[0].output, HasSubstr("[launch] port " + port + " is in use on this host; set MASTER_PORT"));
}

TEST(Launchers, StartsRanksByTorchrun) {
  std::string torchrun = source_dir() + "/.venv/bin/torchrun";
  if (!std::filesystem::exists(torchrun)) torchrun = find_program("torchrun");
  if (torchrun.empty()) GTEST_SKIP() << "torchrun is neither in .venv nor in PATH";
  Process process;
  process.command = {torchrun, "--standalone", "--no-python", "--nproc-per-node=2", comm_probe(), "pairs"};
  process.variables = clean();
  process.limit = std::chrono::seconds(180);
  const Finished result = run_process(process);
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_EQ(count(result.output, "ok on shm"), 2) << result.output;
}

TEST(Launchers, StartsRanksByMpirun) {
  const std::string mpirun = find_program("mpirun");
  if (mpirun.empty()) GTEST_SKIP() << "mpirun is not installed (Debian: openmpi-bin)";
  Process process;
  process.command = {mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "2", comm_probe(), "pairs"};
  process.variables = clean();
  process.limit = std::chrono::seconds(180);
  const Finished result = run_process(process);
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_EQ(count(result.output, "ok on shm"), 2) << result.output;
}

/// Two network namespaces joined by a virtual cable, which act as two hosts for sockets.
class TwoHosts {
 public:
  TwoHosts() : a_(concat("clsl-a-", getpid())), b_(concat("clsl-b-", getpid())) {
    const std::string cable_a = concat("ca", getpid() % 100000), cable_b = concat("cb", getpid() % 100000);
    made_ = ip({"netns", "add", a_}) && ip({"netns", "add", b_}) &&
            ip({"link", "add", cable_a, "netns", a_, "type", "veth", "peer", "name", cable_b, "netns", b_}) &&
            ip({"-n", a_, "addr", "add", "10.231.77.1/24", "dev", cable_a}) &&
            ip({"-n", b_, "addr", "add", "10.231.77.2/24", "dev", cable_b}) &&
            ip({"-n", a_, "link", "set", cable_a, "up"}) && ip({"-n", b_, "link", "set", cable_b, "up"}) &&
            ip({"-n", a_, "link", "set", "lo", "up"}) && ip({"-n", b_, "link", "set", "lo", "up"});
  }
  ~TwoHosts() {  // the cable is removed with its ends
    for (const auto& name : {a_, b_}) ip({"netns", "del", name});
  }
  bool made() const { return made_; }
  const std::string& why() const { return why_; }
  const std::string& name(int host) const { return host == 0 ? a_ : b_; }

 private:
  bool ip(std::vector<std::string> arguments) {
    Process process;
    process.command = {"ip"};
    process.command.insert(process.command.end(), arguments.begin(), arguments.end());
    process.limit = std::chrono::seconds(10);
    const Finished result = run_process(process);
    if (result.status != 0 && why_.empty()) why_ = "ip: " + result.output;
    return result.status == 0;
  }

  const std::string a_, b_;
  std::string why_;
  bool made_ = false;
};

TEST(Launchers, ExchangesBetweenTwoHostsOverTcp) {
  const TwoHosts hosts;
  if (!hosts.made()) GTEST_SKIP() << "no network namespaces here: " << hosts.why();
  std::vector<Process> processes(4);
  for (int r = 0; r < 4; ++r) {
    processes[r].command = {"ip", "netns", "exec", hosts.name(r / 2), comm_probe(), "pairs"};
    processes[r].variables = clean({{"RANK", std::to_string(r)},
                                    {"WORLD_SIZE", "4"},
                                    {"LOCAL_RANK", std::to_string(r % 2)},
                                    {"MASTER_ADDR", "10.231.77.1"},
                                    {"MASTER_PORT", "29511"}});
    processes[r].limit = std::chrono::seconds(120);
  }
  const auto results = run_processes(processes);
  expect_success(results);
  EXPECT_THAT(results[2].output, HasSubstr("rank 2 of 4 ok on gloo"));
}

}  // namespace
}  // namespace colossal::test::launchers_test
