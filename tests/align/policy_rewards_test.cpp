// Runs whose answers get their scores from a command: a fault ends the run before the update with a message, and a
// repaired command continues it with the scores that it had.
#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <sstream>

#include "align/policy_runs.h"
#include "colossal/checkpoint/checkpoint.h"
#include "support/thrown_message.h"

namespace colossal::align::policy_rewards_test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

const std::string kSay = "echo \"{\\\"id\\\": \\\"$id\\\", \\\"score\\\": $score, \\\"scores\\\": {\\\"size\\\": 2}}\"";

class PolicyRewards : public PolicyRuns {
 protected:
  void SetUp() override {
    PolicyRuns::SetUp();
    write_command();
  }
  /// Writes the command: a program of sh that writes each id to a file, does `work`, and prints a score.
  void write_command(const std::string& work = "") const {
    write_file(script_, concat("while read -r line; do id=${line##*'\"id\":\"'}; id=${id%%'\"'*}\necho $id >> ", calls_,
                               "\nscore=$((${#line} % 3))\n", work, "\n", kSay, "\ndone\n"));
  }
  /// A command that does `work` for one answer of a step.
  void write_fault(const std::string& work, int step = 2) const {
    write_command(concat("case $id in ", step, "/1/2)\n", work, ";;\nesac"));
  }
  run::Config scored(const std::string& name, const std::vector<std::string>& flags = {}) const {
    return policy(name, test::joined({"--reward.verifiers=", "--reward.command=sh," + script_, "--reward.workers=1",
                                      "--training.save_every=1", "--training.steps=2"},
                                     flags));
  }
  /// Returns how often the command was given each answer, and begins anew.
  std::map<std::string, int> take_calls() const {
    std::map<std::string, int> counts;
    std::istringstream words(test::read_all(calls_));
    for (std::string id; words >> id;) ++counts[id];
    std::filesystem::remove(calls_);
    return counts;
  }
  /// Expects that the run ends in the step `step` before its update, and returns the message.
  static std::string expect_end(const run::Config& c, int64_t step = 2) {
    const std::string message = test::thrown_message([&] { train(c, train::Start::New); });
    const std::string lines = c.run.folder + "/metrics.jsonl";
    const size_t steps = std::filesystem::exists(lines) ? report::read_metrics(lines).size() : 0;
    EXPECT_EQ(steps, static_cast<size_t>(step - 1)) << message;
    const std::vector<int64_t> saved = checkpoint::complete_steps(c.run.folder + "/checkpoints");
    EXPECT_EQ(saved.empty() ? 0 : saved.back(), step - 1) << message;
    return message;
  }
  /// Continues a run with a good command, and expects the results of `whole`.
  void expect_continuation(const run::Config& c, const run::Config& whole,
                           const std::map<std::string, at::Tensor>& want) const {
    write_command();
    const auto got = train(c, train::Start::Resume);
    for (const auto& [name, value] : want) EXPECT_TRUE(at::equal(got.at(name), value)) << name;
    EXPECT_EQ(answers(c), answers(whole));
    EXPECT_EQ(metric(c, "reward"), metric(whole, "reward"));
  }

  const std::string script_ = folder_ / "score.sh", calls_ = folder_ / "calls";
};

/// What a command does for one answer, and what the message says.
struct Fault {
  std::string name, work;
  std::vector<std::string> said;
  std::vector<std::string> flags{};
  int step = 2;
};

const std::vector<Fault>& faults() {
  static const std::vector<Fault> all{
      {"exit", "echo 'no licence' >&2; exit 3", {"ended with status 3", "its stderr ended with:\nno licence"}},
      {"first", "exit 3", {"ended with status 3"}, {}, 1},
      {"raise", "exec python3 -c 'raise ValueError(\"no number\")'", {"ended with status 1", "ValueError: no number"}},
      {"hang",
       "sleep 30",
       {"took longer than 0.5 seconds for an answer, in 2 tries"},
       {"--reward.timeout=0.5", "--reward.retries=1"}},
      {"flood", "yes | tr -d '\\n'", {"printed a line above 1048576 bytes"}},
      {"nan", "score=NaN", {"JSON has no NaN"}},
      {"text", "score='\"good\"'", {"the score must be a finite number"}},
      {"words", "echo loading", {"each line must be a JSON object: got loading"}},
      {"wrong", "id=9/9/9", {"answered an id that it was not given: ", "9/9/9"}},
      {"repeated", kSay, {"answered an id again: "}}};
  return all;
}

