// Runs of methods that draw answers: what they learn, store, repeat and refuse.
#include "align/policy_runs.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "colossal/checkpoint/gguf/export.h"
#include "colossal/comm/mesh.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/run/external_names.h"
#include "colossal/run/saved_model.h"
#include "colossal/text/tokenizers/gguf_vocabulary.h"
#include "support/thrown_message.h"

namespace colossal::align::policy_runs_test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

/// The flags of a run that can be compared bit by bit with itself.
const std::vector<std::string> kShort{"--training.steps=4", "--training.save_every=1"};

const std::vector<std::string> kExperts{"--model.name=mixtral-tiny", "--parallel.expert.size=2"};
const char* const kAdaptedExperts = "--adapter.targets=[\"all-linear\", \"experts\"]";

/// Writes the model of a run folder as a GGUF file of quantized matrices, and returns its path.
std::string quantized(const std::string& from) {
  const std::string to = from + ".gguf";
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, distributed::ParallelConfig{}.axes());
    const run::SavedModel saved = run::load_model(from, mesh, {}, at::kCPU, {.tokenizer = "bytes"});
    const models::ModelShape& shape = saved.model->model().shape;
    checkpoint::export_gguf(to, saved.model->parameters(), run::external_names(shape),
                            shape.architecture->hugging_face.to_json(shape),
                            text::gguf_of_tokenizer("bytes", shape.vocabulary), "q8_0", mesh.all());
  });
  return to;
}

TEST_F(PolicyRuns, LearnWhatVerifiersReward) {
  const run::Config c = policy("learns", {"--reward.verifiers=regex", "--training.steps=30", "--rollout.answers=8",
                                          "--training.batch_size=32", "--optimizer.learning_rate=0.01"});
  train(c);
  const std::vector<double> reward = metric(c, "reward");
  ASSERT_EQ(reward.size(), 30u);
  EXPECT_GT((reward[27] + reward[28] + reward[29]) / 3, (reward[0] + reward[1] + reward[2]) / 3 + 0.2);
  EXPECT_THAT(metric(c, "sampler_difference"), Each(0.0));
  EXPECT_EQ(metric(c, "reward_regex"), reward);
}

/// Returns lines that ask for four digits in order; with `is_learned` they have the completion, else the answer.
std::string sorting_lines(int count, bool is_learned) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    const std::string digits = std::to_string(10000 + (i * 7919 + (is_learned ? 0 : 5)) % 10000).substr(1);
    std::string sorted = digits;
    std::sort(sorted.begin(), sorted.end());
    lines += concat(R"({"prompt": ")", digits, R"(=", ")", is_learned ? "completion" : "answer", R"(": ")", sorted,
                    is_learned ? "\\n" : "", "\"}\n");
  }
  return lines;
}

// The task of examples/sort_grpo.toml with four digits: a model that sorts some of them improves on its own answers.
TEST_F(PolicyRuns, LearnToSortFourDigits) {
  write_file(folder_ / "sft.jsonl", sorting_lines(1500, true));
  write_file(folder_ / "digits.jsonl", sorting_lines(1500, false));
  const run::Config first = test::tiny_config(
      "examples/sft.toml",
      {"--run.folder=" + (folder_ / "sorts"), "--data.chat_template=", "--data.path=" + (folder_ / "sft.jsonl"),
       "--data.sequence=64", "--data.held_out=0", "--training.evaluate_batches=0", "--precision.mode=fp32",
       "--model.hidden=96", "--model.layers=2", "--model.ffn=192", "--training.steps=50", "--training.batch_size=16",
       "--optimizer.learning_rate=0.003", "--optimizer.schedule=constant", "--optimizer.warmup_steps=10",
       "--optimizer.weight_decay=0"});
  train(first);
  const run::Config c = policy(
      "sorted", {"--model.from=" + first.run.folder, "--data.path=" + (folder_ / "digits.jsonl"),
                 "--reward.verifiers=exact", "--rollout.prompts=16", "--rollout.answers=8", "--training.batch_size=128",
                 "--rollout.max_tokens=8", "--training.steps=30", "--optimizer.learning_rate=4e-4",
                 "--optimizer.schedule=constant", "--optimizer.weight_decay=0"});
  train(c);
  const std::vector<double> reward = metric(c, "reward");
  ASSERT_EQ(reward.size(), 30u);
  const double before = reward[0], after = std::accumulate(reward.end() - 10, reward.end(), 0.0) / 10;
  EXPECT_GT(before, 0.05) << "the first stage must make right answers possible";
  EXPECT_LT(before, 0.7);
  EXPECT_GT(after, before + 0.12);
}

