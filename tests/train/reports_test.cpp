// Reported values and loss terms of whole models under every layout, compared with a plain computation in one process.
#include "colossal/nn/reports.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <map>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/data/batch_fields.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/report/metrics.h"
#include "colossal/schedule/make.h"
#include "support/course.h"
#include "support/reporter.h"
#include "support/thrown_message.h"
#include "train/whole_runs.h"

namespace colossal::train::reports_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kRows = 8, kTokens = 8, kSteps = 3;
constexpr double kRate = 0.1, kLimit = 1e-10;  // error bound in fp64 for values and losses of about 1

tensor::Batch whole_batch() {
  auto generator = at::detail::createCPUGenerator(5);
  const auto ids = at::TensorOptions().dtype(at::kLong);
  const at::Tensor tokens = at::randint(0, 43, {kRows, kTokens + 1}, generator, ids);
  return data::text_batch(tokens.narrow(1, 0, kTokens), tokens.narrow(1, 1, kTokens),
                          at::arange(kTokens, ids).repeat({kRows, 1}));
}

/// Plain gradient descent: updates are proportional to gradients, so an error in the strength of a loss term is
/// visible.
run::Config config_of(const distributed::ParallelConfig& parallel, const std::string& recompute = "none",
                      int64_t accumulate = 1) {
  run::Config config = test::course_config();
  config.parallel = parallel;
  config.parallel.chunk_mib = 0.01;
  config.data.sequence = kTokens;
  config.training.batch_size = kRows;
  config.training.accumulate = accumulate;
  config.training.clip = 0;
  config.memory.recompute = recompute;
  config.optimizer.name = "sgd";
  config.optimizer.learning_rate = kRate;
  config.optimizer.momentum = config.optimizer.weight_decay = 0;
  config.optimizer.schedule.name = "constant";
  config.optimizer.warmup_steps = 0;
  return config;
}

/// The results of some steps on one rank, the same on all.
struct Course {
  std::vector<double> losses;
  std::vector<std::map<std::string, double>> rows;
  std::vector<bool> skipped;
};

void keep(Course& course, double loss, const StepResult& result) {
  course.losses.push_back(loss);
  course.skipped.push_back(result.skipped);
  std::map<std::string, double>& rows = course.rows.emplace_back();
  for (const Metric& row : result.rows) EXPECT_TRUE(rows.emplace(row.name, number_of(row)).second) << row.name;
}

tensor::Batch own_rows(Engine& engine) { return engine.replica_rows(kRows).of(whole_batch()); }

Course course_of(const run::Config& config, const models::ModelShape& shape, int64_t steps = kSteps) {
  std::vector<Course> courses(static_cast<size_t>(config.parallel.ranks()));
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config, shape);
    const tensor::Batch own = own_rows(*engine);
    for (int64_t step = 0; step < steps; ++step) {
      engine->zero_grad();
      const double loss = engine->train_step(own);
      keep(courses[static_cast<size_t>(world.rank())], loss, engine->step());
      engine->evaluate(own);  // the evaluation must report no value
    }
  });
  for (const Course& course : courses)
    EXPECT_EQ(course.rows, courses[0].rows) << "all ranks have the same values, to the last bit";
  return courses[0];
}

/// The same computation without reports, engine and ranks: the layers of the model, the probes, and an explicit loss.
Course plain_course(const models::ModelShape& shape) {
  nn::Parameters parameters({}, {at::kDouble, at::kCPU, derive_seed(1, "parameters")});
  nn::SerialLayers layers(parameters);
  const models::Model model = models::make_model(shape, layers);
  const nn::ForwardContext step = nn::step_of(whole_batch());
  Course course;
  for (int64_t i = 0; i < kSteps; ++i) {
    std::map<std::string, double>& rows = course.rows.emplace_back();
    at::Tensor hidden = model.embed(*step.batch, step), terms = at::zeros({}, at::kDouble);
    for (size_t block = 0; block < model.blocks.size(); ++block) {
      hidden = model.blocks[block](hidden, step);
      const std::string name = concat("blocks.", block);
      const at::Tensor probe =
          at::linear(hidden, parameters.at(name + ".probe.weight").value, parameters.at(name + ".probe.bias").value);
      const at::Tensor term = probe.square().mean();
      terms = terms + test::probe_weight(block) * term;
      rows[name + ".probe_loss"] = term.item<double>();
      rows[name + ".tokens"] = kRows * kTokens;
      rows[name + ".above"] = static_cast<double>((hidden > 0).sum().item<int64_t>());
      rows[name + ".below"] = static_cast<double>((hidden < 0).sum().item<int64_t>());
      rows[name + ".average"] = hidden.mean().item<double>();
      rows[name + ".largest"] = hidden.max().item<double>();
    }
    rows["was_skipped"] = 0;
    const at::Tensor loss =
        model.head->loss_sum(model.norm(hidden, step), step.batch->at("labels"), step) / (kRows * kTokens);
    course.losses.push_back(loss.item<double>());
    (loss + terms).backward();
    const at::NoGradGuard no_grad;
    for (nn::Parameter& parameter : parameters) {
      parameter.value.sub_(parameter.value.grad(), kRate);
      parameter.value.mutable_grad() = at::Tensor();
    }
  }
  return course;
}

