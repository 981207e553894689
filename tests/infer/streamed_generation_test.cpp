// Generation with weights in host memory and on disk: bitwise equal to a model with all weights in memory, under every
// policy and budget, from a run and from a Hugging Face folder. No budget is exceeded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/infer/engine.h"
#include "colossal/run/saved_model.h"
#include "support/generated_text.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::infer::streamed_generation_test {
namespace {

using test::Asked;
using test::Continued;
using test::generated;
using test::in_tiers;
using test::kNew;

/// Returns the minimum budget that the error for a too small one names; `ranks` share it.
int64_t min_budget_of(Asked asked) {
  asked.memory.host = 4096;
  return test::min_budget_in(test::thrown_message([&] { generated(asked); }), "host = \"4KiB\" is too small for the");
}

class StreamedGeneration : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { test::write_model(folder, GetParam()); }
  test::TemporaryFolder folder;
};

TEST_P(StreamedGeneration, EqualsAModelInMemory) {
  const int64_t all = generated({folder / "hf", in_tiers(1 << 30, "")}).stayed;
  const Continued want = generated({folder / "run"});
  ASSERT_EQ(want.tokens.size(), static_cast<size_t>(kNew));
  EXPECT_EQ(generated({folder / "hf"}).tokens, want.tokens);
  for (const std::string placement : {"auto", "lru", "static"}) {
    const int64_t least = min_budget_of({folder / "run", in_tiers(0, folder / "disk", placement)});
    ASSERT_LT(least, all / 2);
    for (const auto& [from, host] :
         std::vector<std::pair<std::string, int64_t>>{{"run", least}, {"hf", all / 2}, {"hf", 2 * all}}) {
      const Continued got = generated({folder / from, in_tiers(host, folder / "disk", placement)});
      const std::string what = concat(GetParam(), " ", from, ", ", placement, ", ", host);
      EXPECT_EQ(got.tokens, want.tokens) << what;
      EXPECT_LE(got.counts.peak_host_bytes + got.stayed, host) << what;
      EXPECT_EQ(got.counts.bytes_read > 0, host < all) << what;
    }
  }
}

TEST_P(StreamedGeneration, EqualsOneProcessOverRanksAndInEveryPrecision) {
  std::vector<distributed::ParallelConfig> layouts(3);
  layouts[1].tensor.size = 2;
  layouts[2].pipeline.size = 2;
  for (size_t i = 0; i < layouts.size(); ++i) {
    Asked asked{folder / "run", {}, layouts[i], i == 1 ? at::kFloat : at::kBFloat16};
    const Continued want = generated(asked);
    asked.memory = in_tiers(0, folder / "disk");
    asked.memory.host = min_budget_of(asked);
    const Continued got = generated(asked);
    EXPECT_EQ(got.tokens, want.tokens) << i;
    EXPECT_GT(got.counts.bytes_read, 0) << i;
    asked.memory.host -= 4096;
    EXPECT_THAT(test::thrown_message([&] { generated(asked); }), testing::HasSubstr("the smallest that works is")) << i;
  }
}

/// Completions of many prompts together, with the transfers.
struct Together {
  std::vector<std::vector<int64_t>> tokens;
  memory::TieredStore::Counts counts;
  int64_t steps = 0;
};

Together together(const Asked& asked) {
  Together all;
  comm::run_ranks(static_cast<int>(asked.layout.ranks()), [&](comm::World& world) {
    comm::Mesh mesh(world, asked.layout.axes());
    const run::SavedModel saved = run::load_model(asked.from, mesh, asked.layout, at::kCPU,
                                                  {.tokenizer = "bytes", .dtype = asked.dtype, .memory = asked.memory});
    Engine engine(*saved.model, {.cache_bytes = 1 << 20, .block_tokens = 16});
    std::vector<std::vector<int64_t>> tokens(4);
    for (size_t i = 0; i < tokens.size(); ++i)
      engine.add(
          {.prompt = std::vector<int64_t>(3 * i + 1, 70 + static_cast<int64_t>(i)), .options = {.max_tokens = kNew}},
          [&own = tokens[i]](const Event& event) { own.push_back(event.token); });
    int64_t steps = 0;
    for (; engine.has_work(); ++steps) engine.step();
    if (world.rank() != 0) return;
    all.tokens = tokens, all.steps = steps;
    if (saved.weights) all.counts = saved.weights->tiers().counts();
  });
  return all;
}

