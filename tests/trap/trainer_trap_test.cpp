// Complete runs of `colossal train` on trap devices: train, evaluate, save, resume, sample, report.
#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/main.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/report/metrics.h"
#include "colossal/report/pipeline_timeline.h"
#include "colossal/train/gather_timeline.h"
#include "colossal/train/trainer.h"
#include "support/course.h"
#include "support/parity.h"
#include "support/steps.h"
#include "support/trap_devices.h"

namespace colossal::train::trainer_trap_test {
namespace {

using Metrics = report::RecordedSteps;

class TrainerOnTrap : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(base_);
    std::ofstream text(base_ + "/text.txt");
    for (int i = 0; i < 200; ++i) text << "line " << i * 37 % 101 << " of a text that can be learnt\n";
    std::ofstream(base_ + "/run.toml") << "run.matmul = 'mkl'\n"
                                          "model = {name = 'gpt2-tiny', hidden = 32, layers = 2, heads = 4, positions "
                                          "= 32, dropout = 0.1}\n"
                                          "data = {path = '"
                                       << base_
                                       << "/text.txt', sequence = 24}\n"
                                          "precision.mode = 'fp64'\n"
                                          "optimizer = {warmup_steps = 1, epsilon = 1e-3}\n"
                                          "training = {steps = 6, batch_size = 4, save_every = 3, keep_last = 2, "
                                          "evaluate_every = 3, evaluate_batches = 2, sample_prompt = 'line ', "
                                          "sample_tokens = 12}\n";
  }

  /// Runs `colossal train` in `folder`, in this process. Returns its last output and the metrics of its folder.
  std::pair<std::string, Metrics> train(const std::string& folder, bool on_trap, std::vector<std::string> words = {}) {
    words.insert(words.begin(), {base_ + "/run.toml", concat("--run.folder=", base_, "/", folder),
                                 concat("--run.device=", on_trap ? "cuda" : "cpu")});
    testing::internal::CaptureStdout();
    EXPECT_EQ(cli::end_with_message([&] { return cli::train(words, nullptr, devices_); }), 0);
    const std::string said = testing::internal::GetCapturedStdout();
    return {said, report::read_metrics(concat(base_, "/", folder, "/metrics.jsonl"))};
  }

  /// Compares metrics in fp64. The limit is half of the digits, because rounding costs less.
  static void expect_same(const Metrics& got, const Metrics& want, const std::string& what) {
    const double limit = std::sqrt(std::numeric_limits<double>::epsilon());
    ASSERT_EQ(got.size(), want.size()) << what;
    for (size_t i = 0; i < want.size(); ++i) {
      for (const char* name : {"loss", "grad_norm", "eval_loss"}) {
        const auto a = got.value(name, i), b = want.value(name, i);
        ASSERT_EQ(a.has_value(), b.has_value()) << what << ", step " << i + 1;
        if (b) {
          EXPECT_NEAR(*a / *b, 1, limit) << what << ", " << name << ", step " << i + 1;
        }
      }
    }
  }

  const test::TrapDevices devices_{{"a", "b"}};
  const std::string base_ = test::empty_folder("runs");
};

TEST_F(TrainerOnTrap, TrainsLikeTheCpu) {
  const auto [host_text, host] = train("host", false);
  ASSERT_EQ(host.size(), 6u);
  EXPECT_TRUE(host.value("eval_loss", 2) && host.value("eval_loss", 5));
  EXPECT_LT(test::last(host, "loss"), test::first(host, "loss"));
  const test::TrapWaits waits(test::trap_device());
  const auto [text, trap] = train("trap", true);
  EXPECT_GT(waits.counts().waits(), 0) << "nothing ran there";
  expect_same(trap, host, "from the start");
  EXPECT_THAT(text, testing::HasSubstr("line "));
  EXPECT_EQ(text, host_text) << "the sample";
  EXPECT_THAT(read_file(base_ + "/trap/report.html", 1 << 24), testing::HasSubstr("largest rank"));
  const double first_peak = test::first(trap, "peak_bytes"), last_peak = test::last(trap, "peak_bytes");
  EXPECT_GT(first_peak, 4 * 8 * 34720) << "values, gradients and two moments in fp64";
  EXPECT_LT(first_peak, 3 * 8 << 20) << "the products by which MFU's peak is measured are not counted";
  EXPECT_LE(first_peak, last_peak);
  EXPECT_LE(last_peak, c10::getDeviceAllocator(at::kPrivateUse1)->getDeviceStats(0).allocated_bytes[0].peak);
  expect_same(train("host", true, {"--resume-from=3"}).second, host, "begun on the CPU");
  expect_same(train("trap", false, {"--resume-from=3"}).second, host, "brought to the CPU");
}

