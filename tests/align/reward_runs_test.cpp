// Runs that train reward models, and what is read of their folders.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>

#include "align/preference_runs.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/comm/mesh.h"
#include "colossal/infer/text_scorer.h"
#include "colossal/run/saved_model.h"
#include "support/thrown_message.h"

namespace colossal::align::reward_runs_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kLines = 40;  // of test::write_preferences()

class RewardRuns : public PreferenceRuns {
 protected:
  run::Config reward(const std::string& name, std::vector<std::string> flags = {}) const {
    flags.insert(flags.begin(), "--alignment.method=reward");
    return config(name, flags);
  }
  /// Scores texts of bytes with the model of a folder.
  static std::vector<float> scores(const std::string& folder, const std::vector<std::string>& texts,
                                   run::Loading loading = {}, const infer::EngineOptions& options = {}) {
    std::vector<float> found;
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, distributed::ParallelConfig{}.axes());
      loading.tokenizer = "bytes";
      loading.scores = true;
      if (loading.merges_adapters) loading.packing = nn::WeightPacking{};
      const run::SavedModel saved = run::load_model(folder, mesh, {}, at::kCPU, loading, program());
      std::vector<std::vector<int64_t>> ids;
      for (const std::string& text : texts) {
        ids.push_back(saved.tokenizer->encode_prompt(text));
        ids.back().push_back(saved.tokenizer->end_id());
      }
      found = infer::TextScorer(*saved.model, options).score(ids);
    });
    return found;
  }
};

TEST_F(RewardRuns, LearnWhatIsPreferred) {
  const run::Config c =
      reward("learns", {"--training.steps=30", "--training.evaluate_every=10", "--training.evaluate_batches=1"});
  const auto trained = train(c);
  EXPECT_NEAR(metric(c, "loss").at(0), std::log(2.0), 1e-12) << "the head starts at 0";
  EXPECT_EQ(metric(c, "preference_accuracy").at(0), 0) << "equal scores are in no order";
  EXPECT_EQ(metric(c, "eval_preference_accuracy").back(), 1);
  EXPECT_GT(metric(c, "eval_margin").back(), 1);
  EXPECT_EQ(trained.at("head.score.weight").sizes(), (std::vector<int64_t>{1, 32}));
  EXPECT_FALSE(trained.contains("head.weight"));
  const nlohmann::json written = read_json_object(c.run.folder + "/config.json", "test");
  EXPECT_EQ(written["architectures"][0], "LlamaForSequenceClassification");
  EXPECT_TRUE(written["pad_token_id"].is_null());
}

// The scores of a loaded model are those of held-out pairs in training, whatever stands beside them.
TEST_F(RewardRuns, ScoreAsInTraining) {
  const run::Config c = reward("scores", {"--training.steps=6", "--training.evaluate_batches=2",
                                          "--precision.mode=fp32", "--data.path=" + (folder_ / "pairs.jsonl")});
  train(c);
  const double margin = metric(c, "eval_margin").back();
  std::vector<std::string> texts;  // all pairs; some of them were held out
  for (int i = 0; i < kLines; ++i) {
    const std::string prompt = concat("Add ", i * 37 % 101, ": ");
    texts.push_back(concat(prompt, "It is ", i % 3 == 0 ? "so " : "", i, "."));
    texts.push_back(prompt + (i % 4 == 1 ? "I do not know" : "no"));
  }
  const std::vector<float> all = scores(c.run.folder, texts);
  double sum = 0;
  for (size_t i = 0; i < all.size(); i += 2) sum += all[i] - all[i + 1];
  EXPECT_NEAR(sum / kLines, margin, 0.5 * std::abs(margin)) << "of other pairs of the same kind";
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(scores(c.run.folder, {texts[i]}).at(0), all[i]) << texts[i];
    EXPECT_EQ(scores(c.run.folder, {texts[39], texts[i], texts[8]}, {}, {.step_tokens = 7}).at(1), all[i])
        << "in chunks, beside others";
  }
}

TEST_F(RewardRuns, StartFromAModelThatContinuesText) {
  const std::string from = base();
  const run::Config c = reward("further", {"--model.from=" + from, "--training.steps=3"});
  const auto trained = train(c);
  EXPECT_NEAR(metric(c, "loss").at(0), std::log(2.0), 1e-12);
  EXPECT_THAT(read_file(c.run.folder + "/log-rank-0.txt", 1 << 24), HasSubstr("that head starts at 0"));
  EXPECT_EQ(read_json_object(c.run.folder + "/config.json", "test")["architectures"][0],
            "LlamaForSequenceClassification");
  // A reward model goes on with its head.
  const run::Config more = reward("more", {"--model.from=" + c.run.folder, "--training.steps=1"});
  train(more);
  EXPECT_LT(metric(more, "loss").at(0), metric(c, "loss").back());
  EXPECT_THAT(test::thrown_message([&] { train(config("dpo", {"--model.from=" + c.run.folder})); }),
              HasSubstr("needs a model whose head continues text: got a llama, which scores text"));
}

