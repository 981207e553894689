// Training steps of ESMFold: every layout that does not split chains gives the losses, gradient norms and weights of
// one process.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/models/built_in.h"
#include "colossal/models/config.h"
#include "colossal/models/folding/folding_model.h"
#include "colossal/run/objective.h"
#include "colossal/train/engine.h"
#include "support/course.h"
#include "support/thrown_message.h"

namespace colossal::train::esmfold_training_test {
namespace {

models::ModelShape tiny() {
  return models::Registry().add(models::esmfold_architecture()).resolve({.name = "esmfold-tiny"});
}

tensor::Field field(at::Tensor values) {
  std::vector<tensor::Dim> dims(static_cast<size_t>(values.dim()), tensor::Dim::Other);
  dims.at(0) = tensor::Dim::Row;
  return {std::move(values), std::move(dims)};
}

at::Tensor cosines(double a, at::IntArrayRef sizes) {
  return at::arange(c10::multiply_integers(sizes), at::kDouble).mul(a).cos().view(sizes);
}

/// Returns four chains of 4 to 7 residues, with what a pass before has made of them.
tensor::Batch chains(const models::ModelShape& shape) {
  const models::FoldingSizes sizes = models::folding_of(shape);
  const at::Tensor types = at::arange(28, at::kLong).mul(5).remainder(21).view({4, 7}),
                   index = at::arange(7, at::kLong), lengths = at::arange(4, 8, at::kLong).unsqueeze(1);
  tensor::Batch batch;
  batch.add("aatype", field(types));
  batch.add("residue_index", field(index.expand({4, -1}).contiguous()));
  batch.add("seq_mask", field(index.lt(lengths).to(at::kDouble)));
  return models::with_recycled(batch,
                               {.single = cosines(.3, {4, 7, sizes.single}),
                                .pair = cosines(.7, {4, 7, 7, sizes.pair}),
                                .beta = 9 * cosines(1.3, {4, 7, 3})},
                               shape);
}

/// Returns a sum over the rows of the micro-batch of all states that heads read, without padding.
at::Tensor loss(const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
  const models::FoldingHeads& heads = *model.folding;
  const at::Tensor& mask = step.batch->at("seq_mask");
  const auto sum = [&](const at::Tensor& x, const at::Tensor& seen) {
    return (x.sin() * cosines(.9, x.sizes().slice(1)).to(x.device()) * seen).sum();
  };
  const at::Tensor of_layers = mask.unsqueeze(1).unsqueeze(-1), pairs = mask.unsqueeze(2) * mask.unsqueeze(1);
  const at::Tensor z = end[static_cast<size_t>(heads.pair)];
  return sum(end[static_cast<size_t>(heads.frames)], of_layers) +
         sum(end[static_cast<size_t>(heads.angles)], of_layers.unsqueeze(-1)) +
         sum(heads.distogram(z, z.transpose(1, 2)), pairs.unsqueeze(-1)) +
         sum(heads.lddt(end[static_cast<size_t>(heads.structure)]), mask.unsqueeze(-1).unsqueeze(-1));
}

/// An objective without data.
struct Signed : run::Objective {
  run::OpenedData open(const run::DataRequest&) const override { return {}; }
  tensor::Batch example(int64_t rows) const override {
    return chains(tiny()).part(0, rows).map([](const tensor::Field& f) { return f.tensor.to(at::kMeta); });
  }
  void check(const tensor::Batch&) const override {}
  double weight(const tensor::Batch& batch) const override { return static_cast<double>(batch.rows()); }
  at::Tensor loss(const models::Model& model, const models::States& end,
                  const nn::ForwardContext& step) const override {
    return esmfold_training_test::loss(model, end, step);
  }
};

std::unique_ptr<Engine> engine_of(comm::World& world, const run::Config& config) {
  return initialize(world, config, {{.shape = tiny(), .objective = std::make_shared<const Signed>()}});
}

struct Layout {
  std::string name;
  int64_t data = 1, zero = 0;
  parallel::PipelineConfig pipeline{};
  std::string recompute = "none";
};

/// Returns losses, gradient norms and the results without gradients of three steps on rank 0.
std::vector<double> course(const Layout& layout) {
  run::Config config = test::course_config();
  config.optimizer.epsilon = 1e-3;  // a gradient that is zero except for rounding must not become a whole step
  config.training.batch_size = 4;
  config.parallel.data = layout.data;
  config.parallel.zero = layout.zero;
  config.parallel.pipeline = layout.pipeline;
  config.memory.recompute = layout.recompute;
  std::vector<double> found;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = engine_of(world, config);
    const tensor::Batch batch = engine->replica_rows(4).of(chains(tiny()));
    for (int step = 0; step < 3; ++step) {
      engine->zero_grad();
      const double lost = engine->train_step(batch);
      const double norm = engine->step().gradient_norm;
      if (world.rank() == 0) found.insert(found.end(), {lost, norm});
    }
    // Passes without gradients overwrite the recycled pairs, so each gets its own.
    const tensor::Batch own = batch.map([](const tensor::Field& f) { return f.tensor.clone(); });
    const tensor::Batch known = own.with("language_states", field(cosines(.2, {own.rows(), 7, 32})));
    for (const tensor::Batch& one : {own.map([](const tensor::Field& f) { return f.tensor.clone(); }), known})
      for (const at::Tensor& result : engine->forward(one, loss))
        if (world.rank() == 0 && layout.data == 1 && layout.pipeline.micro_batches <= 1)
          found.push_back(result.item<double>());
  });
  return found;
}

TEST(EsmFoldTraining, EqualsOneProcessInEveryLayout) {
  const std::vector<double> want = course({.name = "one"});
  ASSERT_EQ(want.size(), 8U);
  EXPECT_NE(want[0], want[2]);
  for (const Layout& layout :
       {Layout{.name = "data2_zero3", .data = 2, .zero = 3, .recompute = "block"},
        Layout{.name = "pipeline2", .pipeline = {.size = 2, .micro_batches = 2}, .recompute = "block"},
        Layout{.name = "pipeline3", .pipeline = {.size = 3, .micro_batches = 1}}}) {
    SCOPED_TRACE(layout.name);
    const std::vector<double> got = course(layout);
    ASSERT_GE(got.size(), 6U);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-10 * std::max(1., std::abs(want[i]))) << i;
  }
}

TEST(EsmFoldTraining, RefusesLayoutsThatSplitChains) {
  run::Config config = test::course_config();
  config.parallel.tensor = {.size = 4, .mode = "2d"};
  std::string message;
  comm::run_ranks(4, [&](comm::World& world) {
    const std::string own = test::thrown_message([&] { engine_of(world, config); });
    if (world.rank() == 0) message = own;
  });
  EXPECT_NE(message.find("tensor.size must be 1 for a folding model: got 4"), std::string::npos) << message;
}

}  // namespace
}  // namespace colossal::train::esmfold_training_test
