// Preference training with a real reference: which model it is, that every layout computes the same, and that it stays
// what it was at the start.
#include "align/preference_runs.h"

#include <gmock/gmock.h>

#include <cmath>

#include "colossal/run/further_model.h"
#include "colossal/train/memory_needs.h"
#include "support/layouts.h"
#include "support/thrown_message.h"

namespace colossal::align::preference_runs_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class Preferences : public PreferenceRuns {
 protected:
  static std::vector<run::ResolvedFurther> further(const run::Config& c) {
    return run::resolve_run(c, program()).further;
  }
};

TEST_F(Preferences, EqualOneProcessUnderEveryLayout) {
  for (const std::vector<std::string>& method : {std::vector<std::string>{}, kto()}) {
    const std::vector<double> want = test::run_course(config("one", method), program());
    for (const std::vector<std::string>& flags : test::few_layouts(folder_.path()))
      test::expect_near(test::run_course(config("other", test::joined(flags, method)), program()), want,
                        testing::PrintToString(flags), 1);
  }
}

// The policy equals its reference before the first update, whatever it starts from.
TEST_F(Preferences, BeginWithTheKnownLoss) {
  const std::string from = base();
  const auto first = [&](std::vector<std::string> flags) {
    flags.push_back("--training.steps=2");
    const run::Config c = config("first", flags);
    train(c);
    EXPECT_NE(metric(c, "loss").at(1), metric(c, "loss").at(0)) << "the policy moves away";
    return metric(c, "loss").at(0);
  };
  const double close = 1e-12;
  EXPECT_NEAR(first({}), std::log(2.0), close) << "drawn weights";
  const std::string source = "--model.from=" + from;
  EXPECT_NEAR(first({source}), std::log(2.0), close);
  EXPECT_NEAR(first({source, "--alignment.smoothing=0.2"}), std::log(2.0), close);
  EXPECT_NEAR(first({source, "--alignment.loss=robust", "--alignment.smoothing=0.2"}), std::log(2.0), close);
  EXPECT_NEAR(first({source, "--alignment.loss=hinge"}), 1, close);
  EXPECT_GT(first({source, "--alignment.nll=0.5"}), std::log(2.0)) << "with the likelihood of the chosen answers";
  EXPECT_NEAR(first({source, "--alignment.method=ipo"}), 25, 25 * close);
  EXPECT_NEAR(first(kto({source})), 0.5, close);
  EXPECT_NEAR(first({source, "--adapter.kind=lora"}), std::log(2.0), close);
  EXPECT_NEAR(first({source, "--adapter.kind=dora", "--adapter.trained=embed_tokens"}), std::log(2.0), close);
  EXPECT_NEAR(first({source, "--adapter.kind=lora", "--adapter.base=nf4"}), std::log(2.0), close);
  EXPECT_NEAR(first({source, "--adapter.kind=lora", "--adapter.base=nf4", "--adapter.trained=embed_tokens"}),
              std::log(2.0), close)
      << "the reference has the same codes";
  EXPECT_GT(std::abs(first({source, "--adapter.kind=lora", "--adapter.base=nf4", "--reference.from=" + from}) -
                     std::log(2.0)),
            close)
      << "the named reference has values";
  EXPECT_NEAR(first({source, "--precision.mode=bf16"}), std::log(2.0), 1e-2);
  EXPECT_GT(std::abs(first({source, "--reference.from=" + base("other", {"--training.steps=1"})}) - std::log(2.0)),
            close);
}

