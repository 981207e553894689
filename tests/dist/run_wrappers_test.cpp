// `colossal run -- WRAPPER PROGRAM`: nothing of a run outlives its launcher, whatever the ranks are wrapped in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/comm/launch/rank_processes.h"
#include "dist/probe_process.h"
#include "support/paths.h"

namespace colossal::test::run_wrappers_test {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;

/// A program that sleeps, in a wrapper of some kind.
struct Wrapped {
  std::string name;
  Words command;
};

/// Each wrapper returns the status of its program.
std::vector<Wrapped> wrappers() {
  std::vector<Wrapped> kinds{
      {"script", {"sh", "-c", "sleep 77; exit $?"}},
      {"script in a script", {"sh", "-c", "sh -c 'sleep 77; exit $?'; exit $?"}},
      // as `uv run` does
      {"wrapper that passes signals on",
       {"sh", "-c",
        "sleep 77 & p=$!; trap \"kill -TERM $p\" TERM; wait $p; s=$?; kill -0 $p 2>/dev/null && { wait $p; s=$?; }; "
        "exit $s"}},
      {"timeout in a script", {"sh", "-c", "timeout 77 sleep 78; exit $?"}},  // it makes a process group
      {"script that clears the environment", {"sh", "-c", "env -i sleep 77; exit $?"}}};
  if (!find_program("bash").empty()) kinds.push_back({"shell with job control", {"bash", "-mc", "sleep 77; exit $?"}});
  return kinds;
}

/// Returns the processes that descend from `parent`, its children first.
std::vector<int> tree_of(int parent) {
  std::vector<int> found = children_of(parent);
  for (size_t i = 0; i < found.size(); ++i)
    for (const int child : children_of(found[i])) found.push_back(child);
  return found;
}

bool has_ended(int process) {
  for (const auto& entry : comm::list_processes())
    if (entry.id == process) return entry.has_ended;
  return true;
}

/// Waits for the end of processes whose end nothing reports to this one.
std::vector<int> survivors(std::vector<int> processes) {
  for (int i = 0; i < 500; ++i, std::this_thread::sleep_for(milliseconds(10))) {
    std::erase_if(processes, has_ended);
    if (processes.empty()) break;
  }
  for (const int process : processes) kill(process, SIGKILL);
  return processes;
}

std::string name_of(int process) {
  char path[64], name[512] = "";
  std::snprintf(path, sizeof path, "/proc/%d/exe", process);
  return readlink(path, name, sizeof name - 1) > 0 ? std::string(name).substr(std::string(name).rfind('/') + 1) : "";
}

/// Runs every wrapper as two ranks. After all programs have started, `act` gets the launcher and the processes of the
/// run. Checks that none of them is left.
void run_all(const std::string& ending, int status, const std::function<void(int, const std::vector<int>&)>& act) {
  const std::vector<Wrapped> kinds = wrappers();
  std::vector<std::vector<int>> started(kinds.size());
  std::vector<Process> runs;
  for (size_t i = 0; i < kinds.size(); ++i) {
    Process run{.command = {program_path(), "run", "-n", "2", "--"}, .variables = clean()};
    run.command.insert(run.command.end(), kinds[i].command.begin(), kinds[i].command.end());
    run.meanwhile = [&, i](const std::string&, int launcher) {
      if (!started[i].empty()) return;
      std::vector<int> processes = tree_of(launcher);
      const auto sleeps =
          std::count_if(processes.begin(), processes.end(), [](int process) { return name_of(process) == "sleep"; });
      if (sleeps != 2) return;
      started[i] = std::move(processes);
      act(launcher, started[i]);
    };
    runs.push_back(run);
  }
  const std::vector<Finished> results = run_processes(runs);
  for (size_t i = 0; i < kinds.size(); ++i) {
    const std::string what = concat(kinds[i].name, ", ", ending, ": ");
    EXPECT_FALSE(results[i].late) << what << results[i].output;
    EXPECT_EQ(results[i].status, status) << what << results[i].output;
    EXPECT_FALSE(started[i].empty()) << what << results[i].output;
    EXPECT_THAT(survivors(started[i]), testing::IsEmpty()) << what << results[i].output;
  }
}

TEST(RunWrappers, EndAfterSigterm) {
  run_all("SIGTERM", 128 + SIGTERM, [](int launcher, const auto&) { kill(launcher, SIGTERM); });
}

TEST(RunWrappers, EndWithTheLauncher) {
  run_all("SIGKILL of the launcher", 128 + SIGKILL, [](int launcher, const auto&) { kill(launcher, SIGKILL); });
}

TEST(RunWrappers, EndWithAWrapper) {
  run_all("SIGKILL of a wrapper", 128 + SIGKILL, [](int, const auto& processes) { kill(processes[1], SIGKILL); });
}

TEST(RunWrappers, EndWithAProgram) {
  run_all("SIGKILL of a program", 128 + SIGKILL, [](int, const auto& processes) {
    for (const int process : processes)
      if (name_of(process) == "sleep") return void(kill(process, SIGKILL));
  });
}

// A shell that waits for a program follows its end. A program that ignores SIGINT is killed after the second one.
TEST(RunWrappers, EndAfterInterrupts) {
  for (const bool twice : {false, true}) {
    Process run{.command = {program_path(), "run", "-n", "2", "--", "sh", "-c",
                            twice ? "trap '' INT; sleep 77; exit $?" : "sleep 77; exit $?"},
                .variables = clean()};
    std::vector<int> started;
    bool again = twice;
    run.meanwhile = [&](const std::string& output, int launcher) {
      if (started.empty()) {
        std::vector<int> processes = tree_of(launcher);
        if (processes.size() != 4) return;
        started = processes;
        kill(launcher, SIGINT);
      } else if (again && output.find("passing it on") != std::string::npos) {
        again = false;
        kill(launcher, SIGINT);
      }
    };
    const Finished result = run_process(run);
    EXPECT_EQ(result.status, 128 + (twice ? SIGKILL : SIGINT)) << result.output;
    EXPECT_THAT(survivors(started), testing::IsEmpty()) << result.output;
  }
}

TEST(RunWrappers, LeavesNothingAfterAFailedRank) {
  Process run{.command = {program_path(), "run", "-n", "2", "--", "sh", "-c",
                          "if [ $COLOSSAL_RANK = 1 ]; then read line < $FIFO; exit 5; fi; "
                          "sh -c 'echo > $FIFO; exec sleep 77'; true"},
              .variables = clean({{"FIFO", testing::TempDir() + "/wrappers-fifo"}})};
  unlink(run.variables["FIFO"].c_str());
  ASSERT_EQ(run_process({.command = {"mkfifo", run.variables["FIFO"]}}).status, 0);
  std::vector<int> started;
  run.meanwhile = [&](const std::string&, int launcher) {
    const std::vector<int> processes = tree_of(launcher);
    if (processes.size() > started.size()) started = processes;
  };
  const Finished result = run_process(run);
  EXPECT_EQ(result.status, 5) << result.output;
  EXPECT_THAT(result.output, HasSubstr(") ended with status 5; ending the other ranks"));
  EXPECT_THAT(survivors(started), testing::IsEmpty()) << result.output;
}

TEST(RunWrappers, EndsWhatRanksLeaveBehind) {
  Process run{.command = {program_path(), "run", "-n", "2", "--", "sh", "-c", "sleep 77 & echo left $!"},
              .variables = clean()};
  std::vector<int> left;
  run.meanwhile = [&](const std::string& output, int) {
    if (!left.empty() || count(output, "left ") != 2 || output.back() != '\n') return;
    for (size_t at = output.find("left "); at != std::string::npos; at = output.find("left ", at + 1))
      left.push_back(std::atoi(output.c_str() + at + 5));
  };
  const Finished result = run_process(run);
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("colossal: the ranks have ended, but processes that they started still run; "));
  EXPECT_EQ(left.size(), 2u);
  EXPECT_THAT(survivors(left), testing::IsEmpty()) << result.output;
}

