// Runs that train only some rows of tables (nn::Treatment::rows): under every layout and optimizer, the other rows keep
// their values to the bit, and the rows that train equal those of one process.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>

#include "colossal/checkpoint/local_boxes.h"
#include "colossal/nn/adapter.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"
#include "train/zero_runs.h"

namespace colossal::train::new_rows_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kSteps = 3, kFirst = 30, kEnd = 36;  // row 36 stays: it stands for a row of padding

/// A batch whose rows divide evenly under every tensor mode.
constexpr test::Text kRows{.rows = 36, .vocabulary = 37};

bool is_table(const std::string& name) { return name == "embedding.weight" || name == "head.weight"; }

nn::Adapter new_rows() {
  return {.treatment = [](const std::string& name) {
    return nn::Treatment{.trains = is_table(name), .rows = {kFirst, kEnd}};
  }};
}

models::ModelShape shape_of(bool tied) {
  models::ModelShape shape = test::tiny_llama();
  shape.tied = tied;
  return shape;
}

using Tensors = std::map<std::string, at::Tensor>;

/// Adds this rank's part of all weights to `whole`.
void add_weights(Engine& engine, Tensors& whole) {
  for (const checkpoint::NamedTensor& tensor : engine.weights()) {
    const at::Tensor value = tensor.value.clone();
    at::Tensor& all = whole[tensor.name];
    if (!all.defined()) all = at::zeros(tensor.spec.shape, value.options());
    for (const tensor::LocalBox& box : checkpoint::local_boxes_of(tensor, engine.mesh().coordinates())) {
      at::Tensor target = all;
      for (size_t d = 0; d < box.size.size(); ++d)
        target = target.narrow(static_cast<int64_t>(d), box.start[d], box.size[d]);
      target.copy_(checkpoint::at_local_box(tensor, value, engine.mesh().coordinates(), box));
    }
  }
}

struct Trained {
  Tensors before, after;
  std::vector<double> losses, norms;
};

Trained train_rows(const run::Config& config, bool tied = false, const std::string& resume = {},
                   const std::string& save = {}, const test::Text& text = kText) {
  Trained result;
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config, NamedModel{.shape = shape_of(tied), .adapter = new_rows()});
    if (!resume.empty()) test::load(*engine, resume);
    const auto add = [&](Tensors& to) {
      const std::lock_guard lock(mutex);
      add_weights(*engine, to);
    };
    add(result.before);
    for (int64_t step = 0; step < kSteps; ++step) {
      engine->zero_grad();
      const double loss = engine->train_step(test::own_batch(*engine, step, text));
      const StepResult stepped = engine->step();
      const std::lock_guard lock(mutex);
      if (world.rank() != 0) continue;
      result.losses.push_back(loss);
      result.norms.push_back(stepped.gradient_norm);
    }
    add(result.after);
    if (!save.empty()) test::save(*engine, save);
  });
  return result;
}

run::Config rows_config(const Layout& layout) {
  run::Config config = train::config_of(layout);
  config.optimizer.learning_rate = layout.optimizer == "lars" ? 1 : 0.01;
  config.optimizer.weight_decay = 0.1;
  config.training.clip = 0.01;  // below the norm of every step
  if (layout.optimizer == "galore") config.optimizer.rank = 4;
  return config;
}

void expect_only_new_rows_changed(const Trained& run, const std::string& what) {
  for (const auto& [name, before] : run.before) {
    const at::Tensor& after = run.after.at(name);
    if (!is_table(name.substr(name.find("model.") == 0 ? 6 : 0))) {
      EXPECT_TRUE(at::equal(before, after)) << what << ": " << name;
      continue;
    }
    const auto rows = [](const at::Tensor& table, int64_t first, int64_t end) { return table.slice(0, first, end); };
    EXPECT_TRUE(at::equal(rows(before, 0, kFirst), rows(after, 0, kFirst))) << what << ": " << name;
    EXPECT_TRUE(at::equal(rows(before, kEnd, 37), rows(after, kEnd, 37))) << what << ": " << name;
    for (int64_t row = kFirst; row < kEnd; ++row)
      EXPECT_FALSE(at::equal(before[row], after[row])) << what << ": row " << row << " of " << name;
  }
}

void expect_same(const Trained& got, const Trained& want, double tolerance, const std::string& what) {
  for (const auto& [name, weight] : want.after) {
    const double scale = weight.abs().max().item<double>();
    EXPECT_LE((got.after.at(name) - weight).abs().max().item<double>(), tolerance * scale) << what << ": " << name;
  }
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], tolerance * want.losses[i]) << what;
    EXPECT_NEAR(got.norms[i], want.norms[i], tolerance * want.norms[i]) << what;
  }
}

std::vector<Layout> layouts() {
  return {{.name = "zero0", .zero = 0, .data = 2},
          {.name = "zero1", .zero = 1, .data = 2},
          {.name = "zero2", .zero = 2, .data = 3},
          {.name = "zero3", .zero = 3, .data = 2},
          {.name = "tensor2", .tensor = 2},
          {.name = "pipeline2", .pipeline = 2},
          {.name = "all", .zero = 1, .data = 2, .tensor = 2, .pipeline = 2}};
}