TEST_F(Preferences, EndWithAnErrorIfTheFirstLossIsAnother) {
  const std::string from = base();
  const auto message = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--model.from=" + from, "--parallel.data=2"});
    const run::Config c = config("wrong", flags);
    const std::string whole = test::thrown_message([&] {
      comm::run_ranks(2, [&](comm::World& world) {
        train::Trainer trainer(world, c, {.start = train::Start::Overwrite, .program = program()});
        for (const checkpoint::NamedTensor& weight : trainer.engine().weights())
          if (weight.name == "reference.blocks.0.mlp.down.weight") weight.value.write().value.mul_(3);
        trainer.engine().weights_loaded();
        trainer.run();
      });
    });
    return whole.substr(0, whole.find(" (rank"));  // any rank may be the first
  };
  EXPECT_THAT(message({}), AllOf(HasSubstr("[alignment] the first loss must be 0.693147"),
                                 HasSubstr("the reference has other weights")));
  EXPECT_THAT(message({"--alignment.method=ipo"}), HasSubstr("the first loss must be 25"));
  EXPECT_THAT(message(kto()), HasSubstr("the first loss must be 0.5"));
  EXPECT_THAT(message({"--precision.mode=fp32"}), HasSubstr("the first loss must be 0.693147"));
  EXPECT_THAT(message({"--alignment.nll=1"}), HasSubstr("the first loss must be "));
  EXPECT_EQ(message({"--reference.from=" + from}), message({})) << "the model from which it starts, by its name";
}

TEST_F(Preferences, FindTheReference) {
  const std::string from = "--model.from=" + base();
  const auto use = [&](const std::vector<std::string>& flags) {
    const auto models = further(config("x", flags));
    EXPECT_EQ(models.size(), 1u);
    return models.at(0).model.use;
  };
  EXPECT_EQ(use({from}), run::ModelUse::Original);
  const run::Config planned = config("x", {from});
  std::vector<std::string> names;
  for (const train::ModelSize& size :
       train::model_sizes({planned, train::models_of(planned, run::resolve_run(planned, program()))}))
    names.push_back(size.name);
  EXPECT_THAT(names, ElementsAre("", "reference")) << "what a plan lists";
  EXPECT_EQ(further(config("x", {from})).at(0).source.path, folder_ / "base");
  EXPECT_EQ(use({from, "--adapter.kind=lora"}), run::ModelUse::WithoutAdapters);
  EXPECT_EQ(use({from, "--adapter.kind=lora", "--adapter.trained=embed_tokens"}), run::ModelUse::WithoutAdapters)
      << "with an original of the embedding";
  EXPECT_EQ(use({from, "--reference.from=llama-tiny"}), run::ModelUse::Frozen);
  EXPECT_TRUE(further(config("x", {from, "--reference.precompute=true"})).empty());
  for (const std::string method : {"sft", "simpo", "orpo"}) {
    const std::vector<std::string> flags{from, "--alignment.method=" + method};
    EXPECT_TRUE(further(config("x", flags)).empty()) << method;
  }
}

TEST_F(Preferences, RefuseReferencesThatDoNotFit) {
  const auto refused = [&](std::vector<std::string> flags) {
    flags.push_back("--training.steps=1");
    return test::thrown_message([&] { train(config("refused", flags)); });
  };
  EXPECT_THAT(refused({"--reference.from=gpt2-tiny"}),
              AllOf(HasSubstr("[reference] the reference must have the shape and the vocabulary"),
                    HasSubstr("got a gpt2 and not a llama")));
  EXPECT_THAT(refused({"--reference.from=" + base("wide", {"--model.hidden=64"})}),
              HasSubstr("model.hidden 64 and not 32"));
  EXPECT_THAT(refused({"--reference.from=nowhere"}), HasSubstr("nowhere"));
  EXPECT_THAT(refused({"--reference.cache=x"}), HasSubstr("cache needs reference.precompute"));
  EXPECT_THAT(refused({"--reference.optimizer.name=sgd"}), HasSubstr("reference.optimizer"));
  EXPECT_THAT(refused({"--alignment.method=simpo", "--reference.from=llama-tiny"}),
              HasSubstr("from needs alignment.method dpo, ipo or kto"));
}