// The reference and the policy are on the device, and so is what they are compared by.
TEST_F(TrainerOnTrap, LearnsPreferencesLikeTheCpu) {
  std::ofstream pairs(base_ + "/pairs.jsonl"), rated(base_ + "/rated.jsonl");
  for (int i = 0; i < 40; ++i) {
    pairs << R"({"prompt": "a )" << i << R"(: ", "chosen": "it is )" << i << R"(", "rejected": "no"})" << "\n";
    rated << R"({"prompt": "a )" << i << R"(: ", "completion": "it is )" << i << R"(", "label": )"
          << (i % 3 ? "true" : "false") << "}\n";
  }
  pairs.close(), rated.close();
  for (const auto& [method, file] : {std::pair("dpo", "pairs"), std::pair("kto", "rated")}) {
    const std::vector<std::string> words{concat("--alignment.method=", method),
                                         concat("--data.path=", base_, "/", file, ".jsonl"), "--data.held_out=0.3",
                                         "--model.dropout=0", "--training.sample_tokens=0"};
    const Metrics host = train(concat("host-", method), false, words).second;
    const test::TrapWaits waits(test::trap_device());
    const Metrics trap = train(concat("trap-", method), true, words).second;
    EXPECT_GT(waits.counts().waits(), 0) << "nothing ran there";
    expect_same(trap, host, method);
    EXPECT_GT(test::last(trap, "margin"), 0) << method;
  }
}

// Answers are drawn there with the parameters, and updates do not use the operations of drawing: a device has no packed
// weights. In fp64 both draw the same tokens.
TEST_F(TrainerOnTrap, LearnsFromItsAnswersLikeTheCpu) {
  std::ofstream prompts(base_ + "/prompts.jsonl");
  for (int i = 0; i < 8; ++i) prompts << R"({"prompt": "say )" << i << R"(:", "pattern": "[a-m]"})" << "\n";
  prompts.close();
  const std::vector<std::string> words{"--alignment.method=grpo",
                                       "--alignment.epochs=2",
                                       "--reward.verifiers=regex",
                                       concat("--data.path=", base_, "/prompts.jsonl"),
                                       "--data.held_out=0",
                                       "--rollout.prompts=2",
                                       "--rollout.answers=4",
                                       "--rollout.max_tokens=5",
                                       "--training.batch_size=8",
                                       "--training.evaluate_batches=0",
                                       "--training.evaluate_every=0",
                                       "--training.save_every=4",
                                       "--optimizer.learning_rate=0.01",
                                       "--model.dropout=0",
                                       "--training.sample_tokens=0",
                                       "--training.steps=4"};
  const Metrics host = train("host", false, words).second;
  ASSERT_EQ(host.size(), 2u) << "steps of two updates";
  const test::TrapWaits waits(test::trap_device());
  const Metrics trap = train("trap", true, words).second;
  EXPECT_GT(waits.counts().waits(), 0) << "nothing ran there";
  ASSERT_EQ(trap.size(), 2u);
  for (size_t i = 0; i < trap.size(); ++i) {
    EXPECT_EQ(trap.value("reward", i), host.value("reward", i)) << "step " << i;
    EXPECT_GT(trap.value("reward", i).value_or(0), 0) << "step " << i;
    EXPECT_EQ(trap.value("answer_tokens", i), host.value("answer_tokens", i)) << "step " << i;
    for (const char* name : {"loss", "grad_norm", "entropy"})
      EXPECT_NEAR(trap.value(name, i).value_or(9), host.value(name, i).value_or(-9), 1e-8) << name << ", step " << i;
    EXPECT_GT(trap.value("grad_norm", i).value_or(0), 1e-3) << "step " << i;
    EXPECT_LT(trap.value("sampler_difference", i).value_or(9), 1e-8) << "step " << i;
  }
  std::vector<std::string> canonical = words;
  canonical.push_back("--rollout.canonical=true");
  canonical.insert(canonical.begin(), {base_ + "/run.toml", "--run.device=cuda", "--run.folder=" + base_ + "/refused"});
  testing::internal::CaptureStderr();
  EXPECT_NE(cli::end_with_message([&] { return cli::train(canonical, nullptr, devices_); }), 0);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("[rollout] canonical must be auto or false"));
}

