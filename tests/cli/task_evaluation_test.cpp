// Tasks during training: their metrics are those of `colossal evaluate` on the saved run, under every layout.
#include "colossal/cli/task_evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "cli/outcome.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/comm/run_ranks.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::cli::task_evaluation_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using train::Start;

class TaskEvaluation : public testing::Test {
 protected:
  void SetUp() override {
    std::string chats, questions;
    for (int i = 0; i < 24; ++i) {
      const int first = i * 37 % 101;
      const std::string question = concat("Add ", first, " and ", i), answer = concat("It is ", first + i, ".");
      chats +=
          json{{"messages", {{{"role", "user"}, {"content", question}}, {{"role", "assistant"}, {"content", answer}}}}}
              .dump() +
          "\n";
      if (i < 3)
        questions +=
            json{{"q", question}, {"a", answer}, {"c", {"It is it.", answer, "No."}}, {"right", i}}.dump() + "\n";
    }
    folder_.write("chats.jsonl", chats);
    folder_.write("data/q.jsonl", questions);
    const std::string asked = "data = 'q.jsonl'\nprompt = \"User: {{q}}\\nAssistant: \"\n";
    folder_.write("choose.toml",
                  "name = 'choose'\nkind = 'choices'\ndelimiter = ''\nchoices = '{{c}}'\n"
                  "target = '{{right}}'\n" +
                      asked);
    folder_.write("say.toml", "name = 'say'\ntarget = '{{a}}'\nmetric = ['f1', 'exact']\nmax_tokens = 6\n" + asked);
    folder_.write("text.toml", "name = 'text'\nkind = 'perplexity'\ndata = 'q.jsonl'\ntarget = '{{q}}: {{a}}'\n");
  }

  std::string file(const std::string& name) const { return folder_ / name; }
  std::string tasks() const { return file("choose.toml") + "," + file("say.toml") + "," + file("text.toml"); }

