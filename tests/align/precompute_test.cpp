// The reference's log-probabilities, computed once: they are those of its passes, runs share them, and what a killed
// process has stored is not computed again.
#include "colossal/align/precompute.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>

#include <array>
#include <cmath>
#include <filesystem>

#include "align/preference_runs.h"
#include "colossal/align/score_cache.h"
#include "colossal/checkpoint/gguf/export.h"
#include "colossal/data/batch_fields.h"
#include "colossal/models/registry.h"
#include "colossal/run/external_names.h"
#include "colossal/run/saved_model.h"
#include "colossal/text/tokenizers/gguf_vocabulary.h"
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
      const Precomputed mine = precompute(world, c, row.values(), known, {.resumes = resumes});
      if (world.rank() == 0) counts = mine;
    });
    return counts;
  }
  /// Returns the folder of the scores of a run that has not begun.
  static std::string next_of(const run::Config& c) { return c.run.folder + "/reference.next"; }
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
  /// Writes the weights of a run in 8 bits as a GGUF file, and returns its path.
  std::string gguf(const std::string& from) const {
    const std::string path = folder_ / "base.gguf";
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
      const run::SavedModel saved =
          run::load_model(from, mesh, {}, at::kCPU, {.tokenizer = "none", .dtype = at::kFloat});
      const models::ModelShape& shape = saved.model->model().shape;
      checkpoint::export_gguf(path, saved.model->parameters(), run::external_names(shape),
                              shape.architecture->hugging_face.to_json(shape),
                              text::gguf_of_tokenizer("bytes", shape.vocabulary), "q8_0", mesh.all());
    });
    return path;
  }
};

TEST_F(PrecomputedReference, TrainsAsWithPasses) {
  const std::string folder = base(), from = "--model.from=" + folder, coded = "--model.from=" + gguf(folder);
  const std::string lora = base("lora", {from, "--adapter.kind=lora"});
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {},  // drawn weights
           {from, "--parallel.data=2", "--parallel.tensor.size=2"},
           {from, "--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=2", "--parallel.zero=1",
            "--parallel.data=2"},
           {from, "--memory.host=64MiB", "--memory.disk=" + folder_.path()},
           {from, "--adapter.kind=lora", "--adapter.trained=embed_tokens"},
           {from, "--adapter.from=" + lora},
           {"--adapter.kind=lora", "--adapter.base=nf4"},
           {from, "--adapter.kind=lora", "--adapter.base=nf4", "--adapter.trained=embed_tokens", "--parallel.data=2",
            "--parallel.zero=3"},
           {from, "--adapter.kind=dora", "--adapter.base=int8", "--parallel.tensor.size=2"},
           {from, "--adapter.kind=lora", "--adapter.base=bf16", "--memory.host=64MiB",
            "--memory.disk=" + folder_.path()},
           {from, "--adapter.kind=lora", "--adapter.base=nf4", "--adapter.double=false", "--memory.host=64MiB",
            "--memory.disk=" + folder_.path()},
           {from, "--adapter.from=" + lora, "--adapter.base=nf4"},
           {coded, "--adapter.kind=lora", "--adapter.trained=*.down_proj"},
           {coded, "--adapter.kind=lora", "--memory.host=64MiB"},
           {from, "--precision.mode=fp8"},
           {from, "--precision.mode=fp8", "--adapter.kind=lora", "--parallel.data=2"},
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
    EXPECT_FALSE(std::filesystem::exists(next_of(c)));
    if (c.model.from.ends_with(".gguf"))
      EXPECT_THAT(read_file(c.run.folder + "/reference/origin.json", 1 << 20), HasSubstr("codes of the folder"));
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
  const auto as = [](const char* base) {
    return std::vector<std::string>{"--adapter.kind=lora", concat("--adapter.base=", base)};
  };
  EXPECT_EQ(refused({"--adapter.kind=lora"}), "") << "the base has the same values";
  EXPECT_THAT(refused(as("nf4")), AllOf(HasSubstr("it differs in format of the base (values and not nf4 with double)"),
                                        Not(HasSubstr("weights ("))));
  const std::string coded = "--reference.cache=" + (folder_ / "coded");
  std::vector<std::string> first = with(as("int8"));
  first.insert(first.end(), {from, coded});
  computed(config("coded", first));
  for (const auto& [base, written] : std::vector<std::pair<const char*, const char*>>{
           {"nf4", "nf4 with double"}, {"bf16", "bf16"}, {"model", "values"}}) {
    std::vector<std::string> flags = as(base);
    flags.push_back(coded);
    EXPECT_THAT(refused(flags), HasSubstr(concat("format of the base (int8 and not ", written, ")")));
  }
  std::vector<std::string> flags = as("int8");
  flags.insert(flags.end(), {coded, "--adapter.trained=o_proj"});
  EXPECT_THAT(refused(flags), HasSubstr("format of the base (int8 and not int8 without o_proj)"));
  // Before it has begun, a new run in its own folder replaces what another one that did not begin has left.
  const run::Config own = config("own", with({from}));
  computed(own);
  const size_t before = files(next_of(own)).size();
  EXPECT_GT(computed(config("own", with({from, "--precision.mode=fp32"}))).computed, 0);
  EXPECT_EQ(files(next_of(own)).size(), before);
}