class NewRows : public testing::TestWithParam<const char*> {};

TEST_P(NewRows, TrainAloneUnderEveryLayout) {
  const std::string optimizer = GetParam();
  const Trained want = train_rows(rows_config({.precision = "fp64", .optimizer = optimizer}));
  expect_only_new_rows_changed(want, "one");
  for (Layout layout : layouts()) {
    layout.precision = "fp64", layout.optimizer = optimizer;
    const Trained got = train_rows(rows_config(layout));
    expect_only_new_rows_changed(got, layout.name);
    // 8-bit moments are rounded in blocks of each rank's elements, so they differ between layouts.
    expect_same(got, want, optimizer == "adam8bit" ? 0.1 : 1e-9, layout.name);
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, NewRows,
                         testing::Values("sgd", "adam", "adamw", "lion", "lamb", "lars", "adafactor", "came",
                                         "adam8bit", "galore", "muon"),
                         [](const auto& info) { return info.param; });

TEST(TiedNewRows, TrainOnBothEndsOfAPipeline) {
  for (Layout layout : {Layout{.name = "pipeline", .pipeline = 2}, {.name = "zero3", .zero = 3, .data = 2}}) {
    layout.precision = "fp64";
    const Trained got = train_rows(rows_config(layout), true);
    expect_only_new_rows_changed(got, layout.name);
    expect_same(got, train_rows(rows_config({.precision = "fp64"}), true), 1e-9, layout.name);
  }
}

class NewRowsInTensorModes : public testing::TestWithParam<parallel::TensorConfig> {};

TEST_P(NewRowsInTensorModes, EqualOneProcess) {
  run::Config config = rows_config({.precision = "fp64"});
  config.training.batch_size = kRows.rows;
  config.data.sequence = 12;  // divisible by the ranks of every mode
  const Trained want = train_rows(config, false, {}, {}, kRows);
  config.parallel.tensor = GetParam();
  const Trained got = train_rows(config, false, {}, {}, kRows);
  expect_only_new_rows_changed(got, test::name_of(GetParam()));
  expect_same(got, want, 1e-9, test::name_of(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Modes, NewRowsInTensorModes, testing::ValuesIn(test::tensor_modes()),
                         [](const auto& info) { return test::name_of(info.param); });

TEST(NewRowsWithMasters, KeepOldRowsOfParametersAndMasterWeights) {
  for (const int64_t zero : {0, 3}) {
    run::Config config = rows_config({.name = "bf16", .zero = zero, .data = 2, .precision = "bf16"});
    config.training.clip = 0, config.optimizer.learning_rate = 0.1;
    expect_only_new_rows_changed(train_rows(config), "bf16");
    config.precision.masters = false;
    expect_only_new_rows_changed(train_rows(config), "bf16 alone");
    config.optimizer.stochastic_rounding = true;
    expect_only_new_rows_changed(train_rows(config), "bf16 with stochastic rounding");
  }
}

TEST(NewRowsOnDisk, KeepOldRows) {
  const test::TemporaryFolder folder;
  for (const char* optimizer : {"adamw", "muon"}) {
    run::Config config = rows_config({.zero = 3, .data = 2, .precision = "fp64", .optimizer = optimizer});
    config.memory.disk = folder.path(), config.memory.host = int64_t{1} << 30;
    config.parallel.chunk_mib = 0.001;  // tables are cut into segments
    const Trained got = train_rows(config);
    expect_only_new_rows_changed(got, optimizer);
    expect_same(got, train_rows(rows_config({.precision = "fp64", .optimizer = optimizer})), 1e-9, optimizer);
  }
}

TEST(NewRowsOfACheckpoint, ResumeUnderAnotherLayout) {
  run::Config one = rows_config({.precision = "fp64"}),
              other = rows_config({.zero = 3, .data = 2, .precision = "fp64"});
  const std::string folder = test::empty_folder("new-rows");
  const Trained first = train_rows(one, false, {}, folder);
  const Trained want = train_rows(one, false, folder), got = train_rows(other, false, folder);
  expect_same(got, want, 1e-9, "zero3");
  EXPECT_TRUE(at::equal(got.before.at("embedding.weight"), first.after.at("embedding.weight")));
  expect_only_new_rows_changed(got, "resumed");
}

TEST(NewRowsOfARun, CountAsTrainedAndMustExist) {
  run::Config config = rows_config({.precision = "fp64"});
  comm::run_ranks(1, [&](comm::World& world) {
    const auto engine = initialize(world, config, NamedModel{.shape = shape_of(false), .adapter = new_rows()});
    EXPECT_EQ(engine->parameters().trained_numel(), 2 * (kEnd - kFirst) * shape_of(false).hidden);
  });
  const nn::Adapter none{
      .treatment = [](const std::string& name) { return nn::Treatment{.trains = is_table(name), .rows = {37, 40}}; }};
  EXPECT_THAT(test::thrown_message([&] {
                comm::run_ranks(1, [&](comm::World& world) {
                  initialize(world, config, NamedModel{.shape = shape_of(false), .adapter = none});
                });
              }),
              HasSubstr("[model] at least one parameter must be trained"));
}

}  // namespace
}  // namespace colossal::train::new_rows_test