void expect_same(const Course& got, const Course& want, const std::string& what) {
  ASSERT_EQ(got.losses.size(), want.losses.size()) << what;
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], kLimit) << what << ", step " << i;
    ASSERT_EQ(got.rows[i].size(), want.rows[i].size()) << what;
    for (const auto& [name, value] : want.rows[i])
      EXPECT_NEAR(got.rows[i].at(name), value, kLimit) << what << ", step " << i << ", " << name;
  }
}

/// The same layers without probes.
models::ModelShape silent_shape() {
  models::ModelShape shape = test::tiny_reporter();
  shape.architecture = test::tiny_gpt2().architecture;
  return shape;
}

TEST(Reports, EqualAPlainComputationUnderEveryLayout) {
  const models::ModelShape shape = test::tiny_reporter();
  const Course want = plain_course(shape);
  const Course silent = course_of(config_of({}), silent_shape());
  EXPECT_GT(std::abs(silent.losses.back() - want.losses.back()), 100 * kLimit) << "the loss terms teach something";
  expect_same(course_of(config_of({}), shape), want, "one rank");
  expect_same(course_of(config_of({}, "none", 4), shape), want, "accumulation");
  for (const char* recompute : {"selective", "block"})
    expect_same(course_of(config_of({}, recompute, 2), shape), want, recompute);
  const std::vector<std::pair<std::string, distributed::ParallelConfig>> layouts{
      {"data 2", {.data = 2}},
      {"zero 1", {.data = 2, .zero = 1}},
      {"zero 2", {.data = 2, .zero = 2}},
      {"zero 3", {.data = 2, .zero = 3}},
      {"tensor 2", {.tensor = {.size = 2}}},
      {"tensor 2, sequence", {.tensor = {.size = 2, .sequence = true}}},
      {"ring", {.sequence = {2, "ring"}}},
      {"data 2, gather, tensor 2 with sequence",
       {.data = 2, .sequence = {2, "gather"}, .tensor = {.size = 2, .sequence = true}}}};
  for (const auto& [name, parallel] : layouts)
    for (const char* recompute : {"none", "block"})
      expect_same(course_of(config_of(parallel, recompute, 2), shape), want, concat(name, ", recompute ", recompute));
}

TEST(Reports, EqualAPlainComputationUnderEverySchedule) {
  const models::ModelShape shape = test::tiny_reporter();
  const Course want = plain_course(shape);
  for (const schedule::Family& family : schedule::families()) {
    const distributed::ParallelConfig parallel{.pipeline = {.size = 2, .schedule = family.name, .micro_batches = 4}};
    expect_same(course_of(config_of(parallel), shape), want, family.name);
    expect_same(course_of(config_of(parallel, "block"), shape), want, concat(family.name, ", block"));
  }
  expect_same(
      course_of(config_of({.data = 2, .tensor = {.size = 2}, .pipeline = {.size = 2, .micro_batches = 2}, .zero = 1}),
                shape),
      want, "data 2, tensor 2, pipeline 2, zero 1");
}

// If ranks have different features of a token, each of them would count it.
TEST(Reports, CountATokenOnceUnderEveryTensorMode) {
  for (const parallel::TensorConfig& tensor :
       std::vector<parallel::TensorConfig>{{.size = 2},
                                           {.size = 4, .mode = "2d"},
                                           {.size = 8, .mode = "2.5d", .depth = 2},
                                           {.size = 8, .mode = "3d"}}) {
    const models::ModelShape shape = test::tiny_reporter();
    const Course course = course_of(config_of({.data = 2, .tensor = tensor}), shape, 1);
    for (int64_t block = 0; block < shape.layers; ++block)
      EXPECT_EQ(course.rows[0].at(concat("blocks.", block, ".tokens")), kRows * kTokens) << test::name_of(tensor);
  }
}

