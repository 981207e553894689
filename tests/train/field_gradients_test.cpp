// Gradients of fields of a batch (Engine::gradient_of): against finite differences, in every layout that has them.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "colossal/memory/chunk_store.h"
#include "colossal/memory/shard.h"
#include "colossal/models/registry.h"
#include "colossal/nn/adapter.h"
#include "colossal/run/config.h"
#include "colossal/train/engine.h"
#include "support/run_courses.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::train::field_gradients_test {
namespace {

using testing::HasSubstr;
using Flags = std::vector<std::string>;
using Work = std::function<void(Engine& engine)>;

constexpr int64_t kRows = 4;

at::Tensor waves(double a, const std::vector<int64_t>& sizes) {
  return (at::arange(c10::multiply_integers(sizes), at::kDouble) * a).sin().view(sizes);
}

tensor::Batch whole_batch() {
  using tensor::Dim;
  const std::vector<Dim> dims{Dim::Row, Dim::Other, Dim::Other, Dim::Other};
  tensor::Batch batch;
  batch.add("images", {waves(.3, {kRows, 3, 12, 12}), dims});
  batch.add("noise", {waves(.7, {kRows, 4, 6, 6}), dims});
  batch.add("counts", {at::ones({kRows}), {Dim::Row}});
  return batch;
}

/// Returns this rank's rows of the batch.
tensor::Batch own_rows(const Engine& engine) {
  const tensor::ReplicaRows rows = engine.replica_rows(kRows);
  std::vector<tensor::Batch> own;
  for (int64_t i = 0; i < kRows / rows.replicas; ++i) own.push_back(whole_batch().part(rows.global(i), 1));
  return tensor::joined_rows(own);
}

at::Tensor scored(const models::Model&, const models::States& end, const nn::ForwardContext&) {
  return end.at(0).square().mean({1, 2});
}

at::Tensor summed(const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
  return scored(model, end, step).sum();
}

/// Runs an autoencoder with a critic on all ranks of a layout.
void run_with_critic(const Flags& flags, const Work& work, bool is_frozen = false) {
  const Flags own{"--run.device=cpu",          "--run.matmul=mkl",          "--precision.mode=fp64",
                  "--parallel.chunk_mib=0.05", "--model.height=12",         "--model.width=12",
                  "--model.levels=8,16",       "--model.groups=4",          "--training.batch_size=4",
                  "--training.clip=0",         "--optimizer.warmup_steps=0"};
  const run::Config config =
      run::read_given_config(test::source_dir() + "/examples/vae_shapes.toml", test::joined(own, flags)).config;
  const models::Registry registry = models::built_in();
  const NamedModel critic{.name = "critic",
                          .shape = registry.resolve({.name = "patch-discriminator-tiny"}),
                          .adapter = is_frozen ? nn::frozen() : nn::Adapter{}};
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    work(*initialize(world, config, {{.shape = registry.resolve(config.model)}, critic}));
  });
}

TEST(FieldGradients, EqualFiniteDifferences) {
  for (const bool is_frozen : {false, true})
    run_with_critic(
        {},
        [](Engine& engine) {
          const tensor::Batch batch = whole_batch();
          const auto [losses, gradient] = engine.gradient_of(batch, "images", scored, "critic");
          EXPECT_TRUE(at::equal(losses, engine.forward(batch, scored, "critic").at(0)));
          ASSERT_EQ(gradient.sizes(), batch.at("images").sizes());
          for (const int64_t i : {5, 433, 1000, 1700}) {
            const auto sum_at = [&](double change) {
              at::Tensor images = batch.at("images").clone();
              images.view({-1})[i].add_(change);
              const tensor::Batch changed = batch.with("images", {images, batch.field("images").dims});
              return engine.forward(changed, scored, "critic").at(0).sum().item<double>();
            };
            const double slope = (sum_at(1e-5) - sum_at(-1e-5)) / 2e-5;
            EXPECT_NEAR(gradient.flatten()[i].item<double>(), slope, 1e-9 + 1e-5 * std::abs(slope)) << i;
          }
          EXPECT_GT(gradient.abs().max().item<double>(), 1e-6);
        },
        is_frozen);
}

