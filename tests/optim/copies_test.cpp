// Offloaded parameters with master weights are freed while their gradients exist: the memory that is kept, and equal
// results.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "colossal/comm/run_ranks.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/memory/tiers/tiered_store.h"
#include "colossal/optim/optimizer.h"
#include "colossal/parallel/data/gradient_reducer.h"
#include "support/counting_store.h"
#include "support/temporary_folder.h"

namespace colossal::optim::copies_test {
namespace {

using namespace memory;

constexpr int64_t kSegment = 4096;  // elements: a multiple of the disk's block size for any dtype

/// A TieredStore that measures the largest number of bytes it kept after any call.
class SampledStore final : public OffloadStore {
 public:
  SampledStore(const std::string& folder, int64_t host_bytes)
      : tiers({.host_bytes = host_bytes, .disk = std::make_shared<DiskSpace>(folder)}) {}
  std::unique_ptr<OffloadedTensor> offload(const at::Tensor& tensor) override {
    auto offloaded = std::make_unique<Sampled>(*this, tiers.offload(tensor));
    sample();
    return offloaded;
  }
  void sample() {
    const TieredStore::Counts counts = tiers.counts();
    peak_kept = std::max(peak_kept, counts.host_bytes + counts.disk_bytes);
    peak_on_disk = std::max(peak_on_disk, tiers.disk()->counts().used_bytes);
  }

  TieredStore tiers;
  int64_t peak_kept = 0, peak_on_disk = 0;

 private:
  struct Sampled final : OffloadedTensor {
    Sampled(SampledStore& store, std::unique_ptr<OffloadedTensor> offloaded)
        : store(store), offloaded(std::move(offloaded)) {}
    int64_t bytes() const override { return offloaded->bytes(); }
    void prefetch() override { offloaded->prefetch(), store.sample(); }
    at::Tensor borrow() override {
      const at::Tensor borrowed = offloaded->borrow();
      store.sample();
      return borrowed;
    }
    void return_borrowed(const at::Tensor& borrowed, bool changed) override {
      offloaded->return_borrowed(borrowed, changed), store.sample();
    }
    void discard() override { offloaded->discard(), store.sample(); }
    void replace(const at::Tensor& tensor) override { offloaded->replace(tensor), store.sample(); }
    SampledStore& store;
    std::unique_ptr<OffloadedTensor> offloaded;
  };
};

/// bf16 parameters with master weights under AdamW, sharded over all ranks; one is larger than a chunk.
struct Training {
  Training(comm::World& world, std::shared_ptr<OffloadStore> offload, int64_t element = 0)
      : mesh(world, {comm::Mesh::batch("data", world.size())}),
        parameters(mesh.coordinates(), {at::kBFloat16, at::kCPU, 1}) {
    const auto add = [&](const char* name, int64_t segments) {  // `element` extra elements make padding
      parameters.add(name, tensor::ShardSpec::whole({segments * world.size() * kSegment + element}),
                     nn::Init::normal(1), true);
    };
    add("a", 1), add("b", 3), add("c", 1), add("d", 1);
    ChunkOptions options;
    options.sharing = Sharing::of_stage(3);
    options.capacity = kSegment * world.size();
    options.masters = at::kFloat;
    options.offload = std::move(offload);
    if (element > 0) options.compression = comm::compression_of("int8");
    store = std::make_unique<ChunkStore>(parameters, mesh, options);
    reducer = std::make_unique<parallel::GradientReducer>(
        *store, parallel::GradientOptions{.sums = at::kBFloat16, .each_pass = true});
    optimizer = make_optimizer({}, store->shards(), {parameters, mesh});
  }

  void backward() {
    reducer->zero();
    at::Tensor loss = at::zeros({});
    for (nn::Parameter& p : parameters) loss = loss + (p.value - 0.5).square().sum().to(at::kFloat);
    reducer->begin(true);
    loss.backward();
    reducer->finish();
    store->end_pass();
  }
  void update() {
    optimizer->step(++steps, 0.05, 1);
    store->updated();
  }
  std::vector<at::Tensor> values() {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> all;
    for (nn::Parameter& p : parameters) all.push_back(p.value.detach().clone());
    store->end_pass();
    return all;
  }