TEST(Reports, CombineSeveralPassesOfAStep) {
  run::Config config = config_of({}, "none", 2);
  config.optimizer.learning_rate = 0;  // keeps the parameters of all steps equal
  comm::run_ranks(1, [&](comm::World& world) {
    const auto engine = initialize(world, config, test::tiny_reporter());
    Course course;
    for (const int64_t passes : {1, 2}) {
      engine->zero_grad();
      engine->train_step(own_rows(*engine));
      engine->zero_grad();  // discards the step and its reports
      for (int64_t pass = 0; pass < passes; ++pass) engine->train_step(own_rows(*engine));
      keep(course, 0, engine->step());
    }
    for (const auto& [name, value] : course.rows[0]) {
      const bool is_sum = name.ends_with(".tokens") || name.ends_with(".above") || name.ends_with(".below");
      EXPECT_NEAR(course.rows[1].at(name), is_sum ? 2 * value : value, kLimit) << name;
    }
  });
}

TEST(Reports, SendOneVectorOfSumsAndOneOfMaxima) {
  const auto other_traffic = [](const models::ModelShape& shape) {
    comm::Traffic::Count count;
    comm::run_ranks(4, [&](comm::World& world) {
      const auto engine = initialize(world, config_of({.data = 2, .pipeline = {.size = 2, .micro_batches = 2}}), shape);
      engine->zero_grad();
      engine->train_step(own_rows(*engine));
      world.traffic().reset();
      engine->step();
      if (world.rank() == 0) count = world.traffic().total("", "all_reduce", comm::Phase::Other);
    });
    return count;
  };
  EXPECT_EQ(other_traffic(silent_shape()).calls, 0) << "without a report nothing is sent";
  const comm::Traffic::Count reported = other_traffic(test::tiny_reporter());
  EXPECT_EQ(reported.calls, 2);
  constexpr double kPerBlock = 1 + 2 + 1 + 1 + 1;  // tokens, signs, average, probe_loss; largest
  EXPECT_EQ(reported.elements, 2.0 * 3 / 4 * 4 * kPerBlock) << "2 (n - 1) / n of each element";
}

// Half a unit in the last place of fp16 is 2^-11. There are about 48 roundings between a weight and the loss and back.
TEST(Reports, ExcludeTheLossScaleAndCoverSkippedSteps) {
  const double error = std::sqrt(48) * 0x1p-11;
  const auto of_scale = [](double scale) {
    run::Config config = config_of({}, "none", 2);
    config.precision.mode = "fp16";
    config.precision.loss_scale = scale;
    return course_of(config, test::tiny_reporter());
  };
  const Course want = plain_course(test::tiny_reporter()), skipping = of_scale(0x1p24);
  EXPECT_GT(std::abs(want.rows[2].at("blocks.3.probe_loss") / want.rows[0].at("blocks.3.probe_loss") - 1), 4 * error)
      << "too little was learned to compare";
  for (const double scale : {1024, 4096}) {
    const Course got = of_scale(scale);
    EXPECT_EQ(got.skipped, std::vector<bool>(kSteps, false));
    for (size_t i = 0; i < kSteps; ++i)
      for (size_t block = 0; block < 4; ++block) {
        const std::string name = concat("blocks.", block, ".probe_loss");
        EXPECT_NEAR(got.rows[i].at(name) / want.rows[i].at(name), 1, error) << name << ", step " << i;
      }
    for (const auto& [name, value] : got.rows[0])
      if (name != "was_skipped") EXPECT_EQ(skipping.rows[0].at(name), value) << name;
  }
  EXPECT_TRUE(skipping.skipped[0]);
  EXPECT_EQ(skipping.rows[0].at("was_skipped"), 1);
  for (const auto& [name, value] : skipping.rows[0])
    if (name != "was_skipped") EXPECT_EQ(skipping.rows[1].at(name), value) << name << " of the unchanged parameters";
}

/// The ranks with other rows than this thread's rank. Models cannot access a group, so the test sets this one.
thread_local comm::Group* other_rows = nullptr;