// Adapters on a base in NF4, whose codes are made on the host.
TEST_F(TrainerOnTrap, TrainsAdaptersOnCodesLikeTheCpu) {
  const std::vector<std::string> keys{"--adapter.kind=lora", "--adapter.rank=4", "--adapter.base=nf4"};
  const Metrics host = train("host", false, keys).second;
  ASSERT_EQ(host.size(), 6u);
  expect_same(train("trap", true, keys).second, host, "from the start");
  EXPECT_NE(test::first(train("values", false, {keys[0], keys[1]}).second, "loss"), test::first(host, "loss"));
  std::vector<std::string> again = keys;
  again.push_back("--resume-from=3");
  expect_same(train("host", true, again).second, host, "begun on the CPU");
}

// Codes are decoded by LibTorch's operators there, and by a loop on the CPU.
TEST_F(TrainerOnTrap, TrainsAdaptersOnQuantizedWeights) {
  train("base", false);
  testing::internal::CaptureStdout();
  const std::vector<std::string> words{"--from", base_ + "/base", "--to", base_ + "/codes", "--method",
                                       "rtn",    "--bits",        "4",    "--group-size",   "16"};
  EXPECT_EQ(cli::end_with_message([&] { return cli::quantize(words, nullptr); }), 0);
  testing::internal::GetCapturedStdout();
  std::string config = read_file(base_ + "/run.toml", 1 << 16);
  const size_t first = config.find("model = {"), end = config.find('\n', first);
  write_file(base_ + "/run.toml", config.replace(first, end - first, "model.from = '" + base_ + "/codes'"));
  for (const char* kind : {"lora", "dora"}) {
    const std::vector<std::string> adapter{concat("--adapter.kind=", kind), "--adapter.rank=3",
                                           "--optimizer.learning_rate=0.05"};
    const Metrics host = train(concat("host-", kind), false, adapter).second;
    ASSERT_EQ(host.size(), 6u);
    EXPECT_GT(host.value("grad_norm", 5).value_or(0), 0);
    const test::TrapWaits waits(test::trap_device());
    expect_same(train(concat("trap-", kind), true, adapter).second, host, kind);
    EXPECT_GT(waits.counts().waits(), 0) << "nothing ran there";
  }
}

TEST_F(TrainerOnTrap, EvaluatesTasksLikeTheCpu) {
  std::ofstream(base_ + "/q.jsonl") << R"({"q": "line 37 of a", "a": " text"})" << "\n"
                                    << R"({"q": "line 74", "a": " of a text"})" << "\n";
  std::string tasks;
  for (const std::string task : {"choose", "say", "predict"}) {
    std::ofstream(concat(base_, "/", task, ".toml"))
        << "name = '" << task << "'\ndata = 'q.jsonl'\n"
        << (task == "choose" ? "kind = 'choices'\nprompt = '{{q}}'\ntarget = '0'\nchoices = ['{{a}}', ' other']\n"
            : task == "say"  ? "prompt = '{{q}}'\ntarget = '{{a}}'\nmetric = 'f1'\nmax_tokens = 8\n"
                             : "kind = 'perplexity'\ntarget = '{{q}}{{a}}'\n");
    tasks += concat(tasks.empty() ? "" : ", ", "'", base_, "/", task, ".toml'");
  }
  const std::vector<std::string> flags{concat("--training.tasks=[", tasks, "]"), "--training.steps=3"};
  const Metrics host = train("host_tasks", false, flags).second, trap = train("trap_tasks", true, flags).second;
  for (const char* name : {"tasks.choose.acc", "tasks.say.f1", "tasks.predict.byte_perplexity"}) {
    ASSERT_TRUE(host.value(name, 2) && trap.value(name, 2)) << name;
    EXPECT_NEAR(*trap.value(name, 2), *host.value(name, 2), 1e-8 * *host.value(name, 2)) << name;
  }
}

