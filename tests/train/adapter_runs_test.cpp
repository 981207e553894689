// Whole runs with an adapter. Frozen parameters come from model.from or the seed at the start of a run, when it
// resumes, and when its model is loaded.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "colossal/nn/frozen_form.h"
#include "colossal/nn/low_rank.h"
#include "support/thrown_message.h"
#include "train/adapter_folders.h"

namespace colossal::train::adapter_runs_test {
namespace {

using testing::HasSubstr;
using Values = std::map<std::string, at::Tensor>;

class AdapterRuns : public AdapterFolders {
 protected:
  /// A short run with an adapter, of a new model or of the model in a folder.
  run::Config adapted(const std::string& name, const std::string& from = "", const std::string& kind = "lora") const {
    run::Config c = make(name, 1, 1);
    if (!from.empty()) c.model = {.from = from};
    c.data.tokenizer = "bytes";
    c.tables.set("--adapter.kind=" + kind);
    c.tables.set("--adapter.rank=3");
    c.training.steps = 6;
    c.training.evaluate_batches = 0;
    c.training.save_every = 3;
    return c;
  }

  Values train_adapter(const run::Config& c, Start start, std::optional<int64_t> resume_step = {}) const {
    Values values;
    comm::run_ranks(1, [&](comm::World& world) {
      TrainerOptions options{.start = start, .resume_step = resume_step};
      Trainer trainer(world, c, options);
      EXPECT_TRUE(trainer.run());
      for (const nn::Parameter& p : trainer.engine().parameters()) values[p.name] = p.value.detach().clone();
    });
    return values;
  }

  /// Returns the model that inference loads from a run's folder, with its adapters apart.
  static Values loaded(const std::string& folder) { return AdapterFolders::loaded(folder, {.merges_adapters = false}); }

  /// Returns the model with which a run starts.
  static Values loaded_start(const run::Config& c) {
    Values values;
    comm::run_ranks(1, [&](comm::World& world) {
      Trainer trainer(world, c, {.start = Start::Overwrite});
      for (const nn::Parameter& p : trainer.engine().parameters()) values[p.name] = p.value.detach().clone();
    });
    return values;
  }

  /// Starts a run whose codes must be those of `values`.
  static void expect_codes_of(const Values& values, const run::Config& c) {
    comm::run_ranks(1, [&](comm::World& world) {
      Trainer trainer(world, c, {.start = Start::Overwrite});
      int64_t coded = 0;
      for (const nn::Parameter& p : trainer.engine().parameters()) {
        const auto form = trainer.engine().parameters().form_of(p);
        if (!form) continue;
        const at::Tensor codes = at::empty(form->sizes(), at::kByte);
        form->encode(values.at(p.name).to(at::kFloat), codes);
        EXPECT_TRUE(at::equal(p.value, codes)) << p.name;
        ++coded;
      }
      EXPECT_EQ(coded, 8) << "four matrices of two layers";
    });
  }

