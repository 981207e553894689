// Methods that draw answers under every layout: the losses, gradients and drawn tokens of one process.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "align/policy_runs.h"
#include "support/covering_array.h"
#include "support/layouts.h"

namespace colossal::align::policy_layouts_test {
namespace {

using Flags = std::vector<std::string>;
using testing::Each;
using testing::Lt;

/// The axes of the array. The first two and the experts change what is computed; the others must not.
enum Axis { kAdapter, kExperts, kData, kTensor, kSequence, kPipeline, kTier, kRecompute, kAccumulate, kAxes };

/// What a run computes.
struct Course {
  std::vector<double> numbers;  ///< of each step: losses, gradient norms and other metrics
  std::vector<std::vector<int64_t>> ids;
};

class PolicyLayouts : public PolicyRuns {
 protected:
  std::vector<std::vector<Flags>> axes() const {
    const std::string data = "--parallel.data=2", zero = "--parallel.zero=", size = "--parallel.tensor.size=",
                      mode = "--parallel.tensor.mode=", tokens = "--parallel.sequence.size=2",
                      of_tokens = "--parallel.sequence.mode=";
    return {{{}, {"--adapter.kind=lora", "--adapter.rank=3"}},
            {{}, {}, {"--parallel.expert.size=2"}},  // a dense model, a mixture, and one over ranks, which also read
                                                     // other rows without ZeRO
            {{}, {data, zero + "1"}, {data, zero + "2"}, {data, zero + "3"}},
            {{},
             {size + "2"},
             {size + "2", "--parallel.tensor.sequence=true"},
             {size + "4", mode + "2d"},
             {size + "8", mode + "2.5d", "--parallel.tensor.depth=2"},
             {size + "8", mode + "3d"}},
            {{}, {tokens, of_tokens + "ring"}, {tokens, of_tokens + "ulysses"}},
            {{}, {"--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=2"}},
            {{}, {"--memory.host=64MiB", "--memory.disk=" + folder_.path()}},
            {{}, {"--memory.recompute=block"}},
            {{}, {"--training.accumulate=2"}}};
  }
  /// Allows layouts of at most eight ranks. A pipeline has micro-batches of its own in place of accumulation.
  static bool is_allowed(const test::ArrayRow& row) {
    const int tensor[]{1, 2, 2, 4, 8, 8};
    int ranks = tensor[row[kTensor]];
    for (const bool doubles : {row[kExperts] == 2, row[kData] > 0, row[kSequence] > 0, row[kPipeline] > 0})
      if (doubles) ranks *= 2;
    return ranks <= 8 && (row[kPipeline] == 0 || row[kAccumulate] == 0);
  }
  Course course(const std::string& name, const Flags& flags) const {
    const run::Config c = policy(name, flags);
    train(c);
    Course found;
    for (const char* of : {"loss", "grad_norm", "reward", "kl", "entropy", "clipped_share", "value_loss"})
      for (const double value : metric(c, of)) found.numbers.push_back(value);
    for (const int64_t step : rollout_steps(c.run.folder + "/rollouts"))
      for (const StoredGroup& group : read_rollouts(c.run.folder + "/rollouts", step))
        for (const StoredAnswer& one : group.answers) found.ids.push_back(one.answer.ids);
    return found;
  }
  /// Returns the folder of a model, a mixture or not, that scores text or continues it.
  std::string source(bool is_mixture, bool scores) {
    const std::string name = concat(is_mixture ? "mixture" : "dense", scores ? "-scores" : "");
    if (const std::string& known = sources_[name]; !known.empty()) return known;
    Flags flags{"--training.steps=1", "--model.layers=2"};
    if (is_mixture) flags.push_back("--model.name=mixtral-tiny");
    if (!scores) return sources_[name] = base(name, flags);
    test::write_preferences(folder_.path());
    const run::Config c = config(name, test::joined(test::preference_flags(folder_.path(), "reward"), flags));
    train(c);
    return sources_[name] = c.run.folder;
  }
  /// Expects the courses of one process in each layout of the array whose number leaves `part` of kParts.
  void expect_course(int part, const Flags& method, bool has_value_model = false) {
    constexpr int kParts = 6;
    const auto all = axes();
    std::vector<int> sizes;
    for (const auto& axis : all) sizes.push_back(static_cast<int>(axis.size()));
    std::map<test::ArrayRow, Course> wanted;
    int number = 0, steps = 0;
    for (const test::ArrayRow& row : test::covering_array(sizes, is_allowed)) {
      if (number++ % kParts != part) continue;
      const bool is_mixture = row[kExperts] > 0;
      Flags flags = test::joined({"--precision.mode=fp64", "--model.from=" + source(is_mixture, false)}, method);
      // The balance loss compares the tokens of a micro-batch, so it depends on their number.
      if (is_mixture) flags.push_back("--model.experts.balance_loss=0");
      if (has_value_model) flags.push_back("--value.from=" + source(is_mixture, true));
      flags = test::joined(flags, all[kAdapter][static_cast<size_t>(row[kAdapter])]);
      const test::ArrayRow key{row[kAdapter], is_mixture};
      if (!wanted.contains(key)) wanted[key] = course("one", flags);
      const Course& want = wanted[key];
      Flags layout;
      for (size_t axis = kExperts; axis < kAxes; ++axis)
        layout = test::joined(layout, all[axis][static_cast<size_t>(row[axis])]);
      const std::string what = testing::PrintToString(layout) + testing::PrintToString(key);
      const Course got = course("other", test::joined(flags, layout));
      EXPECT_EQ(got.ids, want.ids) << what;
      test::expect_near(got.numbers, want.numbers, what, 1);
      ++steps;
    }
    EXPECT_GE(steps, 3) << "layouts";
  }

