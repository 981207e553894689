// Training in a pipeline: checkpoints that move between any two layouts, resuming, evaluation, and refusals before any
// communication.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/data/batch_fields.h"
#include "colossal/train/engine.h"
#include "support/course.h"
#include "support/parity.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::train::pipeline_modes_test {
namespace {

struct Layout {
  std::string name;
  int64_t data = 1;
  parallel::TensorConfig tensor;
  parallel::PipelineConfig pipeline;
  int ranks() const { return static_cast<int>(data * tensor.size * pipeline.size); }
};

Layout one() { return {.name = "one"}; }

std::vector<Layout> layouts() {
  return {one(),
          {.name = "data2_tensor2_pipeline2", .data = 2, .tensor = {.size = 2}, .pipeline = {.size = 2}},
          {.name = "tensor4", .tensor = {.size = 4}},
          {.name = "pipeline4_v", .pipeline = {.size = 4, .schedule = "zero-bubble-v"}},
          // both ranks hold every stage
          {.name = "pipeline2_chimera", .pipeline = {.size = 2, .schedule = "chimera"}}};
}

run::Config config_of(const Layout& layout) {
  run::Config c = test::course_config();
  c.parallel.data = layout.data;
  c.parallel.tensor = layout.tensor;
  c.parallel.pipeline = layout.pipeline;
  return c;
}

models::ModelShape shape_of(models::ModelShape shape, int64_t layers) {
  shape.layers = layers;
  return shape;
}

class PipelineCheckpoints : public testing::TestWithParam<Layout> {
 protected:
  /// The local tensors of a rank when it saved or loaded.
  struct Part {
    checkpoint::NamedTensor tensor;
    tensor::MeshCoordinates coordinates;
  };
  const models::ModelShape shape = shape_of(test::tiny_gpt2(), 8);