  static void expect_equal(const Values& got, const Values& want, const std::string& what) {
    ASSERT_EQ(got.size(), want.size()) << what;
    for (const auto& [name, value] : want) EXPECT_TRUE(at::equal(got.at(name), value)) << what << ": " << name;
  }
};

TEST_F(AdapterRuns, ResumeAndLoadWithValuesOfTheFolder) {
  run::Config first = make("base", 1, 1);
  first.training.steps = 4;
  first.model.dropout = 0;
  const Values base_values = train(first, Start::New);
  export_model(first.run.folder, folder);
  for (const std::string kind : {"lora", "dora"}) {
    const run::Config c = adapted("adapted-" + kind, folder, kind);
    const Values whole = train_adapter(c, Start::New);
    for (const auto& [name, value] : base_values) EXPECT_TRUE(at::equal(whole.at(name), value)) << name << " is frozen";
    EXPECT_GT(whole.at("blocks.1.mlp.up.adapter_b").abs().max().item<double>(), 0);
    EXPECT_EQ(whole.at("blocks.1.mlp.up.adapter_b").size(1), 3) << "the rank of the table";
    EXPECT_THAT(log_of(c), HasSubstr(" are frozen"));
    expect_equal(loaded(c.run.folder), whole, "loaded");
    expect_equal(train_adapter(c, Start::Resume, 3), whole, "resumed");
    run::Config other = c;
    other.model.from = first.run.folder + "/../hf";
    EXPECT_THAT(test::thrown_message([&] { train_adapter(other, Start::Resume); }),
                HasSubstr("it leaves out frozen parameters, which came from model.from = "));
  }
}

TEST_F(AdapterRuns, SaveModulesThatTrainWhole) {
  run::Config c = adapted("adapted");
  c.tables.set("--adapter.trained=[\"wte\", \"h.1.ln_2\"]");
  c.tables.set("--adapter.targets=[\"c_attn\"]");
  const Values whole = train_adapter(c, Start::New);
  expect_equal(loaded(c.run.folder), whole, "loaded");
  expect_equal(train_adapter(c, Start::Resume, 3), whole, "resumed");
  const Values start = loaded_start(c);
  std::set<std::string> changed;
  for (const auto& [name, value] : whole)
    if (!at::equal(value, start.at(name))) changed.insert(name);
  EXPECT_EQ(changed, (std::set<std::string>{"embedding.weight", "blocks.1.norm_2.weight", "blocks.1.norm_2.bias",
                                            "blocks.0.attention.qkv.adapter_a", "blocks.0.attention.qkv.adapter_b",
                                            "blocks.1.attention.qkv.adapter_a", "blocks.1.attention.qkv.adapter_b"}));
}

TEST_F(AdapterRuns, StartFromRuns) {
  run::Config first = make("base", 1, 1);
  first.training.steps = 4;
  first.model.dropout = 0;
  const Values base_values = train(first, Start::New);
  const run::Config c = adapted("adapted", first.run.folder);
  const Values whole = train_adapter(c, Start::New);
  for (const auto& [name, value] : base_values) EXPECT_TRUE(at::equal(whole.at(name), value)) << name << " is frozen";
  expect_equal(loaded(c.run.folder), whole, "loaded");
  expect_equal(train_adapter(c, Start::Resume, 3), whole, "resumed");

  std::filesystem::remove_all(first.run.folder);
  const std::string needed = "leave out values that come from model.from = \"" + first.run.folder + "\": there is no";
  EXPECT_THAT(test::thrown_message([&] { loaded(c.run.folder); }), HasSubstr(needed));
  EXPECT_THAT(test::thrown_message([&] { train_adapter(c, Start::Resume, 3); }),
              HasSubstr("there is no file or folder"));
}

TEST_F(AdapterRuns, ResumeAndLoadWithValuesOfTheSeed) {
  const run::Config c = adapted("adapted");
  const Values whole = train_adapter(c, Start::New);
  expect_equal(loaded(c.run.folder), whole, "loaded");
  expect_equal(train_adapter(c, Start::Resume, 3), whole, "resumed");
  run::Config other = c;
  other.training.seed = 9;
  EXPECT_THAT(test::thrown_message([&] { train_adapter(other, Start::Resume); }),
              HasSubstr("training.seed = 0: this run has 9; resume with training.seed = 0"));
}

// Codes are made of the base again when the run resumes, and only then: inference and merged models have its values.
TEST_F(AdapterRuns, MakeCodesOfTheBase) {
  run::Config first = make("base", 1, 1);
  first.training.steps = 4;
  first.model.dropout = 0;
  const Values base_values = train(first, Start::New);
  export_model(first.run.folder, folder);
  const auto coded = [&](const std::string& name, const std::string& from, const std::string& format) {
    run::Config c = adapted(name, from);
    c.tables.set("--adapter.base=" + format);
    return c;
  };
  std::map<std::string, Values> of_folder;
  for (const std::string format : {"int8", "nf4"}) {
    const run::Config c = coded("coded-" + format, folder, format);
    of_folder[format] = train_adapter(c, Start::New);
    const Values& whole = of_folder[format];
    EXPECT_EQ(whole.at("blocks.1.mlp.up.weight").scalar_type(), at::kByte);
    EXPECT_GT(whole.at("blocks.1.mlp.up.adapter_b").abs().max().item<double>(), 0);
    expect_equal(train_adapter(c, Start::Resume, 3), whole, "resumed");
    for (const auto& [name, value] : loaded(c.run.folder))
      EXPECT_TRUE(at::equal(value, nn::is_low_rank(name) ? whole.at(name) : base_values.at(name))) << name;
    expect_codes_of(base_values, coded("of-folder-" + format, folder, format));
    // Codes of the run's weights are those of its folder.
    const run::Config of_run = coded("of-run-" + format, first.run.folder, format);
    expect_equal(loaded_start(of_run), loaded_start(coded("of-folder-" + format, folder, format)), "of the run");
    // A run with adapters gives its merged weights, which are encoded after merging.
    run::Config merged = adapted("merge-" + format, c.run.folder);
    const Values sums = loaded_start(merged);
    EXPECT_FALSE(at::equal(sums.at("blocks.1.mlp.up.weight"), base_values.at("blocks.1.mlp.up.weight")));
    expect_codes_of(sums, coded("merged-" + format, c.run.folder, format));
  }
  run::Config other = coded("coded-nf4", folder, "int8");
  EXPECT_THAT(test::thrown_message([&] { train_adapter(other, Start::Resume); }),
              HasSubstr("got adapter.base = \"nf4\" -> \"int8\"; restore them"));
  other = coded("coded-nf4", folder, "nf4");
  other.tables.set("--adapter.double=false");
  EXPECT_THAT(test::thrown_message([&] { train_adapter(other, Start::Resume); }), HasSubstr("adapter.double"));
  // Without a folder the values are drawn, for codes as for values.
  const run::Config drawn = coded("drawn", "", "nf4");
  const Values whole = train_adapter(drawn, Start::New);
  expect_equal(train_adapter(drawn, Start::Resume, 3), whole, "resumed");
  const Values plain = loaded_start(adapted("plain"));
  for (const auto& [name, value] : loaded(drawn.run.folder))
    if (!nn::is_low_rank(name)) EXPECT_TRUE(at::equal(value, plain.at(name))) << name;
}

// Each rank merges whole matrices, also if it keeps a part of their codes or none.
TEST_F(AdapterRuns, MergeMagnitudesIntoCodesUnderZero) {
  run::Config source = adapted("source", "", "dora");
  source.model.dropout = 0;
  train_adapter(source, Start::New);
  const auto run_of = [&](const std::string& name, int64_t zero) {
    run::Config c = adapted(name, source.run.folder);
    c.tables.set("--adapter.base=nf4");
    c.precision.mode = "fp64";
    c.parallel.data = zero == 0 ? 1 : 4;
    c.parallel.zero = zero;
    train(c, Start::New);
    return loaded(c.run.folder);
  };
  run::Config coded = adapted("coded", source.run.folder);
  coded.tables.set("--adapter.base=nf4");
  expect_codes_of(loaded_start(adapted("sums", source.run.folder)), coded);
  const Values one = run_of("one", 0), sharded = run_of("sharded", 3);
  for (const auto& [name, value] : one)
    if (nn::is_low_rank(name)) EXPECT_LE((value - sharded.at(name)).abs().max().item<double>(), 1e-10) << name;
}

TEST_F(AdapterRuns, RefuseCodesWithoutAdaptersAndInFp8) {
  run::Config c = adapted("none", "", "none");
  c.tables.set("--adapter.base=nf4");
  EXPECT_THAT(test::thrown_message([&] { loaded_start(c); }),
              HasSubstr("[adapter] adapter.base must be \"model\" without adapters, because codes are not trained: got "
                        "\"nf4\"; set adapter.kind = \"lora\""));
  run::Config fp8 = adapted("fp8");
  fp8.tables.set("--adapter.base=int8");
  fp8.precision.mode = "fp8";
  EXPECT_THAT(test::thrown_message([&] { loaded_start(fp8); }),
              HasSubstr("adapter.base must be \"model\" with precision.mode = \"fp8\""));
}

}  // namespace
}  // namespace colossal::train::adapter_runs_test