  comm::Mesh mesh;
  nn::Parameters parameters;
  std::unique_ptr<ChunkStore> store;
  std::unique_ptr<parallel::GradientReducer> reducer;
  std::unique_ptr<Optimizer> optimizer;
  int64_t steps = 0;
};

void expect_equal(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << what << ", parameter " << i;
}

class Copies : public testing::TestWithParam<int> {};

// Memory: a parameter or its gradient, master weights and two moments; both for the segment that is being updated.
TEST_P(Copies, TakeFourteenBytesPerParameterWithGradients) {
  comm::run_ranks(GetParam(), [&](comm::World& world) {
    test::TemporaryFolder folder;
    for (const int64_t host_bytes : {int64_t{1} << 30, 32 * kSegment}) {
      const auto offload = std::make_shared<SampledStore>(folder.path(), host_bytes);
      Training here(world, nullptr), there(world, offload);
      // With several replicas, a chunk whose gather is in progress when its gradients arrive keeps its part.
      const int64_t all = 14 * 6 * kSegment, both = 2 * kSegment * world.size();
      for (int step = 0; step < 4; ++step) {
        offload->tiers.begin_step();
        for (Training* training : {&here, &there}) training->backward(), training->update();
        offload->tiers.end_step();
      }
      EXPECT_GE(offload->peak_kept, all);
      EXPECT_LE(offload->peak_kept, all + both) << host_bytes;
      EXPECT_LE(offload->peak_on_disk, all + both) << host_bytes;
      EXPECT_EQ(offload->peak_on_disk > 0, host_bytes < all);
      expect_equal(there.values(), here.values(), concat(host_bytes));
    }
  });
}

// Every reader gets rounded master weights: an evaluation between backward and update, and any reader after a skipped
// step. This offload store overwrites discarded tensors. Overwritten padding would corrupt a block of quantized values.
TEST_P(Copies, UseRoundedMasterWeightsForEarlyReads) {
  comm::run_ranks(GetParam(), [&](comm::World& world) {
    for (const int64_t element : {0, 1}) {
      Training here(world, nullptr, element), there(world, std::make_shared<test::CountingStore>(), element);
      for (const bool reads : {false, true})
        for (const bool skips : {false, true}) {
          const std::string what = concat("reads ", reads, ", skips ", skips, ", padding ", element);
          for (Training* training : {&here, &there}) training->backward();
          if (reads) expect_equal(there.values(), here.values(), what + ", before the update");
          for (Training* training : {&here, &there}) {
            if (!skips) training->update();
            training->reducer->zero();
          }
          expect_equal(there.values(), here.values(), what);
        }
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, Copies, testing::Values(1, 2));

TEST(Copies, KeepTheMasterIfACopyCannotBeMade) {
  const auto offload = std::make_shared<test::CountingStore>();
  Shard::Parts parts = Shard::Parts::of(at::full({4}, 1.0 / 3, at::kFloat), offload);
  parts.copy = offload->offload(at::zeros({4}, at::kBFloat16));
  const Shard shard(std::move(parts), {});
  shard.drop_copy();
  offload->broken = 1;
  EXPECT_THROW(shard.make_copy(), Error);
  EXPECT_EQ(offload->borrowed(), 0);
  offload->broken = static_cast<size_t>(-1);
  shard.make_copy();
  const Lease lease = shard.lease();
  EXPECT_EQ(lease->copy[0].item<float>(), static_cast<float>(static_cast<c10::BFloat16>(1.0F / 3)));
  EXPECT_EQ(lease->values[0].item<float>(), 1.0F / 3);
}

}  // namespace
}  // namespace colossal::optim::copies_test