TEST_F(PolicyRewards, EndBeforeTheUpdateAndContinueWhenRepaired) {
  const run::Config whole = scored("whole");
  const auto want = train(whole);
  EXPECT_EQ(take_calls().size(), 32u);
  for (const Fault& fault : faults()) {
    SCOPED_TRACE(fault.name);
    write_fault(fault.work, fault.step);
    const run::Config c = scored(fault.name, fault.flags);
    const std::string message = expect_end(c, fault.step), id = concat(fault.step, "/1/2");
    EXPECT_THAT(message,
                AllOf(HasSubstr("[reward] the command `sh " + script_ + "` "),
                      HasSubstr(concat(c.run.folder, "/rollouts/step-00000", fault.step, "/start-0001-rank"))));
    for (const std::string& part : fault.said) EXPECT_THAT(message, HasSubstr(part));
    if (fault.name != "repeated") EXPECT_THAT(message, HasSubstr("\"id\":\"" + id + "\""));
    std::map<std::string, int> calls = take_calls();
    EXPECT_EQ(calls.at(id), fault.name == "hang" ? 2 : 1);
    expect_continuation(c, whole, want);
    for (const auto& [one, count] : take_calls()) calls[one] += count;
    EXPECT_EQ(calls.size(), 32u);
    int again = 0;
    for (const auto& [one, count] : calls) again += one == id ? 0 : count - 1;
    EXPECT_LE(again, fault.name == "repeated" ? 1 : 0) << "answers that had a score were scored again";
  }
}

TEST_F(PolicyRewards, NameACommandThatIsMissing) {
  const run::Config whole = scored("whole");
  const auto want = train(whole);
  const std::string program = folder_ / "scorer";
  const std::vector<std::string> flags{"--reward.command=" + program};
  const run::Config c = scored("missing", flags);
  EXPECT_THAT(expect_end(c, 1),
              AllOf(HasSubstr("[reward] the command `" + program + "` cannot be started"), HasSubstr("No such file")));
  write_file(program, "#!/bin/sh\nexec sh " + script_ + "\n");
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  expect_continuation(c, whole, want);
}

// More time and tries than those of the first start change no score.
TEST_F(PolicyRewards, SurviveACommandThatDoesNotRead) {
  const run::Config whole = scored("whole");
  const auto want = train(whole);
  write_file(script_, "sleep 30\n");
  const run::Config c = scored("deaf", {"--reward.timeout=0.1", "--reward.retries=0", "--reward.workers=2"});
  EXPECT_THAT(expect_end(c, 1), HasSubstr("took longer than 0.1 seconds for an answer, in 1 tries"));
  expect_continuation(scored("deaf", {"--reward.timeout=5", "--reward.retries=1"}), whole, want);
}

TEST_F(PolicyRewards, KeepScoresIfTheCommandGetsMoreTime) {
  const std::string late = folder_ / "late";  // the command hangs once
  write_fault(concat("[ -e ", late, " ] || { touch ", late, "; sleep 30; }"));
  const run::Config hasty = scored("patient", {"--reward.timeout=0.5", "--reward.retries=0"});
  EXPECT_THAT(expect_end(hasty), HasSubstr("took longer than 0.5 seconds"));
  const std::map<std::string, int> before = take_calls();
  ASSERT_GT(before.size(), 17u) << "step 2 had scores before the fault";
  train(scored("patient", {"--reward.timeout=5", "--reward.workers=2"}), train::Start::Resume);
  for (const auto& [id, count] : take_calls()) EXPECT_EQ(count + (before.contains(id) ? 1 : 0), id == "2/1/2" ? 2 : 1);
}

// The score of a command is stored when it arrives, although that of a model belongs to the sum. Both name a part
// "model".
TEST_F(PolicyRewards, KeepScoresThatAModelJoins) {
  const auto name_part = [&] {
    std::string script = test::read_all(script_);
    script.replace(script.find("size"), 4, "model");
    write_file(script_, script);
  };
  write_fault("exit 3"), name_part();
  const run::Config c = scored("joined", {"--reward.name=llama-tiny"});
  EXPECT_THAT(expect_end(c), HasSubstr("ended with status 3"));
  const std::map<std::string, int> before = take_calls();
  ASSERT_GT(before.size(), 17u) << "step 2 had scores before the fault";
  write_command(), name_part();
  train(c, train::Start::Resume);
  for (const auto& [id, count] : take_calls()) EXPECT_TRUE(id == "2/1/2" || !before.contains(id)) << id;
  EXPECT_THAT(metric(c, "reward_other_model"), AllOf(testing::SizeIs(2), Each(2)));
  EXPECT_THAT(metric(c, "reward_model"), AllOf(testing::SizeIs(2), Each(testing::Ne(2))));
}