TEST(RunWrappers, LeavesDaemonsAlone) {
  Process run{.command = {program_path(), "run", "-n", "1", "--", "sh", "-c", "setsid sleep 77 & echo left $!"},
              .variables = clean()};
  const Finished result = run_process(run);
  EXPECT_EQ(result.status, 0) << result.output;
  const size_t at = result.output.find("left ");
  ASSERT_NE(at, std::string::npos) << result.output;
  const int daemon = std::atoi(result.output.c_str() + at + 5);
  EXPECT_FALSE(has_ended(daemon));
  kill(daemon, SIGKILL);
}

TEST(RunWrappers, ForgetsDaemonsThatHaveEnded) {
  const std::string end = testing::TempDir() + "/wrappers-end";
  unlink(end.c_str());
  Process run{.command = {program_path(), "run", "-n", "1", "--", "sh", "-c",
                          "(setsid true &); (setsid true &); echo begun; until [ -e $END ]; do sleep 0.05; done"},
              .variables = clean({{"END", end}})};
  int64_t left = -1;
  bool has_ended = false;
  run.meanwhile = [&, polls = 0](const std::string& output, int launcher) mutable {
    if (has_ended || output.find("begun") == std::string::npos) return;
    const std::vector<comm::ProcessEntry> all = comm::list_processes();
    const auto is_child = [launcher](const comm::ProcessEntry& entry) { return entry.parent == launcher; };
    left = std::count_if(all.begin(), all.end(), is_child) - 2;  // the guard and the rank still run
    has_ended = left == 0 || ++polls == 200;
    if (has_ended) std::ofstream(end) << "end";
  };
  const Finished result = run_process(run);
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_EQ(left, 0) << result.output;
}