/// The mean of x over the ranks. Backward sends the gradient of each rank through its own part, as Over::Same requires.
struct MeanOfRanks : torch::autograd::Function<MeanOfRanks> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    at::Tensor mean = x.detach() / (other_rows ? other_rows->size() : 1);
    if (other_rows) other_rows->all_reduce(mean, comm::Reduce::Sum).wait();
    return mean;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] / (other_rows ? other_rows->size() : 1)};
  }
};

/// The first layer attaches the square of a mean over all rows, which differs from the mean of the ranks' squares.
models::Model make_joined(const models::ModelShape& s, nn::Layers& layers) {
  models::Model model =
      models::make_decoder(s, {.block = {.activation = ops::gelu}, .learned_positions = true}, layers);
  const nn::Report term = layers.reports().add_loss({.name = "joined", .weight = 0.1, .over = nn::Over::Same});
  model.blocks[0] = [inner = model.blocks[0], term](const at::Tensor& x, const nn::ForwardContext& step) {
    const at::Tensor y = inner(x, step);
    return step.attach_loss(term, MeanOfRanks::apply((y - y.select(2, 0).unsqueeze(2)).sum(2).mean()).square(), y);
  };
  return model;
}

/// The course of a model whose first layer joins the ranks with other rows.
Course joined_course(const run::Config& config, models::Model (*make)(const models::ModelShape&, nn::Layers&)) {
  models::ModelShape shape = test::tiny_gpt2();
  shape.architecture = std::make_shared<models::Architecture>(models::Architecture{.name = "joined", .make = make});
  Course found;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config, shape);
    other_rows = config.parallel.data > 1 ? &engine->mesh().group("data") : nullptr;
    Course mine;
    for (int64_t step = 0; step < kSteps; ++step) {
      engine->zero_grad();
      const double loss = engine->train_step(own_rows(*engine));
      keep(mine, loss, engine->step());
    }
    other_rows = nullptr;
    if (world.rank() == 0) found = mine;
  });
  return found;
}

TEST(LossTerm, EqualsOneRankIfTheLayerCombinesIt) {
  const Course want = joined_course(config_of({}), make_joined);
  EXPECT_NE(want.rows[0].at("joined"), want.rows[1].at("joined"));
  for (const char* recompute : {"none", "block"})
    expect_same(joined_course(config_of({.data = 2}, recompute), make_joined), want, recompute);
}

// The square of a mean over a micro-batch depends on the rows that are together in it.
TEST(LossTerm, SeesTheSameMicroBatchesOnAnyReplicas) {
  const Course whole = joined_course(config_of({}), make_joined);
  for (const int64_t parts : {2, 4}) {
    const Course want = joined_course(config_of({}, "none", parts), make_joined);
    EXPECT_GT(std::abs(want.rows[0].at("joined") - whole.rows[0].at("joined")), 100 * kLimit) << parts;
    for (const int64_t data : {2, 4})
      if (kRows % (parts * data) == 0)
        expect_same(joined_course(config_of({.data = data}, "none", parts), make_joined), want,
                    concat(data, " replicas, ", parts, " micro-batches"));
    for (const char* schedule : {"1f1b", "zero-bubble-h1", "chimera"})
      expect_same(
          joined_course(config_of({.data = 2, .pipeline = {.size = 2, .schedule = schedule, .micro_batches = parts}}),
                        make_joined),
          want, concat(schedule, ", ", parts, " micro-batches"));
  }
}

/// The first layer reports the first token of each row at the row's index in the global batch.
models::Model make_row_report(const models::ModelShape& s, nn::Layers& layers) {
  models::Model model =
      models::make_decoder(s, {.block = {.activation = ops::gelu}, .learned_positions = true}, layers);
  const nn::Report seen = layers.reports().add({.name = "seen", .size = kRows});
  model.blocks[0] = [inner = model.blocks[0], seen](const at::Tensor& x, const nn::ForwardContext& step) {
    at::Tensor tokens = at::zeros({kRows}, x.options().dtype(at::kDouble));
    const at::Tensor first = step.batch->at("ids").select(1, 0);
    tokens.narrow(0, step.first_row, first.size(0)).copy_(first);
    step.report(seen, tokens);
    return inner(x, step);
  };
  model.end_step = [seen](const nn::Reported& reported, std::vector<Metric>& rows) {
    for (int64_t row = 0; row < kRows; ++row)
      rows.push_back({.name = concat("row", row), .value = reported.at(seen)[static_cast<size_t>(row)]});
  };
  return model;
}

