// `colossal train` of a run that draws its own answers, when all its processes are killed or its disk is full: the
// continued run has the weights, records and metrics of the undisturbed one, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "dist/train_program.h"

namespace colossal::test::rollout_kills_test {
namespace {

using std::chrono::milliseconds;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCanLoadInFront = false;  // sanitizers must be loaded first
#else
constexpr bool kCanLoadInFront = true;
#endif
constexpr char kMark[] = "COLOSSAL_TEST_MARK";
constexpr int kSteps = 5, kAnswers = 16;  // 16 answers per step

std::string bytes_of_file(const std::string& path) { return read_file(path, int64_t{1} << 30); }

/// Returns the running processes that have a variable with this value.
std::vector<int> processes_with(const std::string& variable) {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "environ");  // empty for a process that has ended, or of another user
    for (std::string one; std::getline(file, one, '\0');)
      if (one == variable) found.push_back(std::stoi(entry.path().filename()));
  }
  return found;
}

class RolloutKills : public TrainProgram {
 protected:
  void SetUp() override {
    TrainProgram::SetUp();
    std::ofstream prompts(base + "/prompts.jsonl"), command(base + "/score.sh"), config(base + "/config.toml");
    for (int i = 0; i < 40; ++i) prompts << R"({"prompt": "say )" << i * 7 % 10 << R"(:", "pattern": "[a-m]"})" << "\n";
    // Each answer takes 20 ms, so a step waits for scores.
    command << "while read -r line; do id=${line##*'\"id\":\"'}; id=${id%%'\"'*}\necho $id >> \"$CALLS\"\nsleep 0.02\n"
            << "echo \"{\\\"id\\\": \\\"$id\\\", \\\"score\\\": $((${#line} % 3))}\"\ndone\n";
    // The cache has room for a few answers at once, so they are complete one after another.
    config << "[run]\ndevice = \"cpu\"\nmatmul = \"mkl\"\n"
           << "[model]\nname = \"llama-tiny\"\nhidden = 32\nlayers = 1\nheads = 4\nkv_heads = 4\nffn = 32\n"
           << "[data]\npath = \"" << base << "/prompts.jsonl\"\nsequence = 40\nheld_out = 0\n"
           << "[optimizer]\nwarmup_steps = 0\nlearning_rate = 0.005\n[alignment]\nmethod = \"grpo\"\n"
           << "[reward]\nverifiers = [\"regex\"]\ncommand = [\"sh\", \"" << base << "/score.sh\"]\n"
           << "[rollout]\nprompts = 4\nanswers = 4\nmax_tokens = 24\ncache = 40000\n"
           << "[training]\nsteps = " << kSteps << "\nsave_every = 1\nevaluate_batches = 0\nsample_tokens = 0\n";
  }
  std::string folder(const std::string& name) const { return base + "/" + name; }
  std::string checkpoints(const std::string& name) const { return folder(name) + "/checkpoints"; }
  std::string mark(const std::string& name) const { return folder(name) + "!"; }
  /// Returns the process that trains in the folder `name`.
  Process training(const std::string& name, Words flags) const {
    flags.insert(flags.begin(), "--run.folder=" + folder(name));
    return {.command = train(flags),
            .variables = {{"CALLS", folder(name) + ".calls"}, {kMark, mark(name)}, {"OMP_NUM_THREADS", "1"}},
            .limit = seconds(120)};
  }
  void expect_end(const std::string& name, const Words& flags) const {
    const Finished finished = run_process(training(name, flags));
    EXPECT_EQ(finished.status, 0) << finished.output;
  }
  std::vector<std::string> calls(const std::string& name) const {
    std::ifstream file(folder(name) + ".calls");
    std::vector<std::string> ids;
    for (std::string id; std::getline(file, id);) ids.push_back(id);
    return ids;
  }

  /// Starts the run, kills all its processes when `is_time`, and expects that nothing of it is left.
  void kill_when(const std::string& name, const Words& flags, const std::function<bool()>& is_time) const {
    Process process = training(name, flags);
    std::vector<std::string> mapped;
    bool is_killed = false;
    process.meanwhile = [&](const std::string&, int launcher) {
      if (is_killed || !is_time()) return;
      is_killed = true;
      for (const int rank : children_of(launcher))
        for (const std::string& file : mapped_files(rank)) mapped.push_back(file);
      kill(-launcher, SIGKILL);
    };
    const Finished finished = run_process(process);
    ASSERT_TRUE(is_killed) << finished.output;
    ASSERT_EQ(finished.status, 128 + SIGKILL) << finished.output;
    EXPECT_THAT(mapped, Each(Not(StartsWith("/dev/shm/")))) << "memory with a name would be left";
    const std::string variable = concat(kMark, "=", mark(name));
    for (int i = 0; i < 500 && !processes_with(variable).empty(); ++i) std::this_thread::sleep_for(milliseconds(10));
    EXPECT_THAT(processes_with(variable), IsEmpty()) << "workers of the command, too, must end";
  }
  /// Kills the run when the command has been given `count` more answers: draws and scores of a step overlap.
  void kill_in_scoring(const std::string& name, const Words& flags, size_t count) const {
    const size_t before = calls(name).size();
    kill_when(name, flags, [&] { return calls(name).size() >= before + count; });
  }
  /// Kills the run when it writes the checkpoint after the next one.
  void kill_in_save(const std::string& name, const Words& flags) const {
    const auto entries = [&] {
      std::set<std::string> names;
      std::error_code ignored;
      for (const auto& entry : std::filesystem::directory_iterator(checkpoints(name), ignored))
        names.insert(entry.path().filename());
      return names;
    };
    const auto newest = [&] {
      const auto steps = checkpoint::complete_steps(checkpoints(name));
      return steps.empty() ? 0 : steps.back();
    };
    const int64_t before = newest();
    kill_when(name, flags, [&] {
      if (newest() == before) return false;
      const std::set<std::string> known = entries();
      for (int i = 0; i < 20000 && entries() == known; ++i) std::this_thread::sleep_for(std::chrono::microseconds(100));
      return true;
    });
  }