// A second error of a resumed run, which has drawn nothing, still names the records.
TEST_F(PolicyRewards, NameTheRecordsOfAnEarlierStart) {
  write_fault("exit 3");
  const run::Config c = scored("twice");
  expect_end(c);
  const std::string again = test::thrown_message([&] { train(c, train::Start::Resume); });
  EXPECT_THAT(again, AllOf(HasSubstr("ended with status 3"), HasSubstr(c.run.folder + "/rollouts/step-000002")));
}

TEST_F(PolicyRewards, GoOnWithoutTheScoresOfFaults) {
  write_fault("exit 3");
  const run::Config c = scored("null", {"--reward.on_fault=null"});
  train(c);
  EXPECT_EQ(metric(c, "loss").size(), 2u);
  EXPECT_THAT(metric(c, "unscored_answers"), testing::ElementsAre(1));
  int faults = 0;
  for (const StoredGroup& group : read_rollouts(c.run.folder + "/rollouts", 2))
    for (const StoredAnswer& one : group.answers) {
      const bool is_fault = group.prompt.index == 1 && one.answer.number == 2;
      ASSERT_TRUE(one.score);
      EXPECT_EQ(one.score->is_fault, is_fault);
      EXPECT_EQ(one.score->value.has_value(), !is_fault);
      if (!is_fault) continue;
      ++faults;
      EXPECT_THAT(one.score->text, HasSubstr("ended with status 3"));
    }
  EXPECT_EQ(faults, 1);
}

// Each line of the command also has a part "size" of 2.
TEST_F(PolicyRewards, AddACommandToVerifiers) {
  write_command("score=0.25");
  const run::Config c = scored("sum", {"--reward.verifiers=regex,exact", "--reward.weights=2,-0.5"});
  train(c);
  const std::vector<double> reward = metric(c, "reward"), regex = metric(c, "reward_regex"),
                            exact = metric(c, "reward_exact");
  ASSERT_EQ(reward.size(), 2u);
  ASSERT_EQ(regex.size(), 2u);
  ASSERT_EQ(exact.size(), 2u);
  EXPECT_GT(regex[0], 0);
  for (size_t i = 0; i < reward.size(); ++i) EXPECT_NEAR(reward[i], 2 * regex[i] - 0.5 * exact[i] + 0.25, 1e-12);
  EXPECT_THAT(metric(c, "reward_command"), AllOf(testing::SizeIs(2), Each(0.25)));
  EXPECT_THAT(metric(c, "reward_size"), AllOf(testing::SizeIs(2), Each(2)));
}

// Its only worker gets the answers of the next step one by one, between the 16 updates of this one.
TEST_F(PolicyRewards, GiveTheCommandAnswersDuringUpdates) {
  const run::Config c = scored("busy", {"--rollout.ahead=1", "--alignment.epochs=16", "--training.steps=32"});
  train(c, train::Start::New, 1);
  int next = 0;
  for (const auto& [id, count] : take_calls()) next += id.starts_with("32/") ? 1 : 0;
  EXPECT_GE(next, 5);
}

// Rank 0 waits for the command for several times the limit of the watchdog, and the other rank waits for rank 0.
TEST_F(PolicyRewards, KeepOtherRanksPatient) {
  const run::Config c = scored("patient", {"--parallel.data=2", "--training.steps=1"});
  write_fault("exit 3", 1);
  EXPECT_THAT(expect_end(c, 1), HasSubstr("ended with status 3"));
  write_fault("sleep 2.5", 1);
  comm::run_ranks(2,
                  [&](comm::World& world) {
                    train::Trainer trainer(world, c, {.start = train::Start::Resume, .program = program()});
                    EXPECT_TRUE(trainer.run());
                  },
                  {.watchdog = std::chrono::milliseconds(1000)});
  EXPECT_EQ(metric(c, "loss").size(), 1u);
}

}  // namespace
}  // namespace colossal::align::policy_rewards_test
