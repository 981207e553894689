// `colossal train` when it is stopped, delayed or loses its terminal.
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "colossal/report/metrics.h"
#include "dist/train_program.h"
#include "support/paths.h"

namespace colossal::test::train_stops_test {
namespace {

// Before the first step there is nothing to save, so a signal ends the process as it ends any other.
TEST_F(TrainProgram, EndsAWaitingRankAfterASignal) {
  const int port = free_port();
  bool sent = false;
  std::chrono::steady_clock::time_point when;
  const Finished result = run_process({.command = train({"--parallel.data=2"}),
                                       .variables = {{"RANK", "0"},
                                                     {"WORLD_SIZE", "2"},
                                                     {"MASTER_ADDR", "127.0.0.1"},
                                                     {"MASTER_PORT", std::to_string(port)}},
                                       .limit = seconds(100),
                                       .meanwhile = [&](const std::string&, int process) {
                                         if (sent || !is_listening(port)) return;  // rank 0 waits for the other rank
                                         sent = true;
                                         when = std::chrono::steady_clock::now();
                                         kill(process, SIGTERM);
                                       }});
  EXPECT_TRUE(sent) << result.output;
  EXPECT_EQ(result.status, 128 + SIGTERM) << result.output;
  EXPECT_LT(std::chrono::steady_clock::now() - when, seconds(10));
}

TEST_F(TrainProgram, SavesAfterSigtermCtrlCAndHangup) {
  write_config(100000, 0);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    bool sent = false;
    const Finished result = run_process({.command = train({"--parallel.data=2", "--resume"}),
                                         .limit = seconds(100),
                                         .meanwhile = [&](const std::string& output, int launcher) {
                                           if (sent || !has_stepped(output)) return;
                                           sent = true;
                                           kill(launcher, signal);
                                         }});
    EXPECT_EQ(result.status, 128 + signal) << result.output;
    EXPECT_NE(result.output.find("--resume"), std::string::npos) << result.output;
    expect_all_is_saved();
    std::filesystem::remove(base + "/run/report.html");
  }
}

// `timeout` passes a signal on to its process group, which has got the signal already: the ranks must not take the copy
// for a second request.
TEST_F(TrainProgram, SavesInsideAWrapperThatRepeatsSignals) {
  write_config(100000, 0);
  Words words{program_path(), "run", "-n", "2", "--", "timeout", "100"};
  for (const std::string& word : train({"--parallel.data=2"})) words.push_back(word);
  bool sent = false;
  const Finished result =
      run_process({.command = words, .limit = seconds(100), .meanwhile = [&](const std::string& output, int launcher) {
                     if (sent || !has_stepped(output)) return;
                     sent = true;
                     kill(launcher, SIGTERM);
                   }});
  EXPECT_EQ(result.status, 128 + SIGTERM) << result.output;
  EXPECT_NE(result.output.find("--resume"), std::string::npos) << result.output;
  expect_all_is_saved();
}

// A rank that hangs never finishes its step: the first signal waits for it, the second does not.
TEST_F(TrainProgram, EndsAtOnceAfterASecondCtrlC) {
  write_config(100000, 0);
  std::vector<int> ranks;
  bool again = false;
  const Finished result = run_process({.command = train({"--parallel.data=2"}),
                                       .limit = seconds(100),
                                       .meanwhile = [&](const std::string& output, int launcher) {
                                         if (ranks.empty() && has_stepped(output)) {
                                           ranks = children_of(launcher);
                                           kill(ranks.at(1), SIGSTOP);
                                           kill(launcher, SIGINT);
                                         } else if (!again && output.find("passing it on") != std::string::npos) {
                                           again = true;
                                           kill(launcher, SIGINT);
                                         }
                                       }});
  EXPECT_TRUE(again) << result.output;
  EXPECT_FALSE(result.late) << result.output;
  EXPECT_EQ(result.status, 128 + SIGINT) << result.output;
  EXPECT_EQ(result.output.find("--resume"), std::string::npos) << result.output;
  for (const int rank : ranks) EXPECT_NE(kill(rank, 0), 0) << "a rank still runs";
}

// The process of a rank is stopped for a while. Long before run.timeout a message names the awaited rank, and the run
// continues.
TEST_F(TrainProgram, ReportsAStallAndItsEnd) {
  write_config(100000, 0);
  std::vector<int> ranks;
  bool goes_on = false, ended = false;
  const Finished result =
      run_process({.command = train({"--parallel.data=2", "--run.stall_notice=1"}),
                   .limit = seconds(100),
                   .meanwhile = [&](const std::string& output, int launcher) {
                     if (ranks.empty() && has_stepped(output)) {
                       ranks = children_of(launcher);
                       kill(ranks.at(1), SIGSTOP);
                     } else if (!goes_on && output.find("waiting: ") != std::string::npos) {
                       goes_on = true;
                       kill(ranks.at(1), SIGCONT);
                     } else if (!ended && output.find("waiting: went on after ") != std::string::npos) {
                       ended = true;
                       kill(launcher, SIGTERM);
                     }
                   }});
  EXPECT_TRUE(ended) << result.output;
  EXPECT_EQ(result.status, 128 + SIGTERM) << result.output;
  double stalled = 0;
  for (const double seconds : report::read_metrics(base + "/run/metrics.jsonl").values("stall_seconds", 0))
    stalled += seconds;
  EXPECT_GE(stalled, 1) << result.output;
  expect_all_is_saved();
}

TEST_F(TrainProgram, SavesWhenTheTerminalCloses) {
  write_config(100000, 0);
  int terminal = -1;
  const pid_t launcher = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (launcher == 0) {
    for (const int signal : {SIGINT, SIGHUP}) ::signal(signal, SIG_DFL);
    Words words = train({"--parallel.data=2"});
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  ASSERT_GT(launcher, 0);
  std::string output;
  char buffer[4096];
  for (ssize_t count; !has_stepped(output) && (count = read(terminal, buffer, sizeof buffer)) > 0;)
    output.append(buffer, count);
  close(terminal);
  int status = 0;
  pid_t ended = 0;
  for (int i = 0; i < 5000 && ended == 0; ++i, usleep(20000)) ended = waitpid(launcher, &status, WNOHANG);
  if (ended != launcher) kill(launcher, SIGKILL);
  ASSERT_EQ(ended, launcher) << output;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGHUP) << status << output;
  expect_all_is_saved();
}

TEST_F(TrainProgram, ContinuesWithoutAReaderOfItsOutput) {
  write_config(400, 0);
  // The reader takes one line and exits; later output is lost.
  Words words{"sh", "-c", "{ \"$@\"; echo $? > \"$0\"; } 2>&1 | head -n 1", base + "/status"};
  for (const auto& word : train({"--parallel.data=2"})) words.push_back(word);
  const Finished result = run(words);
  EXPECT_FALSE(result.late) << result.output;
  std::ifstream file(base + "/status");
  int status = -1;
  file >> status;
  EXPECT_EQ(status, 0) << result.output;
  EXPECT_EQ(losses().size(), 400u);
  expect_all_is_saved();
}

}  // namespace
}  // namespace colossal::test::train_stops_test
