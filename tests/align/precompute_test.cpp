// The reference's log-probabilities, computed once: they are those of its passes, runs share them, and what a killed
// process has stored is not computed again.
#include "colossal/align/precompute.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>

#include <cmath>
#include <filesystem>

#include "align/preference_runs.h"
#include "colossal/align/score_cache.h"
#include "colossal/data/batch_fields.h"
#include "colossal/train/memory_needs.h"
#include "colossal/train/record_step.h"
#include "support/thrown_message.h"

namespace colossal::align::precompute_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class PrecomputedReference : public PreferenceRuns {
 protected:
  std::vector<std::string> with(std::vector<std::string> flags) const {
    flags.push_back("--reference.precompute=true");
    return flags;
  }
  /// Computes the scores of a run without training it.
  static Precomputed computed(const run::Config& c, bool resumes = false) {
    Precomputed counts;
    comm::run_ranks(static_cast<int>(c.parallel.ranks()), [&](comm::World& world) {
      const run::Program known = program();
      const run::ObjectiveRow row =
          run::choose_objective(c, known.objectives, run::resolve_model(c, known).shape, run::tables_of(known.adapters))
              .row;
      const Precomputed mine = precompute(world, c, row.values(), known, resumes);
      if (world.rank() == 0) counts = mine;
    });
    return counts;
  }
  static std::vector<std::string> files(const std::string& folder) {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      if (entry.path().extension() == ".scores") found.push_back(entry.path());
    return found;
  }
  static std::vector<double> losses(const run::Config& c) {
    train(c);
    std::vector<double> all = metric(c, "loss");
    for (const double value : metric(c, "eval_loss")) all.push_back(value);
    return all;
  }
};

TEST_F(PrecomputedReference, TrainsAsWithPasses) {
  const std::string from = "--model.from=" + base();
  const std::string lora = base("lora", {from, "--adapter.kind=lora"});
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {},  // drawn weights
           {from, "--parallel.data=2", "--parallel.tensor.size=2"},
           {from, "--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=2", "--parallel.zero=1",
            "--parallel.data=2"},
           {from, "--memory.host=64MiB", "--memory.disk=" + folder_.path()},
           {from, "--adapter.kind=lora", "--adapter.trained=embed_tokens"},
           {from, "--adapter.from=" + lora},
           {from, "--reference.from=" + base("other", {"--training.steps=1"})},
           kto({from, "--parallel.data=2"}),
       }) {
    const std::vector<double> want = losses(config("passes", flags));
    const run::Config c = config("stored", with(flags));
    const std::vector<double> got = losses(c);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(got[i], want[i], 1e-10) << testing::PrintToString(flags) << ", value " << i;
    EXPECT_FALSE(files(c.run.folder + "/reference").empty());
  }
}

// The weights of the reference are gone before the models of the run are made.
TEST_F(PrecomputedReference, NeedsNoMemoryInTheRun) {
  const std::string from = "--model.from=" + base();
  const auto needs = [&](const std::vector<std::string>& flags) {
    const run::Config c = config("plan", flags);
    int64_t bytes = 0;
    for (const train::MemoryNeed& need :
         train::memory_needs({c, train::models_of(c, run::resolve_run(c, program()))}, 0))
      bytes += need.bytes;
    return bytes;
  };
  const int64_t stored = needs(with({from})), passes = needs({from});
  int64_t weights = 0;
  for (const auto& [name, value] : train(config("model", {from, "--training.steps=1"})))
    if (name.starts_with("reference.")) weights += value.numel() * 8;
  EXPECT_GT(weights, 0);
  EXPECT_EQ(passes - stored, weights);
  // A step that is recorded on shapes, for a plan, has the passes of the reference or only its results.
  const auto recorded = [&](const std::vector<std::string>& flags) {
    const run::Config c = config("plan", flags);
    return train::record_step({c, train::models_of(c, run::resolve_run(c, program()))}, 0);
  };
  const train::RecordedStep of_passes = recorded({from}), of_stored = recorded(with({from}));
  EXPECT_GE(of_passes.memory.kinds.parameters - of_stored.memory.kinds.parameters, weights);
  EXPECT_GT(of_passes.list.size(), of_stored.list.size());
  EXPECT_GT(recorded(kto({from})).list.size(), of_passes.list.size()) << "and a pass for the divergence";
}