// The base with the adapters as they were loaded, which are trained further.
TEST_F(Preferences, CompareWithLoadedAdapters) {
  const std::string from = base();
  const std::string adapters = base("lora", {"--model.from=" + from, "--adapter.kind=lora", "--adapter.rank=3",
                                             "--adapter.trained=embed_tokens", "--training.steps=6"});
  const std::vector<std::string> flags{"--model.from=" + from, "--adapter.from=" + adapters};
  const run::Config c = config("further", flags);
  ASSERT_EQ(further(c).at(0).model.use, run::ModelUse::Original);
  const auto trained = train(c);
  const std::vector<double> losses = metric(c, "loss");
  EXPECT_NEAR(losses.at(0), std::log(2.0), 1e-12);
  const auto& of_reference = trained.at("reference.blocks.1.mlp.down.adapter_b");
  EXPECT_GT(of_reference.abs().max().item<double>(), 0) << "the adapters are loaded";
  EXPECT_FALSE(at::equal(of_reference, trained.at("blocks.1.mlp.down.adapter_b"))) << "and those of the model train";
  EXPECT_FALSE(at::equal(trained.at("reference.embedding.weight"), trained.at("embedding.weight")));
  // A run whose adapters are merged has the same reference in one model.
  const run::Config merged = config("merged", {"--model.from=" + adapters});
  train(merged);
  EXPECT_NEAR(metric(merged, "loss").at(0), std::log(2.0), 1e-12);
  EXPECT_FALSE(train(merged).contains("reference.blocks.1.mlp.down.adapter_b"));
}

// The reference of a resumed run is the one of its start, though the run that it came from has gone on.
TEST_F(Preferences, KeepTheReferenceWhenTheyResume) {
  const std::string from = base();
  const std::vector<std::string> flags{"--model.from=" + from, "--training.save_every=2"};
  const run::Config whole = config("whole", flags), parts = config("parts", flags);
  train(whole);
  train(parts, train::Start::New, 2);
  run::Config longer = run::read_given_config(from + "/config.toml", {"--training.steps=5"}).config;
  train(longer, train::Start::Resume);
  std::vector<std::string> other = flags;
  other.insert(other.end(), {"--parallel.data=2", "--parallel.zero=3"});
  train(config("parts", other), train::Start::Resume);
  const std::vector<double> want = metric(whole, "loss"), got = metric(parts, "loss");
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-10) << i;
  EXPECT_THAT(read_file(parts.run.folder + "/log-rank-0.txt", 1 << 24), HasSubstr("reference is read from"));
  // Without that checkpoint the run does not continue with another reference.
  for (const auto& entry : std::filesystem::directory_iterator(from + "/checkpoints"))
    if (entry.path().string().ends_with("3")) std::filesystem::remove_all(entry.path());
  run::Config more = config("parts", flags);
  more.training.steps = 6;
  EXPECT_THAT(test::thrown_message([&] { train(more, train::Start::Resume); }), HasSubstr("got others for reference"));
}