// With canonical passes the drawn log-probabilities are those of training, so the first ratio is exactly 1: the loss of
// grpo is a mean of advantages, which is 0 within a group whose answers all have the same weight.
TEST_F(PolicyRuns, DrawAndTrainWithTheSameBits) {
  const std::string from = base("base", {"--precision.mode=fp32"}),
                    mixture = base("mixture", {"--precision.mode=fp32", "--model.name=mixtral-tiny"});
  const std::vector<std::vector<std::string>> runs{
      {"--precision.mode=bf16"},
      {"--rollout.temperature=0.7", "--alignment.mini_batches=2", "--training.batch_size=8"},
      {"--model.from=" + from, "--adapter.kind=lora", "--adapter.rank=3"},
      {"--model.from=" + from, "--adapter.kind=lora", "--adapter.rank=3", "--adapter.base=nf4"},
      {"--parallel.data=2", "--parallel.zero=3"},
      {"--parallel.tensor.size=2"},
      {"--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=2"},
      kExperts,
      {"--model.from=" + mixture, "--parallel.expert.size=2", "--adapter.kind=lora", kAdaptedExperts,
       "--adapter.base=nf4"},
      {"--model.from=" + quantized(mixture), "--adapter.kind=lora", kAdaptedExperts}};
  for (size_t i = 0; i < runs.size(); ++i) {
    const run::Config c = policy(concat("same", i), runs[i]);
    train(c);
    EXPECT_THAT(metric(c, "sampler_difference"), Each(0.0)) << testing::PrintToString(runs[i]);
  }
  // In bf16 some processors round both to the same logits.
  const run::Config other = policy("other", {"--rollout.canonical=false", "--model.hidden=96", "--model.ffn=900"});
  train(other);
  const std::vector<double> difference = metric(other, "sampler_difference");
  EXPECT_GT(*std::max_element(difference.begin(), difference.end()), 0);
  EXPECT_THAT(difference, Each(testing::Lt(1e-3)));
}

TEST_F(PolicyRuns, ContinueBitForBit) {
  for (const std::string& method : {"grpo", "rloo", "reinforce++"}) {
    const run::Config whole = policy("whole-" + method, kShort, method),
                      parts = policy("parts-" + method, kShort, method);
    const auto want = train(whole);
    train(parts, train::Start::New, 2);
    const auto got = train(parts, train::Start::Resume);
    for (const auto& [name, value] : want) EXPECT_TRUE(at::equal(got.at(name), value)) << method << name;
    EXPECT_EQ(answers(parts), answers(whole)) << method;
    for (const char* name : {"loss", "reward", "grad_norm"}) EXPECT_EQ(metric(parts, name), metric(whole, name));
  }
}

// Panels that an update did not rewrite would draw and train alike. A run that continues packs them anew.
TEST_F(PolicyRuns, RewriteThePanelsOfExpertsAfterUpdates) {
  const std::vector<std::string> flags = test::joined(kShort, kExperts);
  const run::Config whole = policy("whole", flags), parts = policy("parts", flags);
  train(whole);
  train(parts, train::Start::New, 2);
  train(parts, train::Start::Resume);
  EXPECT_EQ(answers(parts), answers(whole));
}

