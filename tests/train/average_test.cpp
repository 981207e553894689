// Runs with an average of the weights (training.ema): what their checkpoints have, how they resume, and which weights
// readers get.
#include <gmock/gmock.h>

#include <algorithm>

#include "colossal/checkpoint/manifest.h"
#include "colossal/train/engine.h"
#include "colossal/train/memory_needs.h"
#include "support/course.h"
#include "support/parity.h"
#include "train/adapter_folders.h"

namespace colossal::train::average_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr double kEma = 0.2;  // small, so that the last steps are beyond the first ones, which keep less

double kept(int64_t step) {
  return step == 1 ? 0 : std::min(kEma, static_cast<double>(step) / static_cast<double>(9 + step));
}

class Averages : public AdapterFolders {
 protected:
  run::Config with_ema(const std::string& name, double ema = kEma) const {
    run::Config c = make(name, 1, 1);
    c.model.layers = 1;
    c.model.hidden = 16;
    c.data.sequence = 8;
    c.optimizer.warmup_steps = 0;
    c.training.steps = 4;
    c.training.save_every = 1;
    c.training.keep_last = 0;
    c.training.evaluate_batches = 0;
    c.training.ema = ema;
    return c;
  }
  /// Returns the tensors of a checkpoint whose names start with `prefix`, without it.
  static Values stored(const run::Config& c, int64_t step, const std::string& prefix) {
    Values values;
    const std::string path = checkpoint::step_path(c.run.folder + "/checkpoints", step);
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
      checkpoint::TrainingState state;
      for (const auto& [name, tensor] : checkpoint::Manifest::read(path + "/manifest.json").tensors) {
        if (!name.starts_with(prefix)) continue;
        const at::Tensor value = at::empty(tensor.shape, tensor.dtype);
        values[name.substr(prefix.size())] = value;
        state.tensors.push_back({name, value, tensor::ShardSpec::whole(tensor.shape)});
      }
      checkpoint::load(path, state, mesh.all(), mesh.coordinates(), prefix);
    });
    return values;
  }
  static Values weights(const run::Config& c, int64_t step) { return stored(c, step, "model."); }
  static Values averages(const run::Config& c, int64_t step) { return stored(c, step, "optimizer.ema."); }
  static std::vector<std::string> notices(const run::Config& c, bool uses_average) {
    std::vector<std::string> lines;
    with_model(c.run.folder, {.uses_average = uses_average},
               [&](const run::SavedModel& saved, comm::Mesh&) { lines = saved.notices; });
    return lines;
  }
  static void expect_equal(const Values& got, const Values& want, const std::string& what) {
    ASSERT_EQ(got.size(), want.size()) << what;
    for (const auto& [name, value] : want) EXPECT_TRUE(at::equal(got.at(name), value)) << what << ": " << name;
  }
};

TEST_F(Averages, FollowTheWeightsAndReplaceThemForReaders) {
  const run::Config plain = with_ema("plain", 0), c = with_ema("averaged");
  train(plain, Start::New);
  train_and_die(c, Start::New, 3);
  train(c, Start::Resume);
  expect_equal(weights(c, 4), weights(plain, 4), "weights that train");
  Values average = weights(c, 1);
  for (int64_t step = 1; step <= 4; ++step) {
    const Values now = weights(c, step);
    for (auto& [name, value] : average) value = value + (now.at(name) - value) * (1 - kept(step));
    expect_equal(averages(c, step), average, concat("averages of step ", step));
  }
  expect_equal(loaded(c.run.folder, {}), average, "weights of readers");
  expect_equal(loaded(c.run.folder, {.uses_average = false}), weights(c, 4), "weights of readers with --no-ema");
  expect_equal(loaded(plain.run.folder, {}), weights(c, 4), "weights of a run without an average");
  EXPECT_FALSE(at::equal(average.at("norm.weight"), weights(c, 4).at("norm.weight")));
  EXPECT_THAT(notices(c, true),
              ElementsAre("uses the average of the weights (training.ema = 0.2); --no-ema takes the last ones"));
  EXPECT_THAT(notices(c, false), IsEmpty());
  EXPECT_THAT(notices(plain, true), IsEmpty());
  EXPECT_THAT(averages(plain, 4), IsEmpty());

  run::Config next = with_ema("next", 0);
  next.model = {.from = c.run.folder};
  next.training.steps = 1;
  next.optimizer.learning_rate = 0;
  train(next, Start::New);
  expect_equal(weights(next, 1), average, "weights of a run that starts from this one");
}