// With new adapters, modules that train whole have frozen originals, and nothing else is there twice.
TEST_F(Preferences, KeepTheOriginalsOfTrainedModules) {
  const std::string from = "--model.from=" + base(), kind = "--adapter.kind=lora",
                    trained = "--adapter.trained=[\"embed_tokens\", \"*.1.mlp.down_proj\"]";
  const std::vector<std::string> flags{from, kind, trained, "--training.save_every=2"};
  const run::Config whole = config("whole", flags);
  const auto values = train(whole);
  std::vector<std::string> originals;
  int64_t elements = 0;
  for (const auto& [name, value] : values) {
    if (!name.starts_with("reference.")) continue;
    originals.push_back(name);
    elements += value.numel();
    EXPECT_FALSE(at::equal(value, values.at(name.substr(10)))) << name << " trains in the model";
  }
  EXPECT_THAT(originals, ElementsAre("reference.blocks.1.mlp.down.weight", "reference.embedding.weight"));
  const std::vector<train::ModelSize> sizes =
      train::model_sizes({whole, train::models_of(whole, run::resolve_run(whole, program()))});
  ASSERT_EQ(sizes.size(), 2u);
  EXPECT_EQ(sizes[1].name, "reference");
  EXPECT_EQ(sizes[1].parameters, elements);
  EXPECT_EQ(sizes[1].trained, 0);
  EXPECT_GE(sizes[1].bytes, elements * 8);
  EXPECT_LT(sizes[1].bytes, elements * 9) << "with the alignment of chunks";
  // A second model of the base computes the same.
  std::vector<std::string> named = flags;
  named.push_back("--reference.from=" + (folder_ / "base"));
  const run::Config beside = config("beside", named);
  train(beside);
  const std::vector<double> want = metric(beside, "loss");
  const auto expect_same = [&](const run::Config& c, const std::string& what) {
    const std::vector<double> got = metric(c, "loss");
    ASSERT_EQ(got.size(), want.size()) << what;
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-10) << what << ", step " << i;
  };
  expect_same(whole, "in one model");
  // A run that resumes, in any layout, reads the originals again; drawn ones are drawn again.
  const std::vector<std::vector<std::string>> layouts{
      {"--parallel.data=2", "--parallel.zero=3"},
      {"--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=2", "--parallel.tensor.size=2"},
      {"--memory.host=64MiB", "--memory.disk=" + folder_.path()}};
  for (const auto& layout : layouts) {
    const run::Config parts = config("parts", flags);
    train(parts, train::Start::Overwrite, 2);
    std::vector<std::string> other = flags;
    other.insert(other.end(), layout.begin(), layout.end());
    train(config("parts", other), train::Start::Resume);
    expect_same(parts, testing::PrintToString(layout));
  }
  const std::vector<std::string> drawn{kind, trained, "--training.save_every=2"};
  const run::Config at_once = config("at_once", drawn), resumed = config("resumed", drawn);
  train(at_once);
  train(resumed, train::Start::Overwrite, 2);
  train(resumed, train::Start::Resume);
  EXPECT_EQ(metric(at_once, "loss"), metric(resumed, "loss"));
}

TEST_F(Preferences, LearnWhatIsPreferred) {
  const run::Config c =
      config("learns", {"--training.steps=30", "--training.evaluate_every=10", "--training.evaluate_batches=1"});
  train(c);
  const std::vector<double> margins = metric(c, "eval_margin");
  ASSERT_EQ(margins.size(), 3u);
  EXPECT_GT(margins[0], 0);
  EXPECT_GT(margins[2], margins[0]);
  EXPECT_EQ(metric(c, "eval_preference_accuracy").back(), 1);
  EXPECT_EQ(metric(c, "margin").at(0), 0) << "before the first update";
  EXPECT_GT(metric(c, "chosen_reward").back(), metric(c, "rejected_reward").back());
}

// A huge beta asks for no distance from the reference at all: IPO wants log-ratios of 1 / (2 beta), and the sigmoid of
// DPO is satisfied after a step.
TEST_F(Preferences, StayAtTheReferenceWithAHugeBeta) {
  const auto distance = [&](double beta, const std::vector<std::string>& flags) {
    const std::vector<std::string> own{concat("--alignment.beta=", beta), "--training.steps=30",
                                       "--training.evaluate_every=30", "--optimizer.learning_rate=0.01",
                                       "--optimizer.final_learning_rate=0.01"};
    const run::Config c = config("beta", test::joined(own, flags));
    train(c);
    return metric(c, "eval_margin").back() / beta;  // of log-ratios
  };
  const std::vector<std::string> dpo{"--optimizer.name=sgd", "--optimizer.momentum=0"},
      ipo{"--alignment.method=ipo", "--alignment.loss=sum"};
  EXPECT_LT(distance(1000, dpo), 0.2 * distance(0.1, dpo));
  EXPECT_LT(std::abs(distance(1000, ipo)), 0.05 * distance(0.1, ipo));
}

}  // namespace
}  // namespace colossal::align::preference_runs_test