  /// Returns flags for examples/sft.toml: a tiny run of three steps, with tasks at the second and the third.
  std::vector<std::string> flags(const std::string& run, const std::vector<std::string>& more) const {
    std::vector<std::string> all{
        "--run.folder=" + file(run),
        "--run.device=cpu",
        "--run.matmul=mkl",
        "--precision.mode=fp64",
        "--data.path=" + file("chats.jsonl"),
        "--data.chat_template=" + test::source_dir() + "/examples/chats.jinja",
        "--data.sequence=64",
        "--model.hidden=32",
        "--model.heads=4",
        "--model.kv_heads=4",
        "--model.ffn=32",
        "--model.layers=4",
        "--optimizer.warmup_steps=0",
        "--optimizer.learning_rate=0.01",
        "--parallel.chunk_mib=0.05",
        "--training.batch_size=8",
        "--training.steps=3",
        "--training.sample_tokens=0",
        "--training.evaluate_every=2",
        "--training.tasks=['" + file("choose.toml") + "', '" + file("say.toml") + "', '" + file("text.toml") + "']",
        "--training.tasks_data=" + file("data")};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  Outcome train(const std::string& run, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = flags(run, more);
    words.insert(words.begin(), test::source_dir() + "/examples/sft.toml");
    return run_command("train", words);
  }

  /// Trains with ranks that are threads, until `stop_after` steps (0 = to the end).
  void train_here(const std::string& run, const std::vector<std::string>& more, Start start = Start::New,
                  int64_t stop_after = 0) const {
    const run::Config config =
        run::read_given_config(test::source_dir() + "/examples/sft.toml", flags(run, more)).config;
    comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
      int64_t steps = 0;
      train::TrainerOptions options{.start = start, .further_evaluation = task_evaluation};
      options.stop_requested = [&] { return stop_after > 0 && ++steps >= stop_after; };
      train::Trainer trainer(world, config, options);
      EXPECT_EQ(trainer.run(), stop_after == 0);
    });
  }

  /// Returns the rows of metrics.jsonl.
  std::vector<json> steps_of(const std::string& run) const {
    std::istringstream lines(read_file(file(run) + "/metrics.jsonl", 1 << 24));
    std::vector<json> steps;
    for (std::string line; std::getline(lines, line);) steps.push_back(json::parse(line));
    return steps;
  }
  /// Returns the metrics of the tasks at the end of a run.
  json measured(const std::string& run) const { return steps_of(run).back().at("tasks"); }

  /// Returns what `colossal evaluate` measures of the saved run.
  json evaluated(const std::string& run) const {
    const Outcome outcome =
        run_command("evaluate", {"--from", file(run), "--tasks", tasks(), "--data", file("data"), "--json"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return json::parse(outcome.out);
  }

  /// Compares the metrics of all tasks in fp64.
  static void expect_near(const json& got, const json& want, const std::string& what) {
    const std::map<std::string, std::vector<std::string>> names{
        {"choose", {"acc", "acc_norm", "acc_bytes"}},
        {"say", {"f1", "exact"}},
        {"text", {"word_perplexity", "byte_perplexity", "bits_per_byte"}}};
    ASSERT_EQ(got.size(), names.size()) << what;
    for (const auto& [task, metrics] : names) {
      EXPECT_EQ(got.at(task).size(), metrics.size()) << what << ", " << task;
      for (const std::string& metric : metrics) {
        const double value = got.at(task).at(metric), wanted = want.at(task).at(metric);
        EXPECT_NEAR(value, wanted, 1e-10 * std::abs(wanted)) << what << ", " << task << "." << metric;
      }
    }
  }

  test::TemporaryFolder folder_;
};

TEST_F(TaskEvaluation, EqualsTheCommandOnTheSavedRun) {
  const Outcome outcome = train("run", {"--training.steps=40", "--training.evaluate_every=20"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::vector<json> steps = steps_of("run");
  ASSERT_EQ(steps.size(), 40u);
  for (const json& step : steps) EXPECT_EQ(step.contains("tasks"), step.at("step") == 20 || step.at("step") == 40);
  const json &before = steps[19].at("tasks"), &after = steps[39].at("tasks");
  EXPECT_NE(after.at("text"), before.at("text")) << "the model learns";
  EXPECT_GT(after.at("choose").at("acc"), 0);
  EXPECT_GT(after.at("say").at("f1"), 0) << "all answers begin with the same words";
  expect_near(after, evaluated("run"), "the saved run");
  EXPECT_THAT(outcome.out + outcome.err, HasSubstr("  text word_perplexity "));
  EXPECT_THAT(read_file(file("run/report.html"), 1 << 24), HasSubstr("Tasks"));
}

TEST_F(TaskEvaluation, EqualsOneProcessUnderEveryLayout) {
  const std::string tensor = "--parallel.tensor.size=", mode = "--parallel.tensor.mode=",
                    sequence = "--parallel.sequence.size=", pipeline = "--parallel.pipeline.size=",
                    data = "--parallel.data=", zero = "--parallel.zero=";
  train_here("one", {});
  const json want = measured("one");
  int run = 0;
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {data + "2", zero + "3", "--memory.recompute=block"},
           {tensor + "2", pipeline + "2", zero + "1", "--training.accumulate=1"},
           {tensor + "2", "--parallel.tensor.sequence=true"},
           {tensor + "4", mode + "2d"},
           {sequence + "2", "--parallel.sequence.mode=ring", data + "2", zero + "2"},
           {"--memory.host=64MiB", "--memory.disk=" + folder_.path(), "--training.accumulate=2"}}) {
    const std::string name = concat("run-", run++);
    train_here(name, more);
    expect_near(measured(name), want, testing::PrintToString(more));
  }
  const std::vector<std::string> experts{"--model.experts.count=4", "--model.experts.used=2", "--model.experts.ffn=16"};
  train_here("mixture", experts);
  std::vector<std::string> spread = experts;
  spread.insert(spread.end(), {"--parallel.expert.size=2", data + "2"});
  train_here("spread", spread);
  expect_near(measured("spread"), measured("mixture"), "experts");
}

TEST_F(TaskEvaluation, UsesTheAdaptersAndResumes) {
  const std::vector<std::string> lora{"--adapter.kind=lora", "--adapter.rank=2", "--optimizer.learning_rate=0.1"};
  train_here("whole", lora);
  expect_near(measured("whole"), evaluated("whole"), "the merged adapters");
  const std::vector<json> steps = steps_of("whole");
  EXPECT_NE(steps[1].at("tasks").at("text"), steps[2].at("tasks").at("text")) << "the adapters learn";
  train_here("parts", lora, Start::New, 1);
  train_here("parts", lora, Start::Resume);
  EXPECT_EQ(measured("parts"), measured("whole"));
}

TEST_F(TaskEvaluation, RefusesBadTasksBeforeTheFirstStep) {
  const auto refused = [&](const std::string& task, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words{"--training.tasks=['" + task + "']"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = train("bad", words);
    EXPECT_EQ(outcome.status, 1) << task;
    EXPECT_FALSE(std::filesystem::exists(file("bad/metrics.jsonl"))) << task;
    return outcome.err;
  };
  const auto written = [&](const std::string& lines) { return folder_.write("own.toml", "name = 'own'\n" + lines); };
  const std::string rest = "data = 'q.jsonl'\nprompt = '{{q}}'\ntarget = '{{a}}'\nmetric = 'exact'\n";
  EXPECT_THAT(refused(written(rest + "untill = ['x']\n")), HasSubstr("did you mean `until`?"));
  EXPECT_THAT(refused(written("data = 'p.jsonl'\nprompt = '{{q}}'\ntarget = '{{a}}'\nmetric = 'exact'\n")),
              HasSubstr("p.jsonl"));
  EXPECT_THAT(refused(written("data = 'q.jsonl'\nprompt = '{{p}}'\ntarget = '{{a}}'\nmetric = 'exact'\n")),
              HasSubstr("q.jsonl:1: "));
  EXPECT_THAT(refused("arc_eazy"), HasSubstr("did you mean `arc_easy`?"));
  EXPECT_THAT(refused(written(rest + "max_tokens = 100000\n")), HasSubstr("own: max_tokens must leave room"));
  EXPECT_THAT(refused(folder_.write("own.toml", "name = 'a.b'\n" + rest)),
              HasSubstr("the name of a task must have letters, digits, _ and - alone"));
}

TEST_F(TaskEvaluation, RefusesDataWithoutTasks) {
  const Outcome alone = run_command("train", {test::source_dir() + "/examples/sft.toml", "--run.folder=" + file("bad"),
                                              "--training.tasks_data=" + file("data")});
  EXPECT_THAT(alone.err, HasSubstr("tasks_data needs training.tasks"));
}

TEST_F(TaskEvaluation, NeedsAFunctionOfTheProgram) {
  const run::Config config =
      run::read_given_config(test::source_dir() + "/examples/sft.toml", flags("alone", {})).config;
  EXPECT_THAT(
      test::thrown_message([&] { comm::run_ranks(1, [&](comm::World& world) { train::Trainer(world, config, {}); }); }),
      HasSubstr("[training] tasks need a program that evaluates them"));
}

// A rank whose lines differ would send other requests.
TEST_F(TaskEvaluation, RefusesOtherLinesOnARank) {
  const run::Config config =
      run::read_given_config(test::source_dir() + "/examples/sft.toml", flags("ranks", {"--parallel.data=2"})).config;
  const auto evaluation_of = [](int rank) {
    return [rank](const run::Config& own) {
      train::FurtherEvaluation evaluation = task_evaluation(own);
      if (rank == 1) evaluation.inputs.front().second = "other";
      return evaluation;
    };
  };
  EXPECT_THAT(test::thrown_message([&] {
                comm::run_ranks(2, [&](comm::World& world) {
                  train::Trainer(world, config, {.further_evaluation = evaluation_of(world.rank())});
                });
              }),
              HasSubstr("the lines of the task choose"));
}

TEST_F(TaskEvaluation, RefusesModelsThatDoNotContinueTexts) {
  folder_.write("text.txt", std::string(4000, 'a'));
  folder_.write("bert.toml", "[model]\nname = 'bert-tiny'\n[data]\npath = '" + file("text.txt") +
                                 "'\nsequence = 16\n[training]\nbatch_size = 2\nsteps = 1\ntasks_data = '" +
                                 file("data") + "'\ntasks = ['" + file("text.toml") + "']\n[run]\nfolder = '" +
                                 file("bert") + "'\n");
  const Outcome outcome = run_command("train", {file("bert.toml")});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("[training] tasks need a model that continues texts: got a bert, which"));
}

}  // namespace
}  // namespace colossal::cli::task_evaluation_test