TEST_F(PrecomputedReference, ComputesATextOnce) {
  const std::string cache = "--reference.cache=" + (folder_ / "scores"), from = "--model.from=" + base();
  const std::vector<std::string> flags = with({from, cache, "--training.steps=10"});
  const Precomputed first = computed(config("one", flags));
  EXPECT_GT(first.computed, 0);
  const Precomputed again = computed(config("two", flags));
  EXPECT_EQ(again.computed, 0) << "another run uses them";
  EXPECT_EQ(again.found, first.computed + first.found);
  // Batches, layout and order of texts do not matter.
  std::vector<std::string> other = flags;
  other.insert(other.end(), {"--training.batch_size=4", "--parallel.data=2", "--training.seed=7",
                             "--data.packing=false", "--training.steps=20"});
  EXPECT_EQ(computed(config("three", other)).computed, 0);
  // The mismatched texts of kto depend on the batch; what is missing is added.
  std::vector<std::string> rated =
      kto({from, "--reference.precompute=true", "--training.steps=10", "--reference.cache=" + (folder_ / "rated")});
  EXPECT_GT(computed(config("four", rated)).computed, 0);
  rated.push_back("--training.steps=12");
  rated.push_back("--training.batch_size=4");
  const Precomputed added = computed(config("five", rated));
  EXPECT_GT(added.found, added.computed);
  EXPECT_EQ(computed(config("six", rated)).computed, 0);
}

TEST_F(PrecomputedReference, SaysWhatDiffers) {
  const std::string cache = "--reference.cache=" + (folder_ / "scores"), from = "--model.from=" + base();
  computed(config("one", with({from, cache})));
  const auto refused = [&](const std::vector<std::string>& flags) {
    return test::thrown_message([&] { computed(config("two", test::joined(with({from, cache}), flags))); });
  };
  EXPECT_EQ(refused({}), "");
  EXPECT_THAT(refused({"--model.from=" + base("other", {"--training.steps=2"})}),
              AllOf(HasSubstr("[reference]"), HasSubstr("it differs in weights ("), Not(HasSubstr("data ("))));
  EXPECT_THAT(refused({"--precision.mode=fp32"}), HasSubstr("it differs in precision (fp64 and not fp32)"));
  write_file(folder_ / "more.jsonl",
             read_file(folder_ / "pairs.jsonl", 1 << 20) + R"({"prompt": "a", "chosen": "b", "rejected": "c"})" + "\n");
  EXPECT_THAT(refused({"--data.path=" + (folder_ / "more.jsonl")}),
              AllOf(HasSubstr("it differs in data ("), Not(HasSubstr("weights ("))));
  EXPECT_THAT(refused({"--data.chat_template=" + test::source_dir() + "/examples/chats.jinja"}),
              HasSubstr("it differs in chat template ("));
  // In its own folder a new run replaces what an earlier one has left.
  const run::Config own = config("own", with({from}));
  computed(own);
  const size_t before = files(own.run.folder + "/reference").size();
  EXPECT_GT(computed(config("own", with({from, "--precision.mode=fp32"}))).computed, 0);
  EXPECT_EQ(files(own.run.folder + "/reference").size(), before);
}

// What is stored is complete; the rest is computed again.
TEST_F(PrecomputedReference, LosesOnlyUnfinishedFiles) {
  const std::vector<std::string> flags = with({"--training.batch_size=1", "--training.steps=40"});
  const run::Config c = config("killed", flags);
  const std::string folder = c.run.folder + "/reference";
  const int64_t all = computed(c).computed;
  const std::vector<std::string> parts = files(folder);
  ASSERT_GE(parts.size(), 2u) << "a file for every 16 passes";
  std::filesystem::remove(parts[0]);
  write_file(folder + "/x.scores.partial-0123456789abcdef", "half a file");
  const int64_t again = computed(c).computed;
  EXPECT_GT(again, 0);
  EXPECT_LT(again, all);
  EXPECT_EQ(computed(c).computed, 0);
  const std::string damaged = files(folder)[0];
  std::string bytes = read_file(damaged, 1 << 20);
  bytes[bytes.size() / 2] ^= 1;
  write_file(damaged, bytes);
  EXPECT_THAT(test::thrown_message([&] { computed(c); }),
              AllOf(HasSubstr(damaged), HasSubstr("must have its checksum"), HasSubstr("delete it")));
}