  /// Runs `work` on an engine of each rank and returns the tensors that they hold afterwards.
  template <class Work>
  std::vector<Part> parts_after(const Layout& layout, const Work& work) const {
    std::vector<Part> parts;
    std::mutex mutex;
    comm::run_ranks(layout.ranks(), [&](comm::World& world) {
      auto engine = initialize(world, config_of(layout), shape);
      work(*engine);
      const std::lock_guard lock(mutex);
      for (const auto& t : engine->state().tensors)
        parts.push_back({{t.name, t.value.clone(), t.spec, t.part}, engine->mesh().coordinates()});
    });
    return parts;
  }
};

// A checkpoint saved after two steps under this layout is loaded under every layout. Weights and optimizer states
// are bitwise equal on the saving ranks and on one process that loads it.
TEST_P(PipelineCheckpoints, LoadUnderEveryLayout) {
  const std::string folder = test::empty_folder(GetParam().name);
  const auto saved = parts_after(GetParam(), [&](Engine& engine) {
    test::train(engine, 0, 2);
    test::save(engine, folder);
  });
  std::map<std::string, at::Tensor> whole;
  for (const auto& [t, coordinates] : parts_after(one(), [&](Engine& engine) { test::load(engine, folder); }))
    test::put_part(whole[t.name], t);
  EXPECT_GT(whole.size(), 3 * 80u);  // parameters and both moments
  const auto expect_parts_of_whole = [&](const std::vector<Part>& parts, const std::string& under) {
    std::set<std::string> names;
    for (const auto& [t, coordinates] : parts) {
      test::expect_equal(t.value.clone(), test::local_part(whole.at(t.name), t, coordinates),
                         t.name + " under " + under);
      names.insert(t.name);
    }
    EXPECT_EQ(names.size(), whole.size()) << under;
  };
  expect_parts_of_whole(saved, "the layout that saved");
  for (const Layout& layout : layouts()) {
    const auto parts = parts_after(layout, [&](Engine& engine) { test::load(engine, folder); });
    expect_parts_of_whole(parts, layout.name);
    const bool holds_all = layout.pipeline.size == 1 || layout.pipeline.schedule == "chimera";
    const auto begun = std::count_if(parts.begin(), parts.end(), [](const Part& part) {  // not further segments
      return !part.tensor.part || part.tensor.part->first == 0;
    });
    EXPECT_EQ(begun == static_cast<int64_t>(whole.size()) * layout.ranks(), holds_all)
        << layout.name << ": a rank holds its stages alone";
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, PipelineCheckpoints, testing::ValuesIn(layouts()),
                         [](const auto& info) { return info.param.name; });

TEST(PipelineResume, ContinuesBitwise) {
  const std::string folder = test::empty_folder("resume");
  const run::Config config = config_of({.pipeline = {.size = 2, .schedule = "1f1b", .micro_batches = 4}});
  models::ModelShape shape = shape_of(test::tiny_gpt2(), 4);
  shape.dropout = 0.2;  // its masks depend on the step
  std::vector<checkpoint::TrainingState> want(2);
  comm::run_ranks(2, [&](comm::World& world) {
    auto engine = initialize(world, config, shape);
    test::train(*engine, 0, 4);
    want[world.rank()] = engine->state();
  });
  comm::run_ranks(2, [&](comm::World& world) {
    auto engine = initialize(world, config, shape);
    test::train(*engine, 0, 2);
    test::save(*engine, folder);
  });
  comm::run_ranks(2, [&](comm::World& world) {
    auto engine = initialize(world, config, shape);
    test::load(*engine, folder);
    EXPECT_EQ(engine->steps_done(), 2);
    test::train(*engine, 2, 4);
    const auto got = engine->state();
    const auto& tensors = want[world.rank()].tensors;
    ASSERT_EQ(got.tensors.size(), tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i)
      test::expect_equal(got.tensors[i].value.clone(), tensors[i].value.clone(), tensors[i].name);
  });
}

std::vector<parallel::PipelineConfig> evaluated() {
  return {
      {.size = 2, .schedule = "1f1b"}, {.size = 2, .schedule = "chimera"}, {.size = 2, .schedule = "zero-bubble-v"}};
}

/// Returns the result of all ranks, which must be equal.
Evaluation evaluate(const parallel::PipelineConfig& pipeline, const models::ModelShape& shape,
                    const tensor::Batch& batch) {
  std::vector<Evaluation> all(pipeline.size);
  comm::run_ranks(static_cast<int>(pipeline.size), [&](comm::World& world) {
    auto engine = initialize(world, config_of({.pipeline = pipeline}), shape);
    all[world.rank()] = engine->evaluate(batch);
  });
  for (const Evaluation& e : all) {
    EXPECT_EQ(e.sums, all[0].sums);
    EXPECT_EQ(e.weight, all[0].weight);
  }
  return all[0];
}

// Ranks of a stage with the same hidden state (1d) send one slice each; ranks that hold a block of it send that block.
TEST(PipelineTraffic, SendsOnlyTheShareOfARank) {
  for (const parallel::TensorConfig& tensor :
       std::vector<parallel::TensorConfig>{{}, {.size = 2}, {.size = 4, .mode = "2d"}, {.size = 8, .mode = "3d"}}) {
    const Layout layout{.name = "pipeline2", .tensor = tensor, .pipeline = {.size = 2, .micro_batches = 2}};
    const models::ModelShape shape = shape_of(test::tiny_gpt2(), 4);
    comm::run_ranks(static_cast<int>(layout.ranks()), [&](comm::World& world) {
      auto engine = initialize(world, config_of(layout), shape);
      for (int step = 0; step < 2; ++step) {  // the first step sends shapes, too
        world.traffic().reset();
        engine->zero_grad();
        engine->train_step(test::batch_of(step, 0, 1));
      }
      EXPECT_EQ(world.traffic().total("pipeline", "send").elements, 8 * 6 * shape.hidden / tensor.size)
          << test::name_of(tensor);
    });
  }
}

TEST(PipelineEvaluation, EqualsOneProcessForText) {
  // labels and inputs share memory, offset by one token
  const tensor::Batch batch = test::batch_of(7, 0, 1).map([](const tensor::Field& f) { return f.tensor.clone(); });
  batch.at("labels")[0][0] = data::kIgnored;  // micro-batches now count different numbers of tokens
  const models::ModelShape shape = shape_of(test::tiny_gpt2(), 4);
  const Evaluation want = evaluate({}, shape, batch);
  EXPECT_EQ(want.sums.size(), 1u);
  EXPECT_EQ(want.weight, static_cast<double>(batch.at("labels").numel() - 1));
  for (const auto& pipeline : evaluated()) {
    const Evaluation got = evaluate(pipeline, shape, batch);
    EXPECT_NEAR(got.loss(), want.loss(), 1e-12 * want.loss()) << pipeline.schedule;
    EXPECT_EQ(got.weight, want.weight) << pipeline.schedule;
  }
}

TEST(PipelineEvaluation, EqualsOneProcessForImages) {
  const models::ModelShape shape = shape_of(test::tiny_vit(), 4);
  auto generator = at::detail::createCPUGenerator(5);
  const at::Tensor images = at::randn({64, 3, 8, 8}, generator, at::kDouble);
  const tensor::Batch batch =
      data::image_batch(images, at::randint(0, 7, {64, 1}, generator, at::TensorOptions().dtype(at::kLong)));
  batch.at("labels")[0][0] = data::kIgnored;
  const Evaluation want = evaluate({}, shape, batch);
  EXPECT_EQ(want.weight, 63);
  EXPECT_GT(want.sums.at(1), 0);
  EXPECT_LT(want.sums.at(1), want.weight);
  for (const auto& pipeline : evaluated()) {
    const Evaluation got = evaluate(pipeline, shape, batch);
    EXPECT_NEAR(got.loss(), want.loss(), 1e-12 * want.loss()) << pipeline.schedule;
    EXPECT_EQ(got.sums.at(1), want.sums.at(1)) << pipeline.schedule;  // compares counts
    EXPECT_EQ(got.weight, want.weight) << pipeline.schedule;
  }
}

TEST(PipelineSizes, RefuseInvalidSchedules) {
  const auto complaint = [](const Layout& layout, int64_t accumulate = 1) {
    run::Config config = config_of(layout);
    config.training.accumulate = accumulate;
    return test::thrown_message([&] { config.validate(); });
  };
  EXPECT_EQ(complaint({.pipeline = {.size = 2, .micro_batches = 3}}),
            "[pipeline] micro_batches must divide the 8 samples of a replica: got 3; possible: 1, 2, 4, 8; or make "
            "training.batch_size a multiple of 3 per replica");
  EXPECT_EQ(complaint({.tensor = {.size = 4, .mode = "2d"}, .pipeline = {.size = 2, .micro_batches = 8}}),
            "[pipeline] micro_batches must divide the 8 samples of a replica (split into 2 parts): got 8; possible: 1, "
            "2, 4; or make training.batch_size a multiple of 16 per replica");
  EXPECT_EQ(complaint({.pipeline = {.size = 4, .schedule = "interleaved", .micro_batches = 2}}),
            "[pipeline] interleaved needs micro_batches divisible by the 4 ranks: got 2; nearest 4");
  EXPECT_EQ(complaint({.pipeline = {.size = 3, .schedule = "chimera", .micro_batches = 4}}),
            "[pipeline] chimera needs an even number of ranks: got 3; nearest 2 or 4");
  EXPECT_EQ(complaint({.pipeline = {.size = 2, .schedule = "1f1b", .chunks = 2}}),
            "[pipeline] 1f1b has 1 chunk per rank: got 2; nearest 1, or use interleaved or hanayo");
  EXPECT_EQ(complaint({.pipeline = {.size = 2}}, 2),
            "[training] accumulate must be 1 with a pipeline, whose micro-batches accumulate already: got 2; set "
            "parallel.pipeline.micro_batches");
  EXPECT_EQ(complaint({.pipeline = {.size = 2}}), "");
}

TEST(PipelineSizes, RefuseIndivisibleModelsBeforeMessages) {
  const auto complaint = [](const parallel::PipelineConfig& pipeline) {
    return test::thrown_message([&] {
      comm::run_ranks(static_cast<int>(pipeline.size), [&](comm::World& world) {
        try {
          initialize(world, config_of({.pipeline = pipeline}), test::tiny_gpt2());  // the model has two layers
        } catch (...) {
          EXPECT_EQ(world.traffic().total().calls, 0);
          throw;
        }
      });
    });
  };
  const auto expect_said = [&](const parallel::PipelineConfig& pipeline, const std::string& want) {
    const std::string got = complaint(pipeline);
    EXPECT_EQ(got.rfind(want + " (rank ", 0), 0u) << got;
  };
  expect_said({.size = 4},
              "[pipeline] every stage must have at least one block: got 2 blocks for 4 stages (4 ranks); the largest "
              "size is 2");
  expect_said({.size = 2, .schedule = "zero-bubble-v"},
              "[pipeline] every stage must have at least one block: got 2 blocks for 4 stages (2 ranks, 2 each); the "
              "largest size is 1");
  expect_said({.size = 2, .layers_per_stage = {2, 1}},
              "[pipeline] layers_per_stage must assign all 2 blocks to the 2 stages, in the order of the model: got 2 "
              "numbers, sum 3");
  expect_said({.size = 2, .layers_per_stage = {2}},
              "[pipeline] layers_per_stage must assign all 2 blocks to the 2 stages, in the order of the model: got 1 "
              "numbers, sum 2");
}

TEST(PipelineSizes, RefuseAnUnknownSchedule) {
  auto document = ConfigDocument::parse("[parallel.pipeline]\nsize = 2\nschedule = \"zero-buble-v\"", "x.toml");
  run::Config config;
  EXPECT_EQ(test::thrown_message([&] { document.read(config); }),
            "[config] x.toml:3: `parallel.pipeline.schedule` must be one of gpipe, 1f1b, chimera, interleaved, "
            "zero-bubble-h1, zero-bubble-h2, zero-bubble-v, "
            "hanayo, v-half, v-min: got \"zero-buble-v\", did you mean `zero-bubble-v`?");
}

}  // namespace
}  // namespace colossal::train::pipeline_modes_test