TEST_F(RewardRuns, TrainTheHeadBesideAdapters) {
  const std::string from = base();
  const std::vector<std::string> lora{"--model.from=" + from, "--adapter.kind=lora", "--adapter.rank=3",
                                      "--training.steps=6"};
  const run::Config c = reward("lora", lora);
  const auto trained = train(c);
  EXPECT_GT(trained.at("head.score.weight").abs().max().item<double>(), 0);
  EXPECT_THAT(read_file(c.run.folder + "/config.toml", 1 << 20), HasSubstr("trained = [\"score\"]"));
  const std::vector<std::string> texts{"Add 37: It is 1.", "Add 37: no"};
  run::Loading apart;
  apart.merges_adapters = false;
  const std::vector<float> of_run = scores(c.run.folder, texts), unmerged = scores(c.run.folder, texts, apart);
  run::Loading beside;
  beside.adapter = run::AdapterChoice{.folder = c.run.folder};
  const std::vector<float> on_base = scores(from, texts, beside);
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_NE(of_run[i], 0);
    EXPECT_NEAR(unmerged[i], of_run[i], 1e-5 * std::abs(of_run[i]));
    EXPECT_NEAR(on_base[i], of_run[i], 1e-5 * std::abs(of_run[i]));
  }
  // Codes of the base, and a resumed run.
  std::vector<std::string> codes = lora;
  codes.insert(codes.end(), {"--adapter.base=nf4", "--training.save_every=3"});
  const run::Config whole = reward("codes", codes), parts = reward("parts", codes);
  const auto want = train(whole);
  train(parts, train::Start::New, 3);
  const auto got = train(parts, train::Start::Resume);
  EXPECT_TRUE(at::equal(got.at("head.score.weight"), want.at("head.score.weight")));
}

// The head is trained whole beside them, by ranks that hold other parts of the model.
TEST_F(RewardRuns, TrainAdaptersUnderEveryLayout) {
  using Layouts = std::vector<std::vector<std::string>>;
  const auto expect_losses_of_one = [&](const std::string& from, const Layouts& layouts) {
    const auto losses = [&](const std::string& name, std::vector<std::string> flags) {
      flags.insert(flags.end(), {"--model.from=" + from, "--adapter.kind=lora", "--adapter.rank=3",
                                 "--training.evaluate_batches=0"});
      const run::Config c = reward(name, flags);
      train(c);
      return metric(c, "loss");
    };
    const std::vector<double> want = losses("alone", {});
    EXPECT_LT(want.back(), want.front());
    for (const auto& layout : layouts)
      EXPECT_THAT(losses("layout", layout), testing::Pointwise(testing::DoubleNear(1e-10), want))
          << testing::PrintToString(layout);
  };
  const std::string size = "--parallel.tensor.size=", mode = "--parallel.tensor.mode=";
  expect_losses_of_one(base(), {{"--parallel.data=2", "--parallel.zero=3", "--memory.host=64MiB"},
                                {size + "2", "--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=2"},
                                {size + "4", mode + "2d", "--training.accumulate=2"},
                                {size + "8", mode + "2.5d", "--parallel.tensor.depth=2"},
                                {size + "8", mode + "3d"},
                                {"--parallel.sequence.size=2", "--memory.recompute=block"},
                                {"--parallel.sequence.size=2", "--parallel.sequence.mode=ulysses"}});
  expect_losses_of_one(base("mixture", {"--model.name=mixtral-tiny"}),
                       {{"--parallel.expert.size=2", "--parallel.zero=2"}, {"--parallel.expert.size=2", size + "2"}});
}

TEST_F(RewardRuns, ContinueInAnotherLayout) {
  const std::vector<std::string> flags{"--training.save_every=2"};
  const run::Config whole = reward("whole", flags), parts = reward("parts", flags);
  train(whole);
  train(parts, train::Start::New, 2);
  train(reward("parts", {"--training.save_every=2", "--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=2",
                         "--parallel.tensor.size=2"}),
        train::Start::Resume);
  const std::vector<double> want = metric(whole, "loss"), got = metric(parts, "loss");
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-10) << i;
}

TEST_F(RewardRuns, RefuseToContinueText) {
  const run::Config c = reward("refused", {"--training.steps=1"});
  train(c);
  const auto load = [&](const std::string& folder, bool wants_scores) {
    return test::thrown_message([&] {
      comm::run_ranks(1, [&](comm::World& world) {
        comm::Mesh mesh(world, distributed::ParallelConfig{}.axes());
        run::load_model(folder, mesh, {}, at::kCPU, {.scores = wants_scores}, program());
      });
    });
  };
  EXPECT_THAT(load(c.run.folder, false), AllOf(HasSubstr("which scores text: it has no text to continue"),
                                               HasSubstr("`colossal score` prints its scores")));
  EXPECT_THAT(load(base(), true), AllOf(HasSubstr("[score]"), HasSubstr("which continues text: it has no head of a "
                                                                        "reward model")));
}

}  // namespace
}  // namespace colossal::align::reward_runs_test
