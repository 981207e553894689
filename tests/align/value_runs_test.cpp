// Runs with a value model of its own, and what is read of their folders.
#include "align/value_runs.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "colossal/run/saved_model.h"
#include "support/layouts.h"
#include "support/thrown_message.h"

namespace colossal::align::value_runs_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST_F(ValueRuns, StartAtTheScoresOfARewardModel) {
  const std::string from = reward();
  const run::Config c = valued("own", {"--value.from=" + from, "--valued.reward=from", "--reward.from=" + from});
  const auto trained = train_values(c);
  const std::vector<double> values = metric(c, "first_value"), rewards = metric(c, "first_reward");
  ASSERT_EQ(values.size(), 2u);
  EXPECT_NE(values[0], 0);
  EXPECT_EQ(values[0], rewards[0]) << "the value model starts with the weights of the reward model";
  EXPECT_NE(values[1], values[0]) << "values learn";
  EXPECT_EQ(trained.at("value.head.score.weight").sizes(), (std::vector<int64_t>{1, 32}));
  EXPECT_EQ(trained.count("value.head.weight"), 0u);
}

TEST_F(ValueRuns, StartAtZeroFromALanguageModel) {
  const std::string from = base();
  const run::Config c = valued("fresh", {"--value.from=" + from});
  const auto trained = train_values(c);
  EXPECT_EQ(metric(c, "first_value").front(), 0);
  EXPECT_NE(metric(c, "first_value").back(), 0);
  EXPECT_THAT(read_file(c.run.folder + "/log-rank-0.txt", 1 << 24),
              HasSubstr("/base holds no value.head.score.weight: that head starts at 0"));
  EXPECT_GT(trained.at("value.head.score.weight").abs().max().item<double>(), 0);
}

TEST_F(ValueRuns, TrainTheHeadBesideTheAdaptersOfTheirSource) {
  const std::vector<std::string> lora{"--model.from=" + base(), "--adapter.kind=lora", "--adapter.rank=3"};
  const std::string scores = reward("scores", lora);
  const run::Config dpo = config("policy", lora);
  train(dpo);
  for (const std::string& from : {scores, dpo.run.folder}) {
    const run::Config c =
        valued("adapters", {"--value.from=" + from, "--valued.reward=from", "--reward.from=" + scores});
    const auto trained = train_values(c);
    EXPECT_EQ(metric(c, "first_value").front() == 0, from != scores) << from;
    if (from == scores) EXPECT_NEAR(metric(c, "first_value").front(), metric(c, "first_reward").front(), 1e-12);
    EXPECT_NE(metric(c, "first_value").back(), metric(c, "first_value").front());
    EXPECT_EQ(trained.count("value.blocks.0.attention.qkv.adapter_b.q_proj"), 1u);
  }
}

TEST_F(ValueRuns, EqualOneProcessUnderEveryLayout) {
  const std::string source = "--value.from=" + reward();
  const auto course = [&](const std::vector<std::string>& flags) {
    return test::run_course(valued("course", test::joined({source}, flags)), valued_program(), 2);
  };
  const std::vector<double> want = course({});
  EXPECT_NE(want[2], want[6]) << "the loss of the values";
  for (const std::vector<std::string>& flags : test::few_layouts(folder_.path()))
    test::expect_near(course(flags), want, testing::PrintToString(flags), 1);
}

TEST_F(ValueRuns, ContinueWithTheirWeights) {
  const std::string from = reward();
  const std::vector<std::string> flags{"--value.from=" + from, "--value.optimizer.name=sgd",
                                       "--value.optimizer.learning_rate=0.1", "--training.save_every=2"};
  const auto want = train_values(valued("whole", flags));
  train_values(valued("parts", flags), train::Start::New, 1);
  const auto got = train_values(valued("parts", flags), train::Start::Resume);
  for (const auto& [name, value] : want) EXPECT_TRUE(at::equal(got.at(name), value)) << name;
  // The values of a run are a model with scores of their own.
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, distributed::ParallelConfig{}.axes());
    const run::SavedModel saved = run::load_model(
        folder_ / "parts", mesh, {}, at::kCPU,
        {.model = "value", .tokenizer = "none", .dtype = at::kDouble, .scores = true}, valued_program());
    for (const nn::Parameter& p : saved.model->parameters())
      EXPECT_TRUE(at::equal(p.value, want.at("value." + p.name))) << p.name;
  });
  // A run that starts from them goes on.
  const run::Config more = valued("more", {"--value.from=" + (folder_ / "whole"), "--training.steps=2"});
  EXPECT_THAT(refused(more), testing::IsEmpty());
}

TEST_F(ValueRuns, MayStartFromPresets) {
  const run::Config c = valued(
      "preset", {"--value.name=gpt2-tiny", "--valued.reward=from", "--reward.name=llama-tiny", "--training.steps=2"});
  train_values(c);
  EXPECT_EQ(metric(c, "first_value").front(), 0);
  EXPECT_EQ(metric(c, "first_reward").front(), 0);
  const std::string log = read_file(c.run.folder + "/log-rank-0.txt", 1 << 24);
  EXPECT_THAT(log, AllOf(HasSubstr("value starts from random weights of the preset gpt2-tiny; set value.from"),
                         HasSubstr("reward starts from random weights of the preset llama-tiny; set reward.from")));
}

TEST_F(ValueRuns, RefuseOtherSources) {
  const std::string language = base(), scores = reward();
  EXPECT_THAT(refused(valued("x", {"--value.from=" + scores, "--valued.reward=from", "--reward.from=" + language})),
              AllOf(HasSubstr("reward.from must name a model with 1 output for each token"),
                    HasSubstr("alignment.method = \"reward\""), HasSubstr("which continues text")));
  EXPECT_THAT(refused(valued("x", {"--value.from=bert-tiny"})),
              HasSubstr("value.from must name a model with 1 output"));
  EXPECT_THAT(refused(valued("x")), HasSubstr("value.from must name the weights of the model value"));
  EXPECT_THAT(refused(valued("x", {"--value.from=" + scores, "--value.name=gpt2-tiny"})),
              HasSubstr("value.from and value.name are both set"));
  EXPECT_THAT(refused(valued("x", {"--value.name=gpt2-tin"})), HasSubstr("did you mean `gpt2-tiny`"));
  EXPECT_THAT(refused(valued("x", {"--value.name=gpt2-tiny", "--value.wieght=0.2"})), HasSubstr("value.wieght"));
  EXPECT_THAT(refused(valued("x", {"--value.name=gpt2-tiny", "--value.weight=0.2"})),
              HasSubstr("weight needs value.trunk policy"));
  EXPECT_THAT(refused(valued("x", {"--value.trunk=policy", "--value.from=" + scores})),
              HasSubstr("from needs value.trunk own"));
  EXPECT_THAT(refused(valued("x", {"--value.trunk=policy", "--value.optimizer.name=sgd"})),
              HasSubstr("[value.optimizer] needs value.trunk = \"own\""));
}

}  // namespace
}  // namespace colossal::align::value_runs_test