/// Sends SIGTERM to the launcher, once, after both programs have joined the run.
void stop_once_joined(Process& run) {
  run.meanwhile = [has_asked = false](const std::string& output, int launcher) mutable {
    if (has_asked || count(output, " runs as ") != 2) return;
    has_asked = true;
    kill(launcher, SIGTERM);
  };
}

/// Programs that have joined the run, in a wrapper that dies of SIGTERM before them.
TEST(RunWrappers, WaitsForProgramsThatSave) {
  Process run{.command = {program_path(), "run", "-n", "2", "--", "sh", "-c", "\"$0\" ask shm; exit $?", comm_probe()},
              .variables = clean()};
  stop_once_joined(run);
  const Finished result = run_process(run);
  EXPECT_EQ(result.status, 128 + SIGTERM) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("rank 0 has saved"), Not(HasSubstr("ending the other ranks"))));
}

/// Returns the process ids after each " has worker ".
std::vector<int> workers(const std::string& output) {
  std::vector<int> found;
  const std::string before = " has worker ";
  for (size_t at = output.find(before); at != std::string::npos; at = output.find(before, at + 1))
    found.push_back(std::atoi(output.c_str() + at + before.size()));
  return found;
}

// A rank that saves after a signal needs its data loader until then.
TEST(RunWrappers, LeavesWorkersToTheirProgram) {
  for (const bool is_wrapped : {false, true}) {
    Process run{.command = {program_path(), "run", "-n", "2", "--"}, .variables = clean()};
    if (is_wrapped) run.command.insert(run.command.end(), {"sh", "-c", "\"$0\" \"$@\"; exit $?"});
    run.command.insert(run.command.end(), {comm_probe(), "ask_with_worker", "shm"});
    stop_once_joined(run);
    const Finished result = run_process(run);
    EXPECT_EQ(result.status, 128 + SIGTERM) << result.output;
    EXPECT_EQ(count(result.output, "the worker still runs"), 2) << result.output;
    EXPECT_EQ(workers(result.output).size(), 2u);
    EXPECT_THAT(survivors(workers(result.output)), testing::IsEmpty()) << result.output;
  }
}

TEST(RunWrappers, EndsWorkersWithKilledRanksAndLaunchers) {
  for (const bool kills_launcher : {false, true}) {
    Process run{.command = {program_path(), "run", "-n", "2", "--", comm_probe(), "ask_with_worker", "shm"},
                .variables = clean()};
    bool has_killed = false;
    run.meanwhile = [&](const std::string& output, int launcher) {
      if (has_killed || count(output, " runs as ") != 2) return;
      has_killed = true;
      kill(kills_launcher ? launcher : children_of(launcher).at(1), SIGKILL);
    };
    const Finished result = run_process(run);
    EXPECT_EQ(result.status, 128 + SIGKILL) << result.output;
    EXPECT_EQ(workers(result.output).size(), 2u) << result.output;
    EXPECT_THAT(survivors(workers(result.output)), testing::IsEmpty()) << result.output;
  }
}

}  // namespace
}  // namespace colossal::test::run_wrappers_test