TEST(FieldGradients, LeaveParametersWithoutGradients) {
  run_with_critic({}, [](Engine& engine) {
    const tensor::Batch batch = whole_batch();
    const auto norm = [&](bool with) {
      engine.zero_grad();
      engine.train_step(batch, kRows, summed, "critic");
      if (with) engine.gradient_of(batch, "images", scored, "critic");
      double sum = 0;
      memory::for_leases(engine.store().shards(), {.gradients = memory::Access::Read},
                         [&](size_t, memory::Resident& shard) {
                           if (shard.gradients.defined()) sum += shard.gradients.square().sum().item<double>();
                         });
      return sum;
    };
    const double without = norm(false);
    EXPECT_GT(without, 0);
    EXPECT_EQ(norm(true), without);
  });
}

TEST(FieldGradients, EqualOneProcessInEveryLayout) {
  const auto gathered = [](const Flags& flags) {
    at::Tensor all = at::zeros({kRows, 3, 12, 12}, at::kDouble), of_rows = at::zeros({kRows}, at::kDouble);
    std::mutex mutex;
    run_with_critic(flags, [&](Engine& engine) {
      const tensor::ReplicaRows rows = engine.replica_rows(kRows);
      const auto [losses, gradient] = engine.gradient_of(own_rows(engine), "images", scored, "critic");
      const std::lock_guard lock(mutex);
      for (int64_t i = 0; i < losses.size(0); ++i)
        all[rows.global(i)].copy_(gradient[i]), of_rows[rows.global(i)].copy_(losses[i]);
    });
    return std::pair(all, of_rows);
  };
  const auto [want, losses] = gathered({});
  const test::TemporaryFolder disk;
  for (const Flags& flags :
       {Flags{"--parallel.data=2"}, Flags{"--parallel.data=2", "--parallel.zero=3"},
        Flags{"--training.accumulate=2", "--memory.recompute=block"},
        Flags{"--memory.host=64MiB", "--memory.disk=" + disk.path(), "--memory.recompute=block"}}) {
    const auto [found, of_rows] = gathered(flags);
    EXPECT_TRUE(at::allclose(found, want, 1e-11, 1e-15)) << testing::PrintToString(flags);
    EXPECT_TRUE(at::allclose(of_rows, losses, 1e-12, 0)) << testing::PrintToString(flags);
  }
}

TEST(FieldGradients, RefuseWhatHasNone) {
  const auto refused = [](const Engine::Loss& losses, const std::string& field = "images", const Flags& flags = {}) {
    std::string message;
    run_with_critic(flags, [&](Engine& engine) {
      tensor::Batch batch = own_rows(engine);
      batch.add("classes", {at::zeros({batch.rows()}, at::kLong), {tensor::Dim::Row}});
      const std::string own = test::thrown_message([&] { engine.gradient_of(batch, field, losses, ""); });
      if (engine.mesh().world().rank() == 0) message = own;
    });
    return message;
  };
  EXPECT_THAT(refused(summed), HasSubstr("one loss for each of 4 rows"));
  EXPECT_THAT(refused(scored, "classes"), HasSubstr("floating point numbers for a gradient: got classes"));
  EXPECT_THAT(refused(scored, "nothing"), HasSubstr("nothing"));
  EXPECT_THAT(refused([](const auto&, const auto&, const auto&) { return at::zeros({kRows}); }),
              HasSubstr("must depend on the field images"));
  EXPECT_THAT(refused(scored, "images", {"--parallel.pipeline.size=2"}),
              HasSubstr("whole on each rank: got the main model, which 2 ranks divide"));
}

}  // namespace
}  // namespace colossal::train::field_gradients_test
