// Runs with a head of values on the policy, and what is read of their folders.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "align/value_runs.h"
#include "colossal/run/saved_model.h"
#include "support/layouts.h"

namespace colossal::align::value_heads_test {
namespace {

constexpr char kHead[] = "head.values.weight";

class ValueHeads : public ValueRuns {
 protected:
  run::Config on_policy(const std::string& name, const std::vector<std::string>& flags = {}) const {
    return valued(name, test::joined({"--value.trunk=policy"}, flags));
  }
  std::vector<std::string> lora(const std::vector<std::string>& flags = {}) {
    if (base_.empty()) base_ = base();
    return test::joined({"--model.from=" + base_, "--adapter.kind=lora", "--adapter.rank=3"}, flags);
  }
  /// Calls read(saved) with the model of a run folder.
  static void load(const std::string& folder, const std::function<void(const run::SavedModel& saved)>& read,
                   bool merges = true) {
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, distributed::ParallelConfig{}.axes());
      read(run::load_model(folder, mesh, {}, at::kCPU,
                           {.tokenizer = "bytes", .merges_adapters = merges, .dtype = at::kDouble}, valued_program()));
    });
  }
  std::string base_;
};

TEST_F(ValueHeads, StartAtZeroAndLearn) {
  const run::Config c = on_policy("run");
  const auto trained = train_values(c);
  EXPECT_EQ(metric(c, "first_value").front(), 0);
  EXPECT_NE(metric(c, "first_value").back(), 0);
  EXPECT_EQ(trained.at(kHead).sizes(), (std::vector<int64_t>{1, 32}));
  EXPECT_LT(metric(c, "loss").back(), metric(c, "loss").front()) << "in addition to the head of tokens";
  const run::Config low = on_policy("low", {"--precision.mode=bf16"});
  train_values(low);
  EXPECT_EQ(metric(low, "first_value").front(), 0);
  EXPECT_NE(metric(low, "first_value").back(), 0);
  EXPECT_NEAR(metric(low, "first_value").back(), metric(c, "first_value").back(), 0.02);
  const run::Config other = on_policy("other", {"--value.weight=0"});
  EXPECT_EQ(train_values(other).at(kHead).abs().max().item<double>(), 0) << "without weight nothing trains it";
}

TEST_F(ValueHeads, EqualOneProcessUnderEveryLayout) {
  const auto course = [&](const std::vector<std::string>& flags) {
    return test::run_course(on_policy("course", flags), valued_program(), 2);
  };
  const std::vector<double> want = course({});
  EXPECT_NE(want[7], 0) << "values that have learnt";
  for (const std::vector<std::string>& flags : test::few_layouts(folder_.path()))
    test::expect_near(course(flags), want, testing::PrintToString(flags), 1);
}

TEST_F(ValueHeads, TrainBesideAdaptersAndFrozenParameters) {
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{lora(),
                                             lora({"--adapter.base=nf4"}),
                                             lora({"--valued.reward=original"}),
                                             lora({"--valued.reward=without-adapters"}),
                                             {"--training.parameters=embeddings"}}) {
    const run::Config c = on_policy("beside", flags);
    const auto trained = train_values(c);
    EXPECT_GT(trained.at(kHead).abs().max().item<double>(), 0) << testing::PrintToString(flags);
    EXPECT_EQ(trained.count(concat("reward.", kHead)), 0u) << "a reference has no values";
  }
}

TEST_F(ValueHeads, ContinueInAnotherLayout) {
  for (const bool adapters : {false, true}) {
    const std::vector<std::string> flags =
        test::joined(adapters ? lora() : std::vector<std::string>(), {"--training.save_every=2"});
    const run::Config whole = on_policy(concat("whole", adapters), flags);
    const auto want = train_values(whole);
    const std::string name = concat("parts", adapters);
    train_values(on_policy(name, flags), train::Start::New, 1);
    train_values(on_policy(name, test::joined(flags, {"--parallel.tensor.size=2", "--parallel.pipeline.size=2",
                                                      "--parallel.pipeline.micro_batches=2"})),
                 train::Start::Resume);
    const run::Config parts = on_policy(name, flags);
    ASSERT_EQ(metric(parts, "first_value").size(), 2u);
    EXPECT_NEAR(metric(parts, "first_value").back(), metric(whole, "first_value").back(), 1e-12);
    EXPECT_NEAR(metric(parts, "loss").back(), metric(whole, "loss").back(), 1e-10);
  }
}

// Only training uses them, so commands find a model without them in the run folder.
TEST_F(ValueHeads, StayOutOfWhatOthersRead) {
  for (const bool adapters : {false, true}) {
    const run::Config c = on_policy(concat("read", adapters), adapters ? lora() : std::vector<std::string>());
    const auto trained = train_values(c);
    for (const bool merges : {true, false})
      load(
          c.run.folder,
          [&](const run::SavedModel& saved) {
            EXPECT_TRUE(saved.leaves_out_values);
            EXPECT_FALSE(saved.model->model().shape.has_values());
            int64_t compared = 0;
            for (const nn::Parameter& p : saved.model->parameters()) {
              EXPECT_NE(p.name, kHead);
              if (adapters && merges && p.hidden_matrix) continue;
              EXPECT_TRUE(at::equal(p.value, trained.at(p.name))) << p.name;
              ++compared;
            }
            EXPECT_GT(compared, 5);
          },
          merges);
    // Other training starts from the run, and a run with values goes on with them.
    const run::Config sft = valued(concat("plain", adapters),
                                   {"--model.from=" + c.run.folder, "--value.name=gpt2-tiny", "--training.steps=2"});
    EXPECT_EQ(train_values(sft).count(kHead), 0u);
    const run::Config more =
        on_policy(concat("more", adapters), {"--model.from=" + c.run.folder, "--training.steps=2"});
    train_values(more);
    EXPECT_NE(metric(more, "first_value").front(), 0);
  }
}

}  // namespace
}  // namespace colossal::align::value_heads_test
