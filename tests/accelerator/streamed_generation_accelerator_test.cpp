// Text generation by models whose weights are on the accelerator, in pinned memory of the host and on a disk, within
// budgets. A model that is completely on the accelerator must give the same tokens, and no budget is exceeded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/memory/device_meter.h"
#include "support/accelerator.h"
#include "support/generated_text.h"
#include "support/thrown_message.h"

namespace colossal::infer::streamed_generation_accelerator_test {
namespace {

using test::Asked;
using test::Continued;
using test::in_tiers;
using test::kNew;

class StreamedGenerationOnAccelerator : public test::AcceleratorTest {
 protected:
  void write(const std::string& name) { test::write_model(folder, name); }
  run::MemoryConfig budgets(int64_t device, int64_t host, bool has_disk, const std::string& placement = "auto") const {
    run::MemoryConfig memory = in_tiers(host, has_disk ? folder / "disk" : "", placement);
    memory.device = device;
    return memory;
  }
  static Continued generated(Asked asked) {
    asked.devices.clear();
    for (int64_t rank = 0; rank < asked.layout.ranks(); ++rank)
      asked.devices.push_back(test::accelerator(static_cast<int>(rank)));
    return test::generated(asked);
  }
  Continued with(const run::MemoryConfig& memory, const std::string& from = "run") const {
    return generated({folder / from, memory});
  }
  static std::string refusal(const Asked& asked) {
    return test::thrown_message([&] { generated(asked); });
  }
  int64_t min_device(const run::MemoryConfig& memory) const {
    return test::min_budget_in(refusal({folder / "run", memory}), "is too small for the weights of a rank");
  }
  test::TemporaryFolder folder;
};

// Quantized weights give the same tokens as on the CPU, in a dtype that both devices multiply in the same way.
TEST_F(StreamedGenerationOnAccelerator, GivesTheTokensOfTheCpuWithQuantizedWeights) {
  for (const std::string name : {"gpt2-tiny", "llama-tiny"}) {
    write(name);
    for (const nn::WeightPacking& packing :
         {nn::WeightPacking{.bits = 8, .group = 32}, {.bits = 8, .floating = true}, {.bits = 4, .group = 32}}) {
      Asked asked{.from = folder / "hf", .dtype = at::kDouble, .packing = packing};
      const Continued want = test::generated(asked);
      EXPECT_EQ(generated(asked).tokens, want.tokens) << name << " " << packing.bits << " " << packing.floating;
    }
  }
}

// The test covers combinations of the three stores, and the smallest budget of each.
TEST_F(StreamedGenerationOnAccelerator, GivesTheTokensOfAResidentModel) {
  for (const std::string name : {"gpt2-tiny", "llama-tiny"}) {
    write(name);
    const Continued want = with({});
    ASSERT_EQ(want.tokens.size(), static_cast<size_t>(kNew));
    const int64_t all = want.all, least = min_device(budgets(4096, 0, false));
    EXPECT_LT(least, all / 2) << name;
    struct Case {
      int64_t device, host;
      bool has_disk, reads;
      std::string placement = "auto";
    };
    for (const Case& c : std::vector<Case>{{all / 2, 0, false, false},
                                           {least, 0, false, false},
                                           {2 * all, 0, false, false},
                                           {0, 2 * all, false, false},
                                           {0, all / 2, true, true},
                                           {0, 12288, true, true},
                                           {0, 0, true, true},
                                           {all / 2, 2 * all, false, false},
                                           {all / 2, all / 8, true, true},
                                           {all / 2, all / 8, true, true, "lru"},
                                           {all / 2, all / 8, true, true, "static"},
                                           {all / 2, 2 * all, true, false, "lru"},
                                           {least, 12288, true, true}}) {
      const Continued got = with(budgets(c.device, c.host, c.has_disk, c.placement), c.has_disk ? "hf" : "run");
      const std::string what =
          concat(name, ", device ", c.device, ", host ", c.host, ", disk ", c.has_disk, ", ", c.placement);
      EXPECT_EQ(got.tokens, want.tokens) << what;
      if (c.device > 0) EXPECT_LE(got.on_device_max, c.device) << what;
      if (c.host > 0) EXPECT_LE(got.counts.peak_host_bytes + got.stayed, c.host) << what;
      EXPECT_EQ(got.counts.bytes_read > 0, c.reads) << what;
      EXPECT_EQ(got.on_device == all, c.device >= all) << what;
      EXPECT_EQ(got.on_device > 0, c.device > least) << what;
    }
  }
}

// The two budgets add up. Weights that are resident on the device are stored nowhere else, and all other weights are
// copied once per token.
TEST_F(StreamedGenerationOnAccelerator, CopiesStreamedWeightsOncePerToken) {
  write("llama-tiny");
  const int64_t all = with({}).all;
  for (const int64_t device : {int64_t{0}, all / 2, all * 3 / 4}) {
    const Continued got = with(budgets(device, 2 * all, false));
    // The embedding table is read first and last, so it is copied twice if it is not resident.
    const int64_t again = device == 0 ? 257 * 64 * 4 : 0, norm = 64 * 4;
    EXPECT_GE(got.copied, kNew * (got.all - got.on_device + again)) << device;
    EXPECT_LE(got.copied, kNew * (got.all - got.on_device + again + (again > 0 ? norm : 0))) << device;
    EXPECT_GE(got.on_device, device / 3) << device;
    EXPECT_GE(got.stayed, got.all - got.on_device) << device;
    EXPECT_LE(got.stayed, got.all - got.on_device + 4096 * got.parameters) << "whole blocks";
  }
  const Continued whole = with(budgets(2 * all, 0, false));
  EXPECT_EQ(whole.copied + whole.stayed + whole.counts.host_bytes, 0);
}

// The allocator's counts decide. Except for weights, both models need the same memory.
TEST_F(StreamedGenerationOnAccelerator, SavesDeviceMemoryOfStreamedWeights) {
  write("gpt2-tiny");
  const run::MemoryConfig least = budgets(min_device(budgets(4096, 0, false)), 0, false);
  with({}), with(least);  // a warm-up, because libraries allocate workspaces once
  const auto peak = [&](const run::MemoryConfig& memory, Continued& text) {
    memory::restart_peak(test::accelerator());
    text = with(memory);
    return memory::peak_bytes(test::accelerator());
  };
  Continued plain, streamed;
  const int64_t more = peak({}, plain) - peak(least, streamed);
  constexpr int64_t kLine = 512;  // bytes to which an allocator rounds the size of a tensor
  EXPECT_GE(more, plain.all - streamed.on_device_max - kLine * plain.parameters);
  EXPECT_GT(plain.all - streamed.on_device_max, plain.all / 2);
}

TEST_F(StreamedGenerationOnAccelerator, GivesTheSameTokensOverRanksAndPrecisions) {
  write("llama-tiny");
  std::vector<distributed::ParallelConfig> layouts(test::has_accelerators_for(2) ? 3 : 1);
  if (layouts.size() > 1) layouts[1].tensor.size = 2, layouts[2].pipeline.size = 2;
  for (const distributed::ParallelConfig& layout : layouts)
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
      if (layout.ranks() > 1 && dtype == at::kFloat) continue;
      Asked asked{folder / "run", {}, layout, dtype};
      asked.sampling = {};
      const std::string what = concat("tensor ", layout.tensor.size, ", pipeline ", layout.pipeline.size);
      const Continued want = generated(asked);
      asked.memory = budgets(4096, 24 << 10, true);
      asked.memory.device = test::min_budget_in(refusal(asked), "is too small for the weights of a rank");
      const Continued got = generated(asked);
      EXPECT_EQ(got.tokens, want.tokens) << what;
      EXPECT_GT(got.counts.bytes_read, 0) << what;
      asked.memory.device -= 4096;
      EXPECT_THAT(refusal(asked), testing::HasSubstr("the smallest that works is")) << what;
    }
}

TEST_F(StreamedGenerationOnAccelerator, RefusesABudgetBeforeItReadsAWeight) {
  write("llama-tiny");
  const int64_t all = with({}).all;
  // The file is damaged, so reading a weight would give another error.
  const std::string file = folder / "run/checkpoints/step-000001/rank-00000.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 4);
  EXPECT_THAT(refusal({folder / "run", budgets(4096, 0, true)}), testing::HasSubstr("device = \"4KiB\" is too small"));
  EXPECT_THAT(refusal({folder / "run", budgets(0, 8192, true)}),
              testing::AllOf(testing::HasSubstr("host = \"8KiB\" is too small"),
                             testing::HasSubstr("the smallest that works is \"12KiB\"")));
  EXPECT_THAT(refusal({folder / "run", budgets(all / 2, 1 << 16, false)}),
              testing::HasSubstr(
                  "weights that the device has no room for must fit, or memory.disk must name a folder for the rest"));
  EXPECT_THAT(refusal({folder / "run", budgets(0, 1 << 16, false)}), testing::HasSubstr("all weights must fit"));
}

}  // namespace
}  // namespace colossal::infer::streamed_generation_accelerator_test