TEST_F(Averages, MergeThoseOfAdapters) {
  make_base("gpt2-tiny");
  run::Config c = adapted("adapters", folder, {"kind=lora", "rank=2"});
  c.training.ema = kEma;
  train(c, Start::New);
  const auto adapters = [&](bool uses_average) {
    return loaded(c.run.folder, {.merges_adapters = false, .uses_average = uses_average});
  };
  const Values average = adapters(true), last = adapters(false), of_base = loaded(folder, {.dtype = at::kDouble});
  int64_t differing = 0;
  for (const auto& [name, value] : average) {
    const bool is_of_base = of_base.contains(name);
    differing += !at::equal(value, last.at(name));
    EXPECT_TRUE(!is_of_base || at::equal(value, last.at(name))) << name << " does not train";
  }
  EXPECT_GT(differing, 0);
  const Values merged = loaded(c.run.folder, {}), merged_last = loaded(c.run.folder, {.uses_average = false});
  EXPECT_GT((merged.at("blocks.0.attention.qkv.weight") - merged_last.at("blocks.0.attention.qkv.weight"))
                .abs()
                .max()
                .item<double>(),
            1e-9);
  run::Loading put_on = with(c.run.folder), put_on_last = with(c.run.folder);
  put_on_last.uses_average = false;
  expect_equal(loaded(folder, put_on), merged, "adapters of a run that are put onto a folder");
  expect_equal(loaded(folder, put_on_last), merged_last, "their last values");
}

/// The weights and the averages of one rank, by name, of the parts that it updates.
struct Parts {
  std::vector<std::pair<std::string, at::Tensor>> weights{}, averages{};

  explicit Parts(Engine& engine) {
    for (const checkpoint::NamedTensor& tensor : engine.state().tensors)
      if (tensor.name.starts_with("optimizer.ema."))
        averages.emplace_back(tensor.name.substr(14), tensor.value.clone());
      else if (tensor.name.starts_with("model."))
        weights.emplace_back(tensor.name.substr(6), tensor.value.clone());
  }
};

void expect_equal(const std::vector<std::pair<std::string, at::Tensor>>& got,
                  const std::vector<std::pair<std::string, at::Tensor>>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].first, want[i].first) << what;
    EXPECT_TRUE(at::equal(got[i].second, want[i].second)) << what << ": " << got[i].first;
  }
}

/// Trains until `steps` are done, from the newest checkpoint in `folder` if there is one, and saves there. Every step
/// must change the averages by the formula; `begin` is called before the first one.
void train_steps(const run::Config& config, const std::string& folder, int64_t steps,
                 const std::function<void(Engine&)>& begin = {}) {
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config, test::tiny_gpt2());
    if (std::filesystem::exists(folder)) test::load(*engine, folder);
    if (begin) begin(*engine);
    EXPECT_EQ(engine->state().progress.contains("ema"), config.training.ema > 0 && engine->steps_done() > 0);
    while (engine->steps_done() < steps) {
      Parts want(*engine);
      test::train_step(*engine, engine->steps_done(), {.rows = 12, .vocabulary = 37});
      const Parts got(*engine);
      for (size_t i = 0; i < want.averages.size(); ++i) {
        at::Tensor& average = want.averages[i].second;
        const at::Tensor& value = got.weights[i].second;
        average = engine->steps_done() == 1 ? value : average + (value - average) * (1 - kept(engine->steps_done()));
      }
      expect_equal(got.averages, want.averages, concat("step ", engine->steps_done()));
    }
    EXPECT_EQ(engine->state().progress.value("ema", 0.0), config.training.ema);
    test::save(*engine, folder);
  });
}