run::Config pipeline_of(int64_t stages, const std::string& schedule) {
  run::Config c = test::course_config();
  c.training.accumulate = stages > 1 ? 1 : 4;
  if (stages > 1) c.parallel.pipeline = {.size = stages, .schedule = schedule, .micro_batches = 4};
  return c;
}

/// Returns the timeline of the third step, because the first step also makes tables.
report::PipelineTimeline timeline_of(const std::string& schedule) {
  report::PipelineTimeline result;
  comm::run_ranks(2, [&](comm::World& world) {
    models::ModelShape shape = test::tiny_gpt2();
    shape.layers = 4;
    const auto engine = initialize(world, pipeline_of(2, schedule), shape, test::trap_device(world.local_rank()));
    test::train(*engine, 0, 3);
    auto timeline = gather_pipeline_timeline(engine->mesh(), engine->distributed().executor());
    if (timeline) result = std::move(*timeline);
  });
  return result;
}

// By the device's clock, an event takes a whole number of operators. The host's clock would give arbitrary times.
TEST_F(TrainerOnTrap, TimesThePipelineByTheClockOfTheDevice) {
  for (const std::string schedule : {"1f1b", "zero-bubble-v"}) {
    std::map<std::pair<int, int>, double> forward;  // number of operators by rank and chunk
    for (const schedule::Event& event : timeline_of(schedule).measured.events) {
      if (!schedule::is_compute(event.step.action)) continue;
      const double operators = (event.end - event.begin) / test::kTrapMilliseconds;
      EXPECT_GE(operators, 1 - 1e-3) << schedule;
      // The tolerance is needed because times are seconds since 1970, whose doubles have steps of a quarter
      // microsecond.
      EXPECT_NEAR(operators, std::round(operators), 1e-3) << schedule;
      if (event.step.action != schedule::Action::Forward) continue;
      const auto [first, is_new] = forward.emplace(std::pair(event.rank, event.step.chunk), operators);
      EXPECT_NEAR(first->second, operators, 1e-3) << schedule << ": micro-batches are alike";
    }
    EXPECT_GE(forward.size(), 2u) << schedule;
  }
}

TEST_F(TrainerOnTrap, ReportsThePipeline) {
  std::vector<std::string> folders;
  for (const int64_t stages : {1, 2}) {
    folders.push_back(concat(base_, "/", stages, "-stages"));
    run::Config config = pipeline_of(stages, "1f1b");
    config.run = {.folder = folders.back(), .device = stages > 1 ? "cuda" : "cpu", .matmul = "mkl"};
    config.model = {.name = "gpt2-tiny", .hidden = 32, .layers = 2, .heads = 4, .positions = 32};
    config.data.path = base_ + "/text.txt";
    config.data.sequence = 24;
    config.training.steps = 4;
    config.optimizer.warmup_steps = 1;
    config.optimizer.epsilon = 1e-3;
    comm::run_ranks(static_cast<int>(stages), [&](comm::World& world) {
      Trainer trainer(world, config, {.devices = &devices_});
      EXPECT_EQ(trainer.engine().device(), stages > 1 ? test::trap_device(world.local_rank()) : at::Device(at::kCPU));
      EXPECT_TRUE(trainer.run());
      trainer.write_report({{.text = "sample"}});
    });
  }
  expect_same(report::read_metrics(folders[1] + "/metrics.jsonl"), report::read_metrics(folders[0] + "/metrics.jsonl"),
              "two stages");
  EXPECT_TRUE(std::filesystem::exists(folders[1] + "/pipeline_trace.json"));
}

}  // namespace
}  // namespace colossal::train::trainer_trap_test
