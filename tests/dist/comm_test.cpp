// Real processes of a host: the launcher, the transports between processes, and the remains when processes die.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "colossal/base/error.h"
#include "colossal/comm/store.h"
#include "dist/probe_process.h"
#include "support/paths.h"
#include "support/process.h"

namespace colossal::test::comm_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class LocalRanks : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(LocalRanks, EqualsOneProcess) {
  const auto& [backend, ranks] = GetParam();
  const Finished result = run_process(launched(ranks, {"conform", backend}));
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_EQ(count(result.output, "ok on " + backend), ranks) << result.output;
}

INSTANTIATE_TEST_SUITE_P(Backends, LocalRanks, testing::Combine(testing::Values("shm", "gloo"), testing::Values(2, 4)));

// Tests of threads add over other numbers of ranks.
TEST(LocalRanksSums, AddInRankOrderInTensorParallelism) {
  for (const std::string backend : {"shm", "gloo"})
    for (const int ranks : {2, 3, 4}) {
      const Finished result = run_process(launched(ranks, {"sums", backend}));
      EXPECT_EQ(result.status, 0) << result.output;
      EXPECT_EQ(count(result.output, "ok on " + backend), ranks) << result.output;
    }
}

class DeathOfARank : public testing::TestWithParam<std::string> {};

TEST_P(DeathOfARank, EndsAllRanksAndNamesTheDeadOne) {
  Process process = launched(4, {"for_ever", GetParam()});
  bool killed = false;
  process.meanwhile = [&](const std::string& output, int) {
    const size_t at = output.find("rank 2 runs as ");
    const bool all_run = count(output, " runs as ") == 4 && output.back() == '\n';
    if (killed || !all_run || at == std::string::npos) return;
    kill(std::atoi(output.c_str() + at + 15), SIGKILL);
    killed = true;
  };
  const Finished result = run_process(process);
  EXPECT_TRUE(killed) << result.output;
  EXPECT_FALSE(result.late) << "nobody may run on after a death";
  EXPECT_NE(result.status, 0);
  EXPECT_THAT(result.output, AllOf(HasSubstr("rank 2 of 4 (process "), HasSubstr(") was killed by SIGKILL")));
}

INSTANTIATE_TEST_SUITE_P(Backends, DeathOfARank, testing::Values("shm", "gloo"));

TEST(LocalRanksEnd, ReturnsTheStatusOfTheFailedRank) {
  const Finished result = run_process(launched(3, {"exit", "shm"}));
  EXPECT_NE(result.status, 0) << result.output;
  EXPECT_FALSE(result.late);
  EXPECT_THAT(result.output, HasSubstr("ended with status"));
}

/// Returns the process ids of `ranks` ranks that run "for_ever", after all of them have started.
std::vector<int> running(const std::string& output, int ranks) {
  std::vector<int> ids;
  if (count(output, " runs as ") != ranks || output.back() != '\n') return ids;
  for (int r = 0; r < ranks; ++r) {
    const std::string name = concat("rank ", r, " runs as ");
    ids.push_back(std::atoi(output.c_str() + output.find(name) + name.size()));
  }
  return ids;
}

// Memory without a name leaves nothing, whichever process is killed and when.
TEST(LocalRanksMemory, HasNoName) {
  Process process = launched(2, {"for_ever", "shm"});
  std::vector<std::string> files;
  process.meanwhile = [&](const std::string& output, int launcher) {
    if (!files.empty()) return;
    for (const int rank : running(output, 2)) {
      const auto mapped = mapped_files(rank);
      files.insert(files.end(), mapped.begin(), mapped.end());
    }
    if (!files.empty()) kill(launcher, SIGTERM);
  };
  const Finished result = run_process(process);
  EXPECT_EQ(std::count(files.begin(), files.end(), "/memfd:colossal (deleted)"), 2) << result.output;
  EXPECT_THAT(files, testing::Each(testing::Not(testing::StartsWith("/dev/shm/"))));
}

// Every rank has a separate /dev/shm with space for one page, like a container without shared memory.
TEST(LocalRanksMemory, NeedsNoSpaceInDevShm) {
  const std::vector<std::string> with_a_page{"unshare",
                                             "--mount",
                                             "sh",
                                             "-c",
                                             "mount -t tmpfs -o size=4k tmpfs /dev/shm || exit; \"$@\"; status=$?; "
                                             "ls -A /dev/shm | sed 's/^/left: /'; exit $status",
                                             "sh"};
  Process process;
  process.command = with_a_page;
  process.command.push_back("true");
  if (run_process(process).status != 0) GTEST_SKIP() << "no mount namespaces here";
  const std::string port = std::to_string(free_port());
  std::vector<Process> processes(8, process);
  for (int r = 0; r < 8; ++r) {
    processes[r].command.back() = comm_probe();
    processes[r].command.push_back("pairs");
    processes[r].variables = clean({{"RANK", std::to_string(r)}, {"WORLD_SIZE", "8"}, {"MASTER_PORT", port}});
    processes[r].limit = std::chrono::seconds(180);
  }
  const auto results = run_processes(processes);
  expect_success(results);
  for (const auto& result : results) {
    EXPECT_THAT(result.output, AllOf(HasSubstr(" of 8 ok on shm"), testing::Not(HasSubstr("left: "))));
  }
}