  /// Returns the metrics of a run, without those of time and memory.
  std::string metrics(const std::string& name) const {
    std::istringstream lines(bytes_of_file(folder(name) + "/metrics.jsonl"));
    std::string all;
    for (std::string line; std::getline(lines, line);) {
      nlohmann::json members = nlohmann::json::parse(line);
      for (auto at = members.begin(); at != members.end();) {
        const std::string& member = at.key();
        const bool is_time = member.ends_with("seconds") || member == "tokens_per_second" || member == "mfu";
        at = is_time || member == "peak_bytes" ? members.erase(at) : std::next(at);
      }
      all += members.dump() + "\n";
    }
    return all;
  }
  /// Returns what `colossal rollouts` prints of a run.
  std::string rollouts(const std::string& name, int first = 1) const {
    std::string all = run({program_path(), "rollouts", folder(name)}).output;
    if (first > 1) all.clear();
    for (int step = first; step <= kSteps; ++step)
      for (const Words& flags : {Words{}, Words{"--json"}}) {
        Words words{program_path(), "rollouts", folder(name), "--step", std::to_string(step)};
        words.insert(words.end(), flags.begin(), flags.end());
        if (step < kSteps && flags.empty()) continue;
        const Finished printed = run(words);
        EXPECT_EQ(printed.status, 0) << printed.output;
        all += printed.output;
      }
    return all;
  }
  /// Returns the tensors of the newest checkpoint, as its files have them.
  std::map<std::string, std::string> tensors(const std::string& name) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoint::latest(checkpoints(name)).value()))
      if (entry.path().extension() == ".safetensors") files[entry.path().filename()] = bytes_of_file(entry.path());
    return files;
  }
  void expect_equal(const std::string& name, const std::string& whole, int first_record = 1) const {
    EXPECT_EQ(metrics(name), metrics(whole));
    EXPECT_EQ(rollouts(name, first_record), rollouts(whole, first_record));
    EXPECT_FALSE(tensors(whole).empty());
    EXPECT_TRUE(tensors(name) == tensors(whole));
  }
  /// Expects that a killed run has asked again for those answers alone that its two workers had at each kill.
  void expect_few_calls(const std::string& name, size_t kills) const {
    const std::vector<std::string> all = calls(name);
    EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), static_cast<size_t>(kSteps * kAnswers));
    EXPECT_LE(all.size(), kSteps * kAnswers + 2 * kills);
  }
};

TEST_F(RolloutKills, ContinueBitForBit) {
  expect_end("whole", {});
  EXPECT_THAT(rollouts("whole"), Not(HasSubstr(base))) << "outputs can be compared";
  kill_in_scoring("parts", {}, 5);
  EXPECT_FALSE(checkpoint::latest(checkpoints("parts"))) << "the first step was not complete";
  kill_in_save("parts", {"--resume"});
  expect_end("parts", {"--resume"});
  expect_equal("parts", "whole");
  expect_few_calls("parts", 2);
  // Another layout goes on.
  expect_end("parts", {"--resume", "--parallel.data=2", concat("--training.steps=", kSteps + 1)});
  EXPECT_EQ(report::read_metrics(folder("parts") + "/metrics.jsonl").size(), kSteps + 1u);
}

TEST_F(RolloutKills, ContinueBitForBitOnTwoRanksWithAnswersDrawnAhead) {
  const Words flags{"--parallel.data=2", "--rollout.ahead=1"};
  const Words again{"--parallel.data=2", "--rollout.ahead=1", "--resume"};
  expect_end("whole", flags);
  kill_in_scoring("parts", flags, 1);
  kill_in_scoring("parts", again, 36);
  kill_in_save("parts", again);
  expect_end("parts", again);
  expect_equal("parts", "whole");
  expect_few_calls("parts", 3);
}

// The disk has no space for rollouts from the start; checkpoints find some.
TEST_F(RolloutKills, DrawAgainWhatAFullDiskDidNotStore) {
  if (!kCanLoadInFront) GTEST_SKIP() << "this program is sanitized";
  expect_end("whole", {});
  Process process = training("full", {});
  process.variables["LD_PRELOAD"] = faulty_disk();
  process.variables["COLOSSAL_FAULTY_DISK"] = "rollouts";
  std::string said;
  process.meanwhile = [&](const std::string& output, int launcher) {
    said = output;
    if (output.find("step 3/") != std::string::npos) kill(-launcher, SIGKILL);
  };
  EXPECT_EQ(run_process(process).status, 128 + SIGKILL) << said;
  EXPECT_THAT(said, HasSubstr("rollouts of step 3 are not stored: cannot write to " + folder("full")));
  EXPECT_THAT(said, HasSubstr("No space left on device; free some space; the run continues"));
  const int64_t saved = checkpoint::complete_steps(checkpoints("full")).back();
  ASSERT_LT(saved, kSteps);
  expect_end("full", {"--resume"});
  expect_equal("full", "whole", static_cast<int>(saved) + 1);
}

}  // namespace
}  // namespace colossal::test::rollout_kills_test