TEST_F(PolicyRuns, ContinueWithAnswersThatWereDrawnAhead) {
  const std::vector<std::string> flags = test::joined(kShort, {"--rollout.ahead=1"});
  const run::Config whole = policy("whole", flags), parts = policy("parts", flags);
  const auto want = train(whole);
  train(parts, train::Start::New, 2);
  std::filesystem::remove_all(parts.run.folder + "/rollouts");  // the checkpoint has what waits
  const auto got = train(parts, train::Start::Resume);
  for (const auto& [name, value] : want) EXPECT_TRUE(at::equal(got.at(name), value)) << name;
  const std::vector<double> difference = metric(whole, "sampler_difference");
  EXPECT_EQ(difference[0], 0);
  EXPECT_GT(difference[1], 0) << "step 2 trains on answers of the starting weights";
}

// The first ratio is 1 for answers of older weights, too, so nothing is clipped.
TEST_F(PolicyRuns, PassOldAnswersAfterALoweredAhead) {
  const std::vector<std::string> flags =
      test::joined(kShort, {"--alignment.clip_low=1e-6", "--alignment.clip_high=1e-6"});
  train(policy("lowered", test::joined(flags, {"--rollout.ahead=2"})), train::Start::New, 1);
  const run::Config c = policy("lowered", flags);
  train(c, train::Start::Resume);
  const std::vector<double> difference = metric(c, "sampler_difference");
  ASSERT_EQ(difference.size(), 4u);
  EXPECT_GT(difference[2], 0) << "step 3 trains on answers of the starting weights";
  EXPECT_EQ(difference[3], 0);
  EXPECT_THAT(metric(c, "clipped_share"), AllOf(testing::Not(testing::IsEmpty()), Each(0.0)));
}

TEST_F(PolicyRuns, RefuseOtherCountsThanThoseDrawnAhead) {
  train(policy("counts", test::joined(kShort, {"--rollout.ahead=1"})), train::Start::New, 1);
  const run::Config c =
      policy("counts", test::joined(kShort, {"--rollout.ahead=1", "--rollout.answers=2", "--training.batch_size=8"}));
  EXPECT_THAT(test::thrown_message([&] { train(c, train::Start::Resume); }),
              HasSubstr("step 2 ahead, 4 and 4: got 4 and 2; restore rollout.prompts and answers"));
}

// A run without a checkpoint starts again, and finds what it has drawn and scored.
TEST_F(PolicyRuns, UseTheRecordsOfAnEarlierStart) {
  const run::Config whole = policy("whole"), again = policy("again");
  const auto want = train(whole);
  train(again);
  std::filesystem::remove_all(again.run.folder + "/checkpoints");
  const std::string stored = answers(again);
  const auto got = train(again, train::Start::Resume);
  for (const auto& [name, value] : want) EXPECT_TRUE(at::equal(got.at(name), value)) << name;
  EXPECT_EQ(answers(again), stored);
  int files = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(again.run.folder + "/rollouts"))
    files += file.is_regular_file() ? 1 : 0;
  EXPECT_EQ(files, 4) << "no answer was drawn again";
}

// A run that resumes without a checkpoint must round as at its start.
TEST_F(PolicyRuns, KeepTheLibrariesOfTheFirstStart) {
  const ops::MatmulChoice before = ops::matmul_choice();
  const run::Config c = policy("libraries", {"--run.matmul=auto", "--training.steps=1"});
  train(c);
  EXPECT_EQ(read_file(c.run.folder + "/matmul", 64), concat(ops::matmul_choice().encode(), "\n"));
  ops::MatmulChoice other = ops::matmul_choice();
  other.nt = other.nt == ops::MatmulLibrary::Mkl ? ops::MatmulLibrary::OneDnn : ops::MatmulLibrary::Mkl;
  write_file(c.run.folder + "/matmul", concat(other.encode(), "\n"));
  std::filesystem::remove_all(c.run.folder + "/checkpoints");
  train(c, train::Start::Resume);
  EXPECT_EQ(ops::matmul_choice(), other);
  ops::set_matmul(before);
}