TEST(Reports, NumberTheRowsOfTheGlobalBatch) {
  const at::Tensor first = whole_batch().at("ids").select(1, 0);
  for (const distributed::ParallelConfig& parallel : std::vector<distributed::ParallelConfig>{
           {},
           {.data = 2},
           {.data = 4},
           {.data = 2, .pipeline = {.size = 2, .schedule = "chimera", .micro_batches = 2}}}) {
    const bool has_stages = parallel.pipeline.size > 1;
    const Course course = joined_course(config_of(parallel, "none", has_stages ? 1 : 2), make_row_report);
    for (int64_t row = 0; row < kRows; ++row)
      EXPECT_EQ(course.rows[0].at(concat("row", row)), first[row].item<int64_t>())
          << "row " << row << ", data " << parallel.data;
  }
}

/// The first layer attaches a term of 3 to each micro-batch.
models::Model make_constant(const models::ModelShape& s, nn::Layers& layers) {
  models::Model model =
      models::make_decoder(s, {.block = {.activation = ops::gelu}, .learned_positions = true}, layers);
  const nn::Report term = layers.reports().add_loss({.name = "constant", .over = nn::Over::Same});
  model.blocks[0] = [inner = model.blocks[0], term](const at::Tensor& x, const nn::ForwardContext& step) {
    const at::Tensor y = inner(x, step);
    return step.attach_loss(term, y.sum().to(at::kDouble) * 0 + 3, y);
  };
  return model;
}

TEST(LossTerm, AveragesOverMicroBatches) {
  models::ModelShape shape = test::tiny_gpt2();
  shape.architecture =
      std::make_shared<models::Architecture>(models::Architecture{.name = "constant", .make = make_constant});
  comm::run_ranks(1, [&](comm::World& world) {
    run::Config config = config_of({}, "none");
    config.training.accumulate = 2;
    const auto engine = initialize(world, config, shape);
    Course course;
    engine->zero_grad();
    const double loss = engine->train_step(own_rows(*engine));
    keep(course, loss, engine->step());
    EXPECT_EQ(course.rows[0].at("constant"), 3);
  });
}

class ReportingRun : public Run {
 protected:
  /// A run of an architecture `reporter` with one preset of that name.
  void train_reporter(run::Config config, models::Model (*make)(const models::ModelShape&, nn::Layers&)) const {
    config.model = {.name = "reporter"};
    models::ModelShape shape = test::tiny_gpt2();
    shape.layers = 4;
    shape.positions = 32;
    shape.architecture = nullptr;
    run::Program program = run::built_in();
    program.models.add({.name = "reporter", .presets = {{"reporter", shape}}, .make = make});
    comm::run_ranks(static_cast<int>(config.parallel.ranks()),
                    [&](comm::World& world) { Trainer(world, config, {.program = program}).run(); });
  }
};

TEST_F(ReportingRun, WritesARowForEachLossTerm) {
  run::Config config = make("run", 2, 1);
  config.training.steps = 3;
  config.parallel.pipeline = {.size = 2, .micro_batches = 2};
  train_reporter(config, test::make_reporter);
  const report::RecordedSteps steps = report::read_metrics(config.run.folder + "/metrics.jsonl");
  ASSERT_EQ(steps.size(), 3U);
  for (size_t i = 0; i < steps.size(); ++i)
    for (int64_t block = 0; block < 4; ++block) {
      EXPECT_GT(steps.value(concat("blocks.", block, ".probe_loss"), i).value(), 0);
      EXPECT_EQ(steps.value(concat("blocks.", block, ".tokens"), i).value(), 8 * 24);
    }
  EXPECT_EQ(report::read_metric_names(config.run.folder + "/metrics.json").at("blocks.3.probe_loss").plot,
            "Loss terms");
}

models::Model make_taken(const models::ModelShape& s, nn::Layers& layers) {
  models::Model model =
      models::make_decoder(s, {.block = {.activation = ops::gelu}, .learned_positions = true}, layers);
  layers.reports().add_loss({.name = "grad_norm"});
  return model;
}

TEST_F(ReportingRun, RefusesALossTermNamedLikeAMetric) {
  const run::Config config = make("run", 2, 1);
  const std::string message = test::thrown_message([&] { train_reporter(config, make_taken); });
  EXPECT_THAT(message, HasSubstr("the name of a metric must be new: `grad_norm` is taken"));
  EXPECT_FALSE(std::filesystem::exists(config.run.folder + "/metrics.jsonl"));
}

}  // namespace
}  // namespace colossal::train::reports_test