// An earlier run in the folder has its scores until the new run has a checkpoint.
TEST_F(PrecomputedReference, KeepsTheCacheOfTheOverwrittenRun) {
  const std::string from = "--model.from=" + base();
  const std::vector<std::string> flags = with({from, "--training.save_every=2"});
  const run::Config old = config("run", flags);
  train(old);
  const std::string folder = old.run.folder + "/reference";
  const std::vector<std::string> names = files(folder);
  ASSERT_FALSE(names.empty());
  const std::string bytes = read_file(names.at(0), 1 << 20), origin = read_file(folder + "/origin.json", 1 << 20);
  std::vector<std::string> other = flags;
  other.push_back("--precision.mode=fp32");
  const run::Config next = config("run", other);
  const auto is_kept = [&] {
    return files(folder) == names && read_file(names.at(0), 1 << 20) == bytes &&
           read_file(folder + "/origin.json", 1 << 20) == origin;
  };
  EXPECT_GT(computed(next).computed, 0);
  EXPECT_TRUE(is_kept()) << "the new run ended before its models were made";
  EXPECT_EQ(computed(next).computed, 0) << "and goes on where it was";
  comm::run_ranks(1, [&](comm::World& world) {
    train::Trainer ends_here(world, next, {.start = train::Start::Overwrite, .program = program()});
    EXPECT_FALSE(is_kept()) << "it has the scores of the new run";
  });
  other.push_back("--training.steps=5");
  std::vector<std::string> longer = flags;
  longer.push_back("--training.steps=5");
  // The reference is gone, so the scores can only be those of before.
  std::filesystem::rename(folder_ / "base", folder_ / "moved");
  train(config("run", longer), train::Start::Resume);
  EXPECT_EQ(metric(old, "loss").size(), 5u);
  EXPECT_TRUE(is_kept());
  EXPECT_FALSE(std::filesystem::exists(next_of(old)));
  std::filesystem::rename(folder_ / "moved", folder_ / "base");
  // A new run of the same reference takes the scores over. Its first checkpoint ends the earlier run.
  EXPECT_EQ(computed(old).computed, 0);
  train(next);
  EXPECT_FALSE(is_kept());
  EXPECT_FALSE(std::filesystem::exists(old.run.folder + "/checkpoints.replaced"));
  EXPECT_FALSE(std::filesystem::exists(next_of(old)));
}

// No rank waits for one that finds no device or cannot read its data.
TEST_F(PrecomputedReference, EndsOnAllRanksAfterAnErrorOfOne) {
  struct Gpus final : comm::Devices {
    explicit Gpus(int count) : number(count) {}
    at::DeviceType type() const override { return at::kCPU; }
    int count() const override { return number; }
    std::string pci_id(int) const override { return ""; }
    int number;
  };
  const run::Config c = config("devices", with({"--parallel.data=2", "--run.device=cuda"}));
  std::array<std::string, 2> messages;
  comm::run_ranks(2, [&](comm::World& world) {
    const Gpus devices(world.rank() == 0 ? 1 : 0);
    const run::Program known = program();
    const run::ObjectiveRow row =
        run::choose_objective(c, known.objectives, run::resolve_model(c, known).shape, run::tables_of(known.adapters))
            .row;
    try {
      precompute(world, c, row.values(), known, {.devices = &devices});
    } catch (const Error& error) {
      if (error.is_on_all_ranks()) messages[static_cast<size_t>(world.rank())] = error.message();
    }
  });
  EXPECT_THAT(messages[0], HasSubstr("device cuda needs"));
  EXPECT_EQ(messages[1], messages[0]);
}

// What is stored is complete; the rest is computed again.
TEST_F(PrecomputedReference, LosesOnlyUnfinishedFiles) {
  const std::vector<std::string> flags = with({"--training.batch_size=1", "--training.steps=40"});
  const run::Config c = config("killed", flags);
  const std::string folder = next_of(c);
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
  EXPECT_THAT(message, AllOf(HasSubstr("[file]"), HasSubstr(next_of(c) + "/")));
  EXPECT_TRUE(files(next_of(c)).empty()) << "no file is half a file";
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