TEST_F(PolicyRuns, StayAtTheReferenceWithALargeWeight) {
  const std::vector<std::string> flags{"--model.from=" + base("base", {"--precision.mode=fp32"}), "--training.steps=6",
                                       "--optimizer.learning_rate=0.001"};
  const run::Config loose = policy("loose", test::joined(flags, {"--alignment.kl=1e-9"})),
                    held = policy("held", test::joined(flags, {"--alignment.kl=1000"}));
  train(loose), train(held);
  EXPECT_LT(metric(held, "kl").back(), 1e-3);
  EXPECT_LT(metric(held, "kl").back(), metric(loose, "kl").back());
}

TEST_F(PolicyRuns, ReplaceGroupsWithoutSpread) {
  const run::Config c = policy("dynamic", {"--alignment.dynamic=true", "--alignment.max_waves=3"}),
                    plain = policy("plain");
  train(c), train(plain);
  const std::vector<double> with = metric(c, "zero_spread_groups"), without = metric(plain, "zero_spread_groups");
  EXPECT_LE(with[0], without[0]);
  const std::vector<StoredGroup> first = read_rollouts(c.run.folder + "/rollouts", 1);
  if (without[0] > 0) EXPECT_GT(first.size(), 4u);
}

// An update leaves out rows without a gradient. A weight of the entropy keeps them, and one so small changes no bit.
TEST_F(PolicyRuns, DivideByAllAnswersIfSomeRowsAreLeftOut) {
  for (const char* mean : {"sequence", "constant"}) {
    const std::vector<std::string> flags{"--training.steps=1", "--reward.verifiers=regex",
                                         concat("--alignment.mean=", mean)};
    const run::Config some = policy("some", flags),
                      all = policy("all", test::joined(flags, {"--alignment.entropy=1e-30"})),
                      parts = policy("parts", test::joined(flags, {"--training.accumulate=16"}));
    train(some), train(all), train(parts);
    ASSERT_GT(metric(some, "zero_spread_groups")[0], 0);
    EXPECT_NEAR(metric(some, "grad_norm")[0], metric(all, "grad_norm")[0], 1e-6) << mean;
    EXPECT_NEAR(metric(some, "loss")[0], metric(all, "loss")[0], 1e-6) << mean;
    EXPECT_NEAR(metric(some, "entropy")[0], metric(parts, "entropy")[0], 1e-6) << "more rows belong to the layout";
  }
}

// The first step after the checkpoint has the same loss and the same gradients, but not the same weights after it.
TEST_F(PolicyRuns, DrawAgainAfterAnotherLearningRate) {
  const auto changed = [&](const std::string& name, bool has_records) {
    const run::Config c = policy(name, kShort),
                      faster = policy(name, test::joined(kShort, {"--optimizer.learning_rate=0.05"}));
    train(c, train::Start::New, 1);
    const std::string checkpoints = c.run.folder + "/checkpoints", kept = folder_ / (name + "-kept");
    std::filesystem::copy(checkpoints, kept, std::filesystem::copy_options::recursive);
    if (has_records) train(c, train::Start::Resume);
    std::filesystem::remove_all(checkpoints);
    std::filesystem::rename(kept, checkpoints);
    return train(faster, train::Start::Resume);
  };
  const auto want = changed("fresh", false), got = changed("recorded", true);
  for (const auto& [name, value] : want) EXPECT_TRUE(at::equal(got.at(name), value)) << name;
}