 private:
  std::map<std::string, std::string> sources_;
};

TEST_F(PolicyLayouts, GiveTheCourseOfOneProcessByGrpo) {
  expect_course(0, {"--alignment.method=grpo", "--training.steps=2"});  // leaves out rows without a gradient
}

TEST_F(PolicyLayouts, GiveTheCourseOfOneProcessByGrpoWithAReference) {
  expect_course(1, {"--alignment.method=grpo", "--alignment.kl=0.04", "--alignment.mini_batches=2",
                    "--training.batch_size=8", "--training.steps=4"});
}

TEST_F(PolicyLayouts, GiveTheCourseOfOneProcessByRloo) {
  expect_course(2, {"--alignment.method=rloo", "--training.steps=2"});
}

TEST_F(PolicyLayouts, GiveTheCourseOfOneProcessByReinforce) {
  expect_course(3, {"--alignment.method=reinforce++", "--training.steps=2"});
}

TEST_F(PolicyLayouts, GiveTheCourseOfOneProcessByPpo) {
  expect_course(4, {"--alignment.method=ppo", "--alignment.epochs=2", "--training.steps=4"}, true);
}

TEST_F(PolicyLayouts, GiveTheCourseOfOneProcessByPpoWithOneTrunk) {
  expect_course(5, {"--alignment.method=ppo", "--alignment.epochs=2", "--training.steps=4", "--value.trunk=policy",
                    "--alignment.mean=sequence"});
}

// The axis of the experts divides the rows of dense models.
TEST_F(PolicyLayouts, PutDenseModelsBesideExpertsOverRanks) {
  const Flags flags{"--precision.mode=fp64",
                    "--model.from=" + source(/*is_mixture=*/true, /*scores=*/false),
                    "--model.experts.balance_loss=0",
                    "--alignment.method=ppo",
                    "--alignment.epochs=2",
                    "--training.steps=4",
                    "--value.from=" + source(false, true),
                    "--reward.from=" + source(false, true)};
  const Course want = course("one", flags);
  for (const Flags& layout : {Flags{"--parallel.expert.size=2", "--parallel.data=2", "--parallel.zero=3"},
                              Flags{"--parallel.expert.size=2", "--parallel.sequence.size=2"}}) {
    const Course got = course("other", test::joined(flags, layout));
    EXPECT_EQ(got.ids, want.ids) << testing::PrintToString(layout);
    test::expect_near(got.numbers, want.numbers, testing::PrintToString(layout), 1);
  }
}

// Rows whose advantages are all 0 have no gradient, so updates leave them out. How many depends on the layout: the rows
// of an update must divide over micro-batches and ranks.
TEST_F(PolicyLayouts, LeaveOutRowsWithoutAGradient) {
  const Flags common{"--precision.mode=fp64", "--training.steps=2", "--reward.verifiers=regex"};
  for (const char* mean : {"--alignment.mean=sequence", "--alignment.mean=token"}) {
    const Flags flags = test::joined(common, {mean});
    const Course want = course("one", flags);
    const run::Config one = policy("one", flags);
    EXPECT_GE(metric(one, "zero_spread_groups").back(), 1);
    // An entropy that weighs nothing keeps all rows.
    const Flags all = test::joined(flags, {"--alignment.entropy=1e-30"});
    EXPECT_EQ(course("all", all).ids, want.ids) << mean;
    test::expect_near(metric(policy("all", all), "grad_norm"), metric(one, "grad_norm"), mean);
    for (const Flags& layout :
         {Flags{"--parallel.data=2", "--training.accumulate=4"},
          Flags{"--parallel.tensor.size=4", "--parallel.tensor.mode=2d", "--training.accumulate=8"}}) {
      const Course got = course("other", test::joined(flags, layout));
      EXPECT_EQ(got.ids, want.ids) << testing::PrintToString(layout);
      test::expect_near(got.numbers, want.numbers, testing::PrintToString(layout), 1);
    }
  }
}

TEST_F(PolicyLayouts, DrawAndTrainWithTheSameBitsOnTiers) {
  const std::string disk = "--memory.disk=" + folder_.path(), host = "--memory.host=64MiB",
                    panels = "--rollout.panels=true";
  const run::Config one = policy("one", {"--training.steps=2"}),
                    tiers = policy("tiers", {"--training.steps=2", host, disk, panels}),
                    shared = policy("shared", {"--training.steps=2", host, panels, "--parallel.data=2",
                                               "--parallel.zero=3", "--memory.recompute=block"}),
                    values = policy("values", {"--training.steps=2", host, disk});
  for (const run::Config& c : {one, tiers, shared, values}) train(c);
  for (const run::Config& c : {one, tiers, shared}) EXPECT_THAT(metric(c, "sampler_difference"), Each(0.0));
  // Sums of gradients have another order on tiers, so only the first answers have the same bits.
  const std::string found = answers(tiers), expected = answers(one);
  EXPECT_EQ(found.substr(0, found.find("\n2/")), expected.substr(0, expected.find("\n2/")));
  for (const char* name : {"grad_norm", "reward"})
    EXPECT_THAT(metric(tiers, name), testing::Pointwise(testing::DoubleNear(1e-5), metric(one, name)));
  EXPECT_THAT(metric(values, "sampler_difference"), Each(Lt(1e-4))) << "no panels: another order of sums";
}

// Ranks of the tensor mode hold equal parts of the vocabulary, which is padded to a multiple of them.
TEST_F(PolicyLayouts, DrawNoPaddingOfTheVocabulary) {
  const Flags many{"--training.steps=1",      "--rollout.prompts=8",       "--rollout.answers=16",
                   "--rollout.max_tokens=8",  "--training.batch_size=128", "--rollout.temperature=4",
                   "--parallel.tensor.size=4"};
  for (const Flags& flags : {Flags{}, Flags{"--precision.mode=fp64", "--parallel.tensor.mode=2d"}}) {
    const run::Config c = policy("padded", test::joined(many, flags));
    const int64_t vocabulary = run::resolve_model(c, program()).shape.vocabulary;
    ASSERT_NE(vocabulary % 4, 0);
    train(c);
    int64_t tokens = 0, largest = 0;
    for (const StoredGroup& group : read_rollouts(c.run.folder + "/rollouts", 1))
      for (const StoredAnswer& one : group.answers)
        for (const int64_t id : one.answer.ids) largest = std::max(largest, id), ++tokens;
    EXPECT_LT(largest, vocabulary);
    EXPECT_GT(tokens, 900) << "of 1024: 12 would be padding if it could be drawn";
  }
}

}  // namespace
}  // namespace colossal::align::policy_layouts_test