run::Config course(double ema) {
  run::Config c = test::course_config();
  c.optimizer.warmup_steps = 0;
  c.training.batch_size = 12;
  c.training.ema = ema;
  return c;
}

TEST(AveragesOfEngines, ContinueUnderOtherLayouts) {
  const std::string folder = test::empty_folder("averages-layouts");
  run::Config c = course(kEma);
  train_steps(c, folder, 2);
  c.parallel.data = 3;
  for (const int zero : {1, 2, 3}) {
    c.parallel.zero = zero;
    train_steps(c, folder, 2 + zero, [&](Engine& engine) { EXPECT_FALSE(Parts(engine).averages.empty()) << zero; });
  }
  c.parallel.zero = 0;
  c.parallel.data = 1;
  c.parallel.tensor.size = 2;
  train_steps(c, folder, 6);
  c.parallel.tensor.size = 1;
  c.parallel.pipeline.size = 2;
  c.parallel.pipeline.micro_batches = 2;
  train_steps(c, folder, 7);
}

TEST(AveragesOfEngines, BeginAtTheWeightsAndAreDropped) {
  const std::string folder = test::empty_folder("averages-begin");
  const auto expect_begun = [](Engine& engine) {
    const Parts parts(engine);
    EXPECT_FALSE(parts.averages.empty());
    expect_equal(parts.averages, parts.weights, "averages that begin");
  };
  run::Config c = course(0);
  train_steps(c, folder, 2);
  c.training.ema = kEma;
  train_steps(c, folder, 3, expect_begun);
  c.training.ema = 0;
  c.parallel.pipeline.size = 2;  // each rank has some of the averages to drop
  c.parallel.pipeline.micro_batches = 2;
  train_steps(c, folder, 4, [](Engine& engine) { EXPECT_TRUE(Parts(engine).averages.empty()); });
  c.training.ema = kEma;
  train_steps(c, folder, 5, expect_begun);
}

TEST(AveragesOfEngines, StayEqualOnADisk) {
  run::Config c = course(kEma);
  c.precision.mode = "bf16";
  c.parallel.data = 2;
  c.parallel.zero = 3;
  std::vector<Parts> found;
  for (const std::string disk : {"", "averages-tier"}) {
    if (!disk.empty()) c.memory.disk = test::empty_folder(disk);
    const std::string folder = test::empty_folder("averages-" + disk);
    train_steps(c, folder, 3);
    train_steps(c, folder, 3, [&](Engine& engine) {
      if (engine.mesh().index("data") == 1) found.emplace_back(engine);
    });
  }
  ASSERT_EQ(found.size(), 2u);
  expect_equal(found[1].averages, found[0].averages, "on a disk");
  expect_equal(found[1].weights, found[0].weights, "on a disk");
  EXPECT_EQ(found[0].averages.front().second.scalar_type(), at::kFloat) << "of the master weights";
}

TEST(AveragesOfEngines, CountInTheNeedsOfMemory) {
  for (const std::string mode : {"fp32", "bf16", "fp64"}) {
    run::Config c = test::course_config();
    c.precision.mode = mode;
    const auto bytes_of = [&](const std::string& what, double ema) {
      c.training.ema = ema;
      int64_t bytes = 0;
      for (const MemoryNeed& need : memory_needs({c, test::tiny_gpt2()}, 0))
        if (need.what == what) bytes += need.bytes;
      return bytes;
    };
    EXPECT_EQ(bytes_of("states", kEma), bytes_of("states", 0)) << mode;
    EXPECT_EQ(bytes_of("average", kEma) * 2, bytes_of("states", 0)) << mode << ": adamw has two states as large";
    EXPECT_EQ(bytes_of("average", 0), 0) << mode;
  }
}

}  // namespace
}  // namespace colossal::train::average_test