TEST_P(StreamedGeneration, CompletesManyPromptsWithOneReadOfTheWeights) {
  for (const int64_t ranks : {1, 2}) {
    Asked asked{folder / "run"};
    asked.layout.tensor.size = ranks;
    const Together want = together(asked);
    asked.memory = in_tiers(0, folder / "disk");
    asked.memory.host = min_budget_of(asked);
    const Together got = together(asked);
    EXPECT_EQ(got.tokens, want.tokens) << ranks;
    EXPECT_EQ(got.steps, kNew) << "the texts, one beside another";
    const int64_t travel = got.counts.host_bytes + got.counts.disk_bytes, here = got.counts.peak_host_bytes;
    EXPECT_LE(got.counts.bytes_read, got.steps * travel + here) << ranks;
    EXPECT_GE(got.counts.bytes_read, got.steps * (travel - here)) << ranks;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, StreamedGeneration, testing::Values("gpt2-tiny", "llama-tiny"),
                         [](const auto& info) { return info.param.substr(0, info.param.find('-')); });

class StreamedLoading : public testing::Test {
 protected:
  void SetUp() override { test::write_model(folder, "llama-tiny"); }
  test::TemporaryFolder folder;
};

TEST_F(StreamedLoading, UsesTheMinimumForTransfersWithoutABudget) {
  const int64_t least = min_budget_of({folder / "hf", in_tiers(0, folder / "disk")});
  const Continued text = generated({folder / "hf", in_tiers(0, folder / "disk")});
  EXPECT_EQ(text.tokens, generated({folder / "hf"}).tokens);
  EXPECT_GT(text.counts.bytes_read, 0);
  EXPECT_LE(text.counts.peak_host_bytes + text.stayed, 2 * least);
}

// A fixed set stays resident, and all other weights are read once per token: no eviction order reads less (Belady
// 1966).
TEST_F(StreamedLoading, ReadsEvictedWeightsOncePerToken) {
  const int64_t all = generated({folder / "hf", in_tiers(1 << 30, "")}).stayed;
  const Continued text = generated({folder / "hf", in_tiers(all / 2, folder / "disk")});
  EXPECT_GT(text.stayed, 0);
  const int64_t travel = text.counts.host_bytes + text.counts.disk_bytes, here = text.counts.peak_host_bytes;
  // The next pass need not read what a pass left in buffers. The last pass also prefetches for a pass that does not
  // follow.
  EXPECT_LE(text.counts.bytes_read, kNew * travel + here);
  EXPECT_GE(text.counts.bytes_read, kNew * (travel - here));
  EXPECT_LE(text.counts.bytes_written, travel) << "what is on the disk does not change";
}

TEST_F(StreamedLoading, RefusesABudgetBeforeItReadsAWeight) {
  // Reading a weight would report the damaged file.
  const std::string file = folder / "run/checkpoints/step-000001/rank-00000.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 4);
  EXPECT_THAT(test::thrown_message([&] { generated({folder / "run", in_tiers(4096, folder / "disk")}); }),
              testing::HasSubstr("the smallest that works is"));
  EXPECT_THAT(test::thrown_message([&] { generated({folder / "run", in_tiers(1 << 20, "")}); }),
              testing::HasSubstr("memory.disk must name a folder for the rest"));
}

TEST_F(StreamedLoading, RefusesADeviceBudgetOnTheCpu) {
  run::MemoryConfig memory = in_tiers(0, "");
  memory.device = 1 << 20;
  EXPECT_THAT(
      test::thrown_message([&] { generated({folder / "run", memory}); }),
      testing::AllOf(testing::HasSubstr("device = \"1MiB\" needs an accelerator"), testing::HasSubstr("memory.host")));
}

TEST_F(StreamedLoading, NamesADamagedFile) {
  const std::string shortened = folder / "hf/model.safetensors",
                    changed = folder / "run/checkpoints/step-000001/rank-00000.safetensors";
  std::filesystem::resize_file(shortened, std::filesystem::file_size(shortened) - 4);
  EXPECT_THAT(test::thrown_message([&] { generated({folder / "hf", in_tiers(1 << 20, folder / "disk")}); }),
              testing::AllOf(testing::HasSubstr(shortened), testing::HasSubstr("truncated")));
  std::string bytes = test::read_all(changed);
  bytes.back() ^= 1;
  folder.write("run/checkpoints/step-000001/rank-00000.safetensors", bytes);
  EXPECT_THAT(test::thrown_message([&] { generated({folder / "run", in_tiers(1 << 20, folder / "disk")}); }),
              testing::AllOf(testing::HasSubstr(changed), testing::HasSubstr("checksum")));
}

}  // namespace
}  // namespace colossal::infer::streamed_generation_test