TEST_F(PrecomputedReference, NamesAFullDisk) {
  const run::Config c = config("full", with({"--parallel.data=2"}));
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 600;  // room for origin.json
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = test::thrown_message([&] { computed(c); });
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_THAT(message, AllOf(HasSubstr("[file]"), HasSubstr(c.run.folder + "/reference/")));
  EXPECT_TRUE(files(c.run.folder + "/reference").empty()) << "no file is half a file";
}

TEST_F(PrecomputedReference, StaysWhenTheRunResumes) {
  const std::string from = base();
  const std::vector<std::string> flags = with({"--model.from=" + from, "--training.save_every=2"});
  const run::Config whole = config("whole", flags), parts = config("parts", flags);
  train(whole);
  train(parts, train::Start::New, 2);
  train(run::read_given_config(from + "/config.toml", {"--training.steps=5"}).config, train::Start::Resume);
  train(parts, train::Start::Resume);
  const std::vector<double> want = metric(whole, "loss"), got = metric(parts, "loss");
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-12) << i;
  run::Config without = config("parts", {"--model.from=" + from});
  without.training.steps = 6;
  EXPECT_THAT(test::thrown_message([&] { train(without, train::Start::Resume); }),
              HasSubstr("reference.precompute must be as at the start"));
  // Scores of another reference would fit the texts, and another batch size would need others.
  const std::string other = "--reference.cache=" + (folder_ / "scores");
  computed(config("other", with({"--model.from=" + base("elsewhere", {"--training.steps=2"}), other})));
  const auto refused = [&](const std::string& flag) {
    const run::Config c = config("parts", test::joined(flags, {flag, "--training.steps=6"}));
    return test::thrown_message([&] { train(c, train::Start::Resume); });
  };
  EXPECT_THAT(refused(other), HasSubstr("the reference with which the run started: got those of another"));
  EXPECT_THAT(refused("--training.batch_size=4"), HasSubstr("training.batch_size must be as at the start"));
}

TEST(ScoreCache, KeysDependOnTextsAlone) {
  const auto batch = [](const std::vector<int64_t>& ids, const std::vector<int64_t>& labels,
                        const std::vector<int64_t>& documents) {
    const auto row = [](const std::vector<int64_t>& values) { return at::tensor(values).unsqueeze(0); };
    tensor::Batch batch =
        data::text_batch(row(ids), row(labels), at::arange(static_cast<int64_t>(ids.size())).unsqueeze(0));
    return batch.with("documents", {row(documents), {tensor::Dim::Row, tensor::Dim::Token}, {}, true});
  };
  const auto keys = keys_of(batch({5, 6, 7, 8, 9, 0}, {-100, 7, -100, 9, -100, -100}, {0, 0, 0, 1, 1, 2}), 2);
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_NE(keys[0], keys[1]);
  // The same texts in another order, with other padding and another last token, which no label follows.
  const auto others =
      keys_of(batch({8, 9, 5, 6, 3, 0, 0}, {9, -100, -100, 7, -100, -100, -100}, {0, 0, 1, 1, 1, 2, 2}), 2);
  EXPECT_EQ(others[0], keys[1]);
  EXPECT_EQ(others[1], keys[0]);
  // Another token, label or beginning is another text.
  EXPECT_NE(keys_of(batch({5, 4, 7}, {-100, 7, -100}, {0, 0, 0}), 1)[0], keys[0]);
  EXPECT_NE(keys_of(batch({5, 6, 7}, {6, 7, -100}, {0, 0, 0}), 1)[0], keys[0]);
}

}  // namespace
}  // namespace colossal::align::precompute_test