TEST_F(PolicyRuns, ExplainALossOfZero) {
  write_file(folder_ / "none.jsonl", "{\"prompt\": \"say:\", \"answer\": \"never this text\"}\n");
  const std::vector<std::string> flags{"--data.path=" + (folder_ / "none.jsonl"), "--reward.verifiers=exact",
                                       "--rollout.max_tokens=1", "--training.steps=2"};
  const run::Config c = policy("none", flags),
                    diverse = policy("diverse", test::joined(flags, {"--alignment.entropy=0.1"}));
  train(c), train(diverse);
  // Each answer has one token, and the only row of an update without gradients fills the layout.
  EXPECT_EQ(16 * (metric(c, "tokens")[0] - 16), metric(diverse, "tokens")[0] - 16) << "rows were left out";
  EXPECT_THAT(metric(c, "entropy"), testing::IsEmpty()) << "no token is trained";
  EXPECT_THAT(metric(c, "clipped_share"), testing::IsEmpty());
  EXPECT_THAT(read_file(diverse.run.folder + "/log-rank-0.txt", 1 << 24), testing::Not(HasSubstr("nothing to learn")))
      << "the loss is that of the entropy";
  EXPECT_THAT(metric(c, "loss"), Each(0.0));
  EXPECT_THAT(metric(c, "zero_spread_groups"), Each(4.0));
  const std::string log = read_file(c.run.folder + "/log-rank-0.txt", 1 << 24);
  EXPECT_THAT(log, AllOf(HasSubstr("there is nothing to learn and the loss is 0"), HasSubstr("rollout.answers")));
}

TEST_F(PolicyRuns, RefuseBadInput) {
  const auto message = [&](const std::vector<std::string>& flags, const std::string& method = "grpo") {
    return test::thrown_message([&] { train(policy("refused", flags, method)); });
  };
  EXPECT_THAT(message({"--rollout.answers=1", "--rollout.prompts=16"}), HasSubstr("answers must be at least 2"));
  EXPECT_THAT(message({"--rollout.temperature=0"}), HasSubstr("temperature must be above 0"));
  EXPECT_THAT(message({"--rollout.max_tokens=0"}), HasSubstr("max_tokens must be given"));
  EXPECT_THAT(message({"--rollout.top_k=5"}), HasSubstr("unknown key `rollout.top_k`"));
  EXPECT_THAT(message({"--reward.verifiers=exactly"}), AllOf(HasSubstr("exactly"), HasSubstr("exact")));
  EXPECT_THAT(message({"--reward.verifiers="}), HasSubstr("[reward]"));
  EXPECT_THAT(message({"--reward.weights=1,2,3"}), HasSubstr("weights"));
  EXPECT_THAT(message({"--reward.verifiers=json,length"}), AllOf(HasSubstr("max_tokens"), HasSubstr("prompts.jsonl")));
  EXPECT_THAT(message({"--training.batch_size=5"}), HasSubstr("batch_size has no effect"));
  EXPECT_THAT(message({"--alignment.epochs=3"}), HasSubstr("the nearest are 3 and 6"));
  EXPECT_THAT(message({"--rollout.max_tokens=30"}), AllOf(HasSubstr("prompts.jsonl"), HasSubstr("max_tokens")));
  EXPECT_THAT(message({"--alignment.lambda=0.5"}), HasSubstr("lambda needs alignment.method ppo"));
  EXPECT_THAT(message({"--rollout.canonical=true", "--rollout.panels=false"}), HasSubstr("rollout.panels"));
  EXPECT_THAT(message({"--rollout.prompts=3", "--parallel.data=2", "--rollout.answers=4", "--training.batch_size=12"}),
              HasSubstr("prompts must be divisible by the replicas"));
  EXPECT_THAT(message({"--rollout.answers=8"}, "sft"), HasSubstr("[rollout]"));
  for (const char* key : {"dual_clip=2", "clip_low=0.1"})
    EXPECT_THAT(message({"--alignment.loss=cispo", concat("--alignment.", key)}),
                HasSubstr("needs alignment.loss clip"));
  EXPECT_THAT(message({"--alignment.baseline=group", "--alignment.gamma=0.9"}, "reinforce++"),
              HasSubstr("gamma needs alignment.method ppo, or reinforce++ with alignment.baseline batch"));
  EXPECT_THAT(message({"--alignment.weight_cap=0"}), HasSubstr("weight_cap must be above 0"));
  EXPECT_THAT(message({"--adapter.kind=lora", "--adapter.dropout=0.1"}), HasSubstr("adapter.dropout"));
}

}  // namespace
}  // namespace colossal::align::policy_runs_test
