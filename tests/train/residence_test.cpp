// Offloaded tensors are saved and filled by checkpoints shard by shard, for any number of shards.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/comm/run_ranks.h"
#include "colossal/train/optimization.h"
#include "support/counting_store.h"
#include "support/course.h"
#include "support/temporary_folder.h"

namespace colossal::train::residence_test {
namespace {

constexpr int64_t kNumel = 16 * 16;

/// bf16 parameters, each in a chunk of its own, with master weights and the states of `optimizer` in an offload store.
struct Model {
  Model(comm::World& world, int64_t count, const std::string& optimizer)
      : mesh(world, {}), parameters(mesh.coordinates(), {at::kBFloat16, at::kCPU, 1}) {
    for (int64_t i = 0; i < count; ++i)
      parameters.add(concat("p", i), tensor::ShardSpec::whole({16, 16}), nn::Init::normal(1), true).hidden_matrix =
          i % 2 == 0;
    run::Config config = test::course_config();
    config.optimizer.name = optimizer;
    config.precision.mode = "bf16";
    config.parallel.chunk_mib = 2.0 * kNumel / (1 << 20);
    optimization = std::make_unique<Optimization>(parameters, mesh, config, std::vector<OwnOptimizer>{}, offload);
  }
  void step() {
    optimization->zero_grad();
    at::Tensor loss = at::zeros({});
    for (nn::Parameter& p : parameters) loss = loss + p.value.square().sum();
    optimization->reducer().begin(true);
    loss.backward();
    optimization->reducer().finish();
    optimization->store().end_pass();
    optimization->step();
  }
  void load(const std::string& folder) {
    checkpoint::TrainingState state = optimization->state();
    checkpoint::load(*checkpoint::latest(folder), state, mesh.all(), mesh.coordinates());
    loaded_borrows = offload->borrows();
    optimization->loaded(state);
  }
  std::vector<at::Tensor> all() {
    std::vector<at::Tensor> values;
    for (const auto& t : optimization->state().tensors) values.push_back(t.value.clone());
    for (const nn::Parameter& p : parameters) values.push_back(p.value.detach().clone());
    return values;
  }

  std::shared_ptr<test::CountingStore> offload = std::make_shared<test::CountingStore>();
  comm::Mesh mesh;
  nn::Parameters parameters;
  std::unique_ptr<Optimization> optimization;
  int64_t saved_borrows = 0, loaded_borrows = 0;
};

TEST(OffloadedState, LoadsOneShardAtATime) {
  for (const std::string& optimizer : optim::rule_names()) {
    std::vector<int64_t> peak_saved, peak_loaded;
    for (const int64_t count : {4, 12})
      comm::run_ranks(1, [&](comm::World& world) {
        test::TemporaryFolder folder;
        Model model(world, count, optimizer), resumed(world, count, optimizer);
        ASSERT_EQ(model.optimization->store().shards().size(), static_cast<size_t>(count));
        model.step();
        model.offload->reset_counts();
        checkpoint::save(folder.path(), 1, model.optimization->state(), model.mesh.all(), model.mesh.coordinates(), 0);
        peak_saved.push_back(model.offload->peak_borrowed);
        for (const auto& tensor : model.offload->counts)  // directions are not stored after an update
          EXPECT_EQ(tensor.borrows, tensor.numel > 0 && !tensor.is_gone ? 1 : 0) << optimizer << ": once each";
        EXPECT_EQ(model.offload->written(), 0);
        model.saved_borrows = model.offload->borrows();
        resumed.offload->reset_counts();
        resumed.load(folder.path());
        peak_loaded.push_back(resumed.offload->peak_borrowed);
        EXPECT_EQ(resumed.loaded_borrows, model.saved_borrows) << optimizer << ": once each";
        EXPECT_EQ(resumed.offload->written(), model.saved_borrows);
        for (Model* m : {&model, &resumed}) m->step();  // continues from the loaded state
        const auto want = model.all(), got = resumed.all();
        ASSERT_EQ(got.size(), want.size());
        for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << optimizer << ", " << i;
      });
    EXPECT_EQ(peak_saved[0], peak_saved[1]) << optimizer;
    EXPECT_EQ(peak_loaded[0], peak_loaded[1]) << optimizer;
    EXPECT_LE(peak_loaded[0], 4 * kNumel) << optimizer << ": two moments of a shard, and of the next";
    EXPECT_GT(peak_loaded[0], 0);
  }
}

}  // namespace
}  // namespace colossal::train::residence_test
