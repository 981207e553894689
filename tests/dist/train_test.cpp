// The program itself, on real ranks: train, kill, stop, resume, generate, export; under our launcher and under others.
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "colossal/base/error.h"
#include "colossal/checkpoint/checkpoint.h"
#include "colossal/report/metrics.h"
#include "support/process.h"

namespace colossal::test::train_test {
namespace {

using std::chrono::seconds;
using Words = std::vector<std::string>;

Finished run(const Words& command) { return run_process({.command = command, .limit = seconds(120)}); }

class TrainProgram : public testing::Test {
 protected:
  void SetUp() override {
    base = testing::TempDir() + "/program-" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(base);
    std::filesystem::create_directories(base);
    std::ofstream text(base + "/text.txt");
    for (int i = 0; i < 400; ++i) text << "line " << i * 37 % 101 << " of a text that can be learnt\n";
    write_config(12, 4);
  }
  void write_config(int steps, int save_every) const {
    std::ofstream config(base + "/config.toml");
    config << "[run]\nfolder = \"" << base << "/run\"\ndevice = \"cpu\"\nmatmul = \"mkl\"\n"
           << "[model]\nname = \"gpt2-tiny\"\nhidden = 32\nlayers = 2\npositions = 64\n"
           << "[data]\npath = \"" << base << "/text.txt\"\nsequence = 24\n"
           << "[optimizer]\nwarmup_steps = 2\n"
           << "[training]\nsteps = " << steps << "\nbatch_size = 8\nsave_every = " << save_every
           << "\nevaluate_batches = 1\nsample_tokens = 8\n";
  }
  Words train(const Words& flags = {}) const {
    Words words{COLOSSAL_BINARY, "train", base + "/config.toml"};
    words.insert(words.end(), flags.begin(), flags.end());
    return words;
  }
  std::vector<double> losses() const {
    std::vector<double> out;
    for (const auto& m : report::read_metrics(base + "/run/metrics.jsonl")) out.push_back(m.loss);
    return out;
  }
  void expect_same_curve(const std::vector<double>& got, const std::vector<double>& want) const {
    ASSERT_EQ(got.size(), want.size());
    // fp32, 12 steps
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4 * want[i]) << "step " << i + 1;
  }
  /// The last step of the metrics is in a checkpoint, and the report is there.
  void expect_all_is_saved() const {
    const auto steps = checkpoint::complete_steps(base + "/run/checkpoints");
    ASSERT_FALSE(steps.empty());
    EXPECT_EQ(steps.back(), static_cast<int64_t>(losses().size()));
    EXPECT_TRUE(std::filesystem::exists(base + "/run/report.html"));
  }
  /// Whether what was printed so far says that a step is done: no other line has a loss.
  static bool has_stepped(const std::string& output) { return output.find("  loss ") != std::string::npos; }
  std::string base;
};

TEST_F(TrainProgram, EveryLayoutAndTransportGivesTheSameCurve) {
  const Finished serial = run(train());
  ASSERT_EQ(serial.status, 0) << serial.output;
  const auto want = losses();
  EXPECT_EQ(want.size(), 12u);
  EXPECT_LT(want.back(), want.front());
  const std::vector<Words> layouts{
      {"--parallel.data=2"},
      {"--parallel.tensor=2", "--run.backend=gloo"},
      {"--parallel.data=2", "--parallel.tensor=2", "--run.backend=shm"},
      {"--parallel.data=4", "--run.backend=gloo"},
      {"--parallel.tensor=4", "--parallel.tensor.mode=2d", "--run.backend=shm"},
      {"--parallel.tensor=4", "--parallel.tensor.mode=2d", "--run.backend=gloo"},
      {"--parallel.tensor={size=8,mode=\"2.5d\",depth=2}", "--run.backend=shm"},
      {"--parallel.tensor={size=4,mode=\"2.5d\",depth=4}", "--run.backend=gloo"},
      {"--parallel.tensor={size=8,mode=\"3d\"}", "--run.backend=shm"},
      {"--parallel.tensor={size=8,mode=\"3d\"}", "--run.backend=gloo"},
      {"--parallel.data=2", "--run.backend=shm", "--parallel.zero=3"},
      {"--parallel.data=4", "--run.backend=gloo", "--parallel.zero=2"},
      {"--parallel.data=2", "--run.backend=gloo", "--parallel.zero=3", "--parallel.tensor=2"}};
  for (Words flags : layouts) {
    flags.push_back("--overwrite");
    const Finished outcome = run(train(flags));
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    SCOPED_TRACE(flags[0] + flags[1]);
    expect_same_curve(losses(), want);
  }
}

TEST_F(TrainProgram, StagesInProcessesOfTheirOwnGiveTheSameCurve) {
  const Finished serial = run(train());
  ASSERT_EQ(serial.status, 0) << serial.output;
  const auto want = losses();
  EXPECT_LT(want.back(), want.front());
  for (const char* backend : {"shm", "gloo"}) {
    const Finished outcome =
        run(train({"--parallel.data=2", "--parallel.pipeline=2", concat("--run.backend=", backend), "--overwrite"}));
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    SCOPED_TRACE(backend);
    expect_same_curve(losses(), want);
  }
}

TEST_F(TrainProgram, AKilledStageEndsAllAndIsNamed) {
  write_config(100000, 5);
  std::vector<int> ranks;
  std::chrono::steady_clock::time_point killed;
  const Finished result = run_process({.command = train({"--parallel.data=2", "--parallel.pipeline=2"}),
                                       .limit = seconds(100),
                                       .meanwhile = [&](const std::string&, int launcher) {
                                         if (!ranks.empty() || !checkpoint::latest(base + "/run/checkpoints")) return;
                                         ranks = children_of(launcher);
                                         killed = std::chrono::steady_clock::now();
                                         kill(ranks.at(2), SIGKILL);  // the second stage of the first replica
                                       }});
  ASSERT_EQ(ranks.size(), 4u) << result.output;
  EXPECT_LT(std::chrono::steady_clock::now() - killed, seconds(10));
  EXPECT_NE(result.status, 0);
  EXPECT_NE(result.output.find(concat("rank 2 of 4 (process ", ranks[2], ") was killed by SIGKILL")), std::string::npos)
      << result.output;
  for (const int rank : ranks) EXPECT_NE(kill(rank, 0), 0) << "a rank still runs";
}

TEST_F(TrainProgram, AKilledRankEndsAllAndNamesIt) {
  write_config(100000, 5);
  std::vector<int> ranks;
  std::chrono::steady_clock::time_point killed;
  const Finished result = run_process({.command = train({"--parallel.data=2"}),
                                       .limit = seconds(100),
                                       .meanwhile = [&](const std::string&, int launcher) {
                                         if (!ranks.empty() || !checkpoint::latest(base + "/run/checkpoints")) return;
                                         ranks = children_of(launcher);
                                         killed = std::chrono::steady_clock::now();
                                         kill(ranks.at(1), SIGKILL);
                                       }});
  ASSERT_EQ(ranks.size(), 2u) << result.output;
  EXPECT_LT(std::chrono::steady_clock::now() - killed, seconds(10));
  EXPECT_NE(result.status, 0);
  EXPECT_NE(result.output.find("was killed by SIGKILL"), std::string::npos) << result.output;
  for (const int rank : ranks) EXPECT_NE(kill(rank, 0), 0) << "a rank still runs";
  // The same command goes on from the newest checkpoint.
  const auto steps = checkpoint::complete_steps(base + "/run/checkpoints");
  const Finished resumed = run(train({"--parallel.data=2", "--resume", concat("--training.steps=", steps.back() + 2)}));
  EXPECT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_EQ(losses().size(), static_cast<size_t>(steps.back() + 2));
}

// No file may grow, memory without a name included: as good as a host whose memory is full.
TEST_F(TrainProgram, WithoutSharedMemoryTheMessageNamesTheOtherTransport) {
  Words words{"sh", "-c", "trap '' XFSZ; ulimit -f 64; exec \"$@\"", "sh"};
  const Words command = train({"--parallel.data=2"});
  words.insert(words.end(), command.begin(), command.end());
  const Finished refused = run(words);
  EXPECT_NE(refused.status, 0);
  EXPECT_NE(refused.output.find("bytes of shared memory"), std::string::npos) << refused.output;
  EXPECT_NE(refused.output.find("backend = \"gloo\""), std::string::npos) << refused.output;
  EXPECT_FALSE(std::filesystem::exists(base + "/run/checkpoints"));
  const Finished done = run(train({"--parallel.data=2", "--run.backend=gloo"}));  // the remedy works
  EXPECT_EQ(done.status, 0) << done.output;
}

TEST_F(TrainProgram, ASecondRunInTheFolderIsRefusedAndTheFirstGoesOn) {
  write_config(100000, 0);
  Finished second;
  bool asked = false;
  const Finished first =
      run_process({.command = train(), .limit = seconds(100), .meanwhile = [&](const std::string& output, int process) {
                     if (asked || !has_stepped(output)) return;
                     asked = true;
                     second = run(train());
                     kill(process, SIGTERM);
                   }});
  EXPECT_EQ(second.status, 1);
  EXPECT_NE(second.output.find("[run] another run is writing to " + base + "/run"), std::string::npos) << second.output;
  EXPECT_NE(first.output.find("run the same command with --resume"), std::string::npos) << first.output;
}

TEST_F(TrainProgram, MoreRanksThanAHostCanHoldAreRefusedAtOnce) {
  const Finished result = run(train({"--parallel.data=100000", "--training.batch_size=100000"}));
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.output.find("[launch] one host takes at most"), std::string::npos) << result.output;
}