/// Returns a variable from the environment of the running process.
std::string variable_of(int process, const std::string& name) {
  std::ifstream file("/proc/" + std::to_string(process) + "/environ");
  for (std::string entry; std::getline(file, entry, '\0');)
    if (entry.rfind(name + "=", 0) == 0) return entry.substr(name.size() + 1);
  return "";
}

TEST(LocalRanksStore, KeepsStrangersFromEndingTheRun) {
  Process process = launched(2, {"for_ever", "shm", "3000"});
  std::string secret, address;
  bool has_forged = false, has_ended = false;
  process.meanwhile = [&](const std::string& output, int launcher) {
    const auto ranks = running(output.substr(0, output.find("colossal")), 2);
    if (!ranks.empty() && !has_forged) {
      has_forged = true;
      secret = variable_of(ranks[0], "COLOSSAL_SECRET");
      address = variable_of(ranks[0], "COLOSSAL_STORE_HOST");
      comm::Store::Tcp tcp;
      tcp.host = address;
      tcp.port = static_cast<uint16_t>(std::stoi(variable_of(ranks[0], "COLOSSAL_STORE_PORT")));
      comm::Store::tcp(tcp)->with_prefix("watchdog")->set("verdict", "forged");
    }
    if (has_ended || count(output, "ignored a value of \"watchdog/verdict\"") != 2) return;
    has_ended = true;
    kill(launcher, SIGTERM);
  };
  const Finished result = run_process(process);
  EXPECT_EQ(secret.size(), 32u);
  EXPECT_EQ(address, "127.0.0.1");
  EXPECT_TRUE(has_ended) << result.output;
  EXPECT_EQ(result.status, 128 + SIGTERM) << result.output;
  EXPECT_EQ(count(result.output, "forged"), 0) << result.output;
}

TEST(LocalRanksEnd, FollowsTheDeathOfTheLauncher) {
  Process process = launched(2, {"for_ever", "shm"});
  std::vector<int> ranks;
  process.meanwhile = [&](const std::string& output, int launcher) {
    if (!ranks.empty()) return;
    ranks = running(output, 2);
    if (!ranks.empty()) kill(launcher, SIGKILL);
  };
  const Finished result = run_process(process);
  EXPECT_EQ(result.status, 128 + SIGKILL) << result.output;
  ASSERT_EQ(ranks.size(), 2u);
  for (int rank : ranks) {
    for (int i = 0; i < 500 && kill(rank, 0) == 0; ++i) usleep(10000);
    EXPECT_NE(kill(rank, 0), 0) << "a rank outlived its launcher";
  }
}

TEST(LocalRanksEnd, FollowsASignal) {
  Process process = launched(2, {"for_ever", "shm"});
  bool asked = false;
  process.meanwhile = [&](const std::string& output, int launcher) {
    if (asked || count(output, " runs as ") != 2) return;
    asked = true;
    kill(launcher, SIGTERM);
  };
  const Finished result = run_process(process);
  EXPECT_FALSE(result.late) << result.output;
  EXPECT_EQ(result.status, 128 + SIGTERM) << result.output;
  EXPECT_THAT(result.output, HasSubstr("got SIGTERM, passing it on"));
}

TEST(LocalRanksEnd, LetsEachRankFinishAfterASignal) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Process process = launched(2, {"ask", "shm"});
    bool asked = false;
    process.meanwhile = [&](const std::string& output, int launcher) {
      if (asked || count(output, " runs as ") != 2) return;
      asked = true;
      kill(launcher, signal);
    };
    const Finished result = run_process(process);
    EXPECT_EQ(result.status, 128 + signal) << result.output;
    EXPECT_THAT(result.output, AllOf(HasSubstr("rank 0 has saved"), Not(HasSubstr("ending the other ranks"))));
  }
}