// Before the first step there is nothing to save: a signal ends the process as it ends any other.
TEST_F(TrainProgram, ASignalEndsARankThatStillWaitsForTheOthers) {
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
                                         if (sent || !is_listening(port)) return;  // for the other rank
                                         sent = true;
                                         when = std::chrono::steady_clock::now();
                                         kill(process, SIGTERM);
                                       }});
  EXPECT_TRUE(sent) << result.output;
  EXPECT_EQ(result.status, 128 + SIGTERM) << result.output;
  EXPECT_LT(std::chrono::steady_clock::now() - when, seconds(10));
}

TEST_F(TrainProgram, SigtermCtrlCAndALostTerminalLoseNothing) {
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

// A rank that hangs never comes to the end of its step: the first signal waits for it, the second does not.
TEST_F(TrainProgram, CtrlCTwiceEndsAtOnce) {
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

// A rank whose process stops for a while: long before run.timeout somebody says who is waited for, and nothing ends.
TEST_F(TrainProgram, AStallIsReportedAndOver) {
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
  for (const auto& m : report::read_metrics(base + "/run/metrics.jsonl")) stalled += m.stall_seconds.value_or(0);
  EXPECT_GE(stalled, 1) << result.output;
  expect_all_is_saved();
}

TEST_F(TrainProgram, ATerminalThatGoesAwayLosesNothing) {
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

TEST_F(TrainProgram, GoesOnWhenNobodyReadsWhatItPrints) {
  write_config(400, 0);
  // The reader takes one line and leaves; what is printed later goes nowhere.
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

TEST_F(TrainProgram, FiftyKillsAtRandomMomentsLeaveACompleteCheckpoint) {
  write_config(1000000, 1);
  std::mt19937 random(7);
  const auto newest_step = [&]() -> int64_t {
    const auto newest = checkpoint::latest(base + "/run/checkpoints");
    return newest ? checkpoint::read_progress(*newest).at("step").get<int64_t>() : 0;
  };
  for (int i = 0; i < 50; ++i) {
    const int64_t before = newest_step();
    const Finished result =
        run_process({.command = train({"--resume", "--model.layers=1", "--training.evaluate_batches=0"}),
                     .limit = seconds(60),
                     .meanwhile = [&](const std::string&, int process) {
                       if (newest_step() == before) return;
                       usleep(random() % 40000);
                       kill(process, SIGKILL);
                     }});
    ASSERT_EQ(result.status, 128 + SIGKILL) << "start " << i << ": " << result.output;
    ASSERT_FALSE(result.late) << "start " << i << ": " << result.output;
    ASSERT_GT(newest_step(), before) << "kill " << i;
  }
}

TEST_F(TrainProgram, GeneratesFromARunAndFromItsExport) {
  ASSERT_EQ(run(train()).status, 0);
  const Words prompt{"--prompt", "line ", "--max-tokens", "20"};
  auto generate = [&](const std::string& from, const Words& flags) {
    Words words{COLOSSAL_BINARY, "generate", "--from", from};
    words.insert(words.end(), prompt.begin(), prompt.end());
    words.insert(words.end(), flags.begin(), flags.end());
    const Finished outcome = run(words);
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return outcome.output;
  };
  const std::string serial = generate(base + "/run", {"--timeout=60"});
  EXPECT_EQ(serial.rfind("line ", 0), 0u) << serial;
  EXPECT_EQ(generate(base + "/run", {"--parallel.tensor=2"}), serial);
  EXPECT_EQ(generate(base + "/run", {"--temperature=1", "--seed=4"}),
            generate(base + "/run", {"--temperature=1", "--seed=4"}));
  const Finished exported =
      run({COLOSSAL_BINARY, "export", "--from", base + "/run", "--to", base + "/hf", "--timeout", "60"});
  ASSERT_EQ(exported.status, 0) << exported.output;
  const Finished half =
      run({COLOSSAL_BINARY, "export", "--from", base + "/run", "--to", base + "/half", "--dtype", "bf16"});
  ASSERT_EQ(half.status, 0) << half.output;
  const auto bytes = [](const std::string& folder) {
    return static_cast<double>(std::filesystem::file_size(folder + "/model.safetensors"));
  };
  EXPECT_NEAR(bytes(base + "/half"), bytes(base + "/hf") / 2, 0.05 * bytes(base + "/hf"));
  EXPECT_TRUE(std::filesystem::exists(base + "/hf/model.safetensors"));
  const Finished narrow = run(train({"--precision.mode=bf16", "--precision.masters=false", "--training.steps=2",
                                     "--run.folder=" + base + "/narrow"}));
  ASSERT_EQ(narrow.status, 0) << narrow.output;
  const Finished narrow_export =
      run({COLOSSAL_BINARY, "export", "--from", base + "/narrow", "--to", base + "/narrow-hf"});
  EXPECT_EQ(narrow_export.status, 0) << narrow_export.output;
  // The export starts a training run: its first loss continues where the run ended.
  const Finished from = run(train({"--model.from=" + base + "/hf", "--model.hidden=0", "--model.layers=0",
                                   "--model.positions=0", "--run.folder=" + base + "/second"}));
  ASSERT_EQ(from.status, 0) << from.output;
  EXPECT_LT(report::read_metrics(base + "/second/metrics.jsonl").front().loss, losses().front() - 0.3);
}

TEST_F(TrainProgram, TheSampleStopsWhereTheTrainedPositionsDo) {
  const auto sampled = [&](const Words& flags) {  // bytes
    const Finished outcome = run(train(flags));
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    std::ifstream file(base + "/run/report.html");
    const std::string report{std::istreambuf_iterator<char>(file), {}};
    const size_t begin = report.find("<mark>line </mark>"), end = report.find("</pre>", begin);
    return begin == std::string::npos ? 0 : end - begin - std::string("<mark>line </mark>").size();
  };
  const Words sequence_24{"--overwrite", "--training.steps=60", "--optimizer.learning_rate=1e-2",
                          "--training.sample_prompt=line "};
  const auto with = [&](const char* tokens) {
    Words words = sequence_24;
    words.push_back(tokens);
    return words;
  };
  EXPECT_EQ(sampled(with("--training.sample_tokens=50")), 24u - 5u);  // the model has 64 positions
  EXPECT_EQ(sampled(with("--training.sample_tokens=10")), 10u);
}

TEST_F(TrainProgram, TheLogAfterTheSampleBeginsALineOfItsOwn) {
  const Finished outcome = run(train({"--training.steps=2", "--training.sample_prompt=line "}));
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  const size_t report = outcome.output.find("report: "), sample = outcome.output.find("\nline ");
  ASSERT_NE(sample, std::string::npos) << outcome.output;
  ASSERT_LT(sample, report) << outcome.output;
  const size_t begin = outcome.output.rfind('\n', report) + 1;  // "03:12:02 I  rank 0  report: "
  EXPECT_EQ(outcome.output.substr(begin + 8, 4), " I  ") << outcome.output;
}

TEST_F(TrainProgram, RefusesBadInputBeforeAnyRankStarts) {
  auto refusal = [&](const Words& flags) {
    const Finished outcome = run(train(flags));
    EXPECT_NE(outcome.status, 0);
    EXPECT_EQ(outcome.output.find("terminate"), std::string::npos) << outcome.output;
    return outcome.output;
  };
  EXPECT_NE(refusal({"--paralel.tensor=2"}).find("did you mean `parallel.tensor`"), std::string::npos);
  EXPECT_NE(refusal({"--training.steps=many"}).find("training.steps"), std::string::npos);
  EXPECT_NE(refusal({"--training.steps=0"}).find("training.steps"), std::string::npos);
  EXPECT_NE(refusal({"--parallel.data=3"}).find("the nearest are 6 and 9"), std::string::npos);
  EXPECT_NE(refusal({"--parallel.pipeline={size=2,schedule=\"interleaved\",micro_batches=1}"})
                .find("interleaved needs micro_batches that divide by the 2 ranks"),
            std::string::npos);
  EXPECT_NE(refusal({"--run.device=cuda"}).find("cuda needs a CUDA build"), std::string::npos);
}

TEST_F(TrainProgram, ShortensAWarmUpThatAFlagLeavesNoRoomFor) {
  const Finished outcome = run(train({"--parallel.data=2", "--training.steps=1"}));
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  const std::string notice =
      "optimizer.warmup_steps = 2 is more than the 1 steps of this run: the warm-up is shortened to 0";
  const size_t first = outcome.output.find(notice);
  ASSERT_NE(first, std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find(notice, first + 1), std::string::npos) << outcome.output;
}

TEST_F(TrainProgram, AKillBeforeTheFirstNewCheckpointLeavesTheOverwrittenRun) {
  ASSERT_EQ(run(train({"--parallel.data=2"})).status, 0);
  const Finished killed = run_process(
      {.command = train({"--parallel.data=2", "--overwrite", "--training.steps=100000", "--training.save_every=0"}),
       .limit = seconds(100),
       .meanwhile = [&](const std::string& output, int process) {
         if (has_stepped(output)) kill(process, SIGKILL);
       }});
  ASSERT_EQ(killed.status, 128 + SIGKILL) << killed.output;
  const Finished exported = run({COLOSSAL_BINARY, "export", "--from", base + "/run", "--to", base + "/hf"});
  EXPECT_NE(exported.output.find("bring the earlier run back with `colossal train --resume`"), std::string::npos)
      << exported.output;
  const Finished resumed = run(train({"--resume", "--training.steps=13"}));
  EXPECT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("resumed from " + base + "/run/checkpoints/step-000012"), std::string::npos)
      << resumed.output;
  EXPECT_EQ(losses().size(), 13u);
  const Finished named = run(train({"--resume-from", "12", "--training.steps=13"}));
  EXPECT_EQ(named.status, 0) << named.output;
  EXPECT_NE(named.output.find("resumed from " + base + "/run/checkpoints/step-000012"), std::string::npos)
      << named.output;
}

TEST_F(TrainProgram, SaysThatOneReplicaSharesNothingOut) {
  const Finished outcome = run(train({"--parallel.zero=2", "--training.steps=2", "--optimizer.warmup_steps=0"}));
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("parallel.zero = 2 shares nothing out"), std::string::npos) << outcome.output;
}

TEST_F(TrainProgram, AnErrorInTheRanksIsSaidOnce) {
  const Finished outcome = run(train({"--parallel.data=2", "--data.path=" + base + "/absent.txt"}));
  EXPECT_EQ(outcome.status, 1);
  const size_t first = outcome.output.find("absent.txt");
  ASSERT_NE(first, std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find("absent.txt", first + 10), std::string::npos) << outcome.output;
}

TEST_F(TrainProgram, WhatEveryRankRefusesIsSaidOnce) {
  std::filesystem::create_directories(base + "/held/checkpoints/step-000007");
  std::ofstream(base + "/held/checkpoints/step-000007/manifest.json") << "damaged";
  std::ofstream(base + "/short.txt") << "short";
  const std::vector<std::pair<Words, std::string>> refused{
      {{"--data.path=" + base + "/absent.txt"}, "absent.txt"},
      {{"--data.path=" + base + "/short.txt"}, "shorter than one sequence"},
      {{"--data.tokenizer=" + base + "/absent.json"}, "absent.json"},
      {{"--model.from=" + base + "/absent", "--model.hidden=0", "--model.layers=0", "--model.positions=0"},
       "absent/config.json"},
      {{"--model.name=gpt3-tiny"}, "unknown preset"},
      {{"--model.layers=1000000000"}, "does not fit"},
      {{"--model.hidden=4611686018427387904"}, "model.hidden"},
      {{"--model.heads=5"}, "hidden must divide by heads"},
      {{"--data.sequence=65"}, "got 65 of 64"},
      {{"--parallel.data=1", "--parallel.tensor={size=4,mode=\"2d\"}", "--model.hidden=33", "--model.heads=3"}, "33"},
      {{"--optimizer.groups.parameters=[\"absent\"]"}, "no parameter belongs to group absent"},
      {{"--run.folder=" + base + "/held"}, "already holds"},
      {{"--run.folder=" + base + "/text.txt/run"}, "cannot create the folder"},
  };
  for (const auto& [flags, message] : refused) {
    Words words{"--parallel.data=4"};
    words.insert(words.end(), flags.begin(), flags.end());
    const std::string& flag = flags.back();
    const Finished outcome = run(train(words));
    EXPECT_EQ(outcome.status, 1) << flag << ": " << outcome.output;
    EXPECT_NE(outcome.output.find(message), std::string::npos) << flag << ": " << outcome.output;
    size_t said = 0;
    for (size_t at = outcome.output.find("colossal: ["); at != std::string::npos;
         at = outcome.output.find("colossal: [", at + 1))
      ++said;
    EXPECT_EQ(said, 1u) << flag << ": " << outcome.output;
  }
}

TEST_F(TrainProgram, RunsUnderSlurmAndOpenMpiVariables) {
  const std::vector<std::pair<std::string, Words>> launchers{{"SLURM_", {"PROCID", "STEP_NUM_TASKS", "LOCALID"}},
                                                             {"OMPI_COMM_WORLD_", {"RANK", "SIZE", "LOCAL_RANK"}}};
  for (const auto& [prefix, names] : launchers) {
    const std::string port = std::to_string(free_port());
    std::filesystem::remove_all(base + "/run");
    std::vector<Process> ranks;
    for (int r = 0; r < 2; ++r) {
      const std::string rank = std::to_string(r);
      ranks.push_back({.command = train({"--parallel.data=2"}),
                       .variables = {{prefix + names[0], rank},
                                     {prefix + names[1], "2"},
                                     {prefix + names[2], rank},
                                     {"MASTER_ADDR", "127.0.0.1"},
                                     {"MASTER_PORT", port}}});
    }
    for (const Finished& rank : run_processes(ranks)) EXPECT_EQ(rank.status, 0) << prefix << rank.output;
    EXPECT_EQ(losses().size(), 12u);
  }
}

TEST_F(TrainProgram, RunsUnderTorchrun) {
  const std::string torchrun = std::string(COLOSSAL_SOURCE_DIR) + "/.venv/bin/torchrun";
  if (!std::filesystem::exists(torchrun)) GTEST_SKIP() << torchrun << " is absent";
  Words words{torchrun, "--standalone", "--nproc-per-node=2", "--no-python"};
  for (const auto& word : train({"--parallel.tensor=2"})) words.push_back(word);
  const Finished outcome = run(words);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(losses().size(), 12u);
}

TEST_F(TrainProgram, RunsUnderMpirun) {
  if (find_program("mpirun").empty()) GTEST_SKIP() << "mpirun is not installed";
  Words words{"mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"};
  for (const auto& word : train({"--parallel.data=2"})) words.push_back(word);
  const Finished outcome = run(words);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(losses().size(), 12u);
}

}  // namespace
}  // namespace colossal::test::train_test