TEST(LocalRanksEnd, FollowsASecondSignalAtOnce) {
  Process process = launched(2, {"ask_twice", "shm"});
  int asked = 0;
  process.meanwhile = [&](const std::string& output, int launcher) {
    const bool begins = asked == 0 && count(output, " runs as ") == 2;
    // The system and a shell may both report a lost terminal, which counts as one request.
    const bool repeats = asked == 1 && output.find("got SIGHUP") != std::string::npos;
    const bool again = asked == 2 && output.find("rank 1 is gone") != std::string::npos;
    if (!begins && !repeats && !again) return;
    ++asked;
    kill(launcher, again ? SIGINT : SIGHUP);
  };
  const Finished result = run_process(process);
  EXPECT_EQ(asked, 3) << result.output;
  EXPECT_FALSE(result.late) << result.output;
  EXPECT_GE(result.status, 128) << result.output;
  EXPECT_THAT(result.output, Not(HasSubstr("rank 0 has saved")));
}

TEST(LocalRanksEnd, IgnoresHangupsUnderNohup) {
  Process process = launched(2, {"ask", "shm"});
  process.command.insert(process.command.begin(), {"nohup"});
  bool asked = false;
  process.meanwhile = [&](const std::string& output, int launcher) {
    if (asked || count(output, " runs as ") != 2) return;
    asked = true;
    kill(launcher, SIGHUP);
    kill(launcher, SIGTERM);
  };
  const Finished result = run_process(process);
  EXPECT_EQ(result.status, 128 + SIGTERM) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("got SIGTERM"), Not(HasSubstr("got SIGHUP"))));
}

TEST(LocalRanksStart, NamesACommandThatCannotStart) {
  const Finished result = run_process(launched(2, {"nonsense"}));
  EXPECT_NE(result.status, 0);
  EXPECT_THAT(result.output, HasSubstr("unknown task nonsense"));
}

class Stall : public testing::TestWithParam<std::string> {};

TEST_P(Stall, EndsByTheWatchdogWithOneMessage) {
  const Finished result = run_process(launched(4, {"skip", GetParam(), "3000"}));
  EXPECT_NE(result.status, 0);
  EXPECT_FALSE(result.late);
  EXPECT_THAT(result.output,
              HasSubstr("[watchdog] rank 3 of 4 never called all_reduce #2 of 4096 bytes on group \"all\" "
                        "(setup); its last call there was all_reduce #1 of 4096 bytes; waited 3 s"));
}

INSTANTIATE_TEST_SUITE_P(Backends, Stall, testing::Values("shm", "gloo"));

TEST(BusyRank, IsBlamedIfItsProcessNoLongerAnswers) {
  const Finished result = run_process(launched(2, {"stop_while_busy", "shm", "2000"}));
  EXPECT_NE(result.status, 0);
  EXPECT_FALSE(result.late);
  EXPECT_THAT(result.output,
              testing::ContainsRegex(
                  "rank 1 of 2 never called barrier #1 on group \"all\" .setup.; it has made no call there; it "
                  "has been saving a checkpoint for [0-9]+ s, and its process no longer answers; waited 2 s"));
}

// Slurm stops a job like this, and a user may stop all processes, in whatever order the system reaches them.
TEST(StoppedRanks, ContinueAfterAnyPause) {
  Process process = launched(2, {"for_ever", "shm", "6000"});
  std::vector<int> ranks;
  bool has_gone_on = false;
  process.meanwhile = [&](const std::string& output, int launcher) {
    if (!ranks.empty()) return;
    ranks = running(output, 2);
    if (ranks.empty()) return;
    const auto pause = [](int seconds) { std::this_thread::sleep_for(std::chrono::seconds(seconds)); };
    kill(ranks[0], SIGSTOP);
    pause(1);  // rank 1 waits for it now
    kill(ranks[1], SIGSTOP);
    pause(14);
    kill(ranks[1], SIGCONT);
    pause(2);  // time in which it checks the others
    kill(ranks[0], SIGCONT);
    pause(2);
    has_gone_on = children_of(launcher).size() == 2;
    kill(launcher, SIGTERM);
  };
  const Finished result = run_process(process);
  EXPECT_TRUE(has_gone_on) << result.output;
  EXPECT_EQ(result.status, 128 + SIGTERM) << result.output;
}

TEST(GroupCreation, WaitsAsLongAsACollective) {
  // Rank 1 joins the group later than the limit for ranks to find each other.
  const Finished result = run_process(launched(2, {"late_group", "gloo", "60000", "5000"}));
  EXPECT_EQ(result.status, 0) << result.output;
  const Finished shared = run_process(launched(2, {"late_group", "shm", "60000", "5000"}));
  EXPECT_EQ(shared.status, 0) << shared.output;
}

TEST(GroupCreation, NamesARankThatDoesNotJoin) {
  for (const char* backend : {"shm", "gloo"}) {
    const Finished result = run_process(launched(2, {"no_group", backend, "2000", "60000"}));
    EXPECT_EQ(result.status, 1) << result.output;
    EXPECT_THAT(result.output, HasSubstr("[launch] waited 2 s for group \"late\": 1 of 2 ranks did not join: 1"));
  }
}

}  // namespace
}  // namespace colossal::test::comm_test
