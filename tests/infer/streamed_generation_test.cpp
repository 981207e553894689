// Text from models whose weights lie in host memory and on a disk: what one that has them all in memory says, bit for
// bit, under every policy and budget, from a run and from a Hugging Face folder; and no budget is exceeded.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <mutex>

#include "colossal/base/bytes.h"
#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/run_folder.h"
#include "colossal/checkpoint/hugging_face.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/infer/generate.h"
#include "colossal/models/registry.h"
#include "colossal/run/data.h"
#include "colossal/run/saved_model.h"
#include "support/ranks_values.h"
#include "support/temporary_folder.h"

namespace colossal::infer::streamed_generation_test {
namespace {

constexpr int64_t kNew = 5, kLayers = 5;

/// A run that ends with a checkpoint of weights that mean nothing, and its export.
void write_model(const test::TemporaryFolder& folder, const std::string& name) {
  run::Config config;
  config.model = {.name = name, .hidden = 64, .layers = kLayers, .heads = 4, .positions = 32};
  config.data.tokenizer = "bytes";
  const RunFolder run(folder / "run");
  run.create();
  write_file(run.config(), to_toml(config));
  const models::ModelShape shape = run::resolve_model(config, models::built_in()).shape;
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    distributed::DistributedModel model(mesh, {}, shape, {.seed = 5}, {});
    const at::NoGradGuard no_grad;
    checkpoint::TrainingState state;
    for (nn::Parameter& p : model.parameters()) {
      if (p.value.dim() > 1) p.value.mul_(20);  // or all tokens are almost equally likely
      state.tensors.push_back({"model." + p.name, p.value.detach(), p.spec});
    }
    checkpoint::save(run.checkpoints(), 1, state, mesh.all(), mesh.place(), 1);
    const models::HuggingFace& form = shape.architecture->hugging_face;
    checkpoint::export_weights(folder / "hf", model.parameters(), {form.names(shape), form.prefix, form.ignored},
                               form.to_json(shape), mesh.group("data"));
  });
}

struct Text {
  std::vector<int64_t> tokens;
  memory::TieredHome::Counts counts;
  int64_t stayed = 0;
};

struct Asked {
  std::string from;
  run::MemoryConfig memory{};
  distributed::ParallelConfig layout{};
  std::optional<at::ScalarType> dtype{};
};

Text generated(const Asked& asked) {
  Text text;
  comm::run_ranks(static_cast<int>(asked.layout.ranks()), [&](comm::World& world) {
    comm::Mesh mesh(world, asked.layout.axes());
    const run::SavedModel saved = run::load_model(asked.from, mesh, asked.layout, at::kCPU,
                                                  {.tokenizer = "bytes", .dtype = asked.dtype, .memory = asked.memory});
    const std::vector<int64_t> tokens =
        generate(*saved.model, saved.tokenizer->encode_prompt("To be"),
                 {.max_tokens = kNew, .sampling = {.temperature = 1, .seed = 3}, .weights = saved.weights.get()});
    if (world.rank() != 0) return;
    text.tokens = tokens;
    if (saved.weights) text.counts = saved.weights->tiers().counts(), text.stayed = saved.weights->stayed_bytes();
  });
  return text;
}

run::MemoryConfig in_tiers(int64_t host, const std::string& disk, const std::string& placement = "auto") {
  run::MemoryConfig memory;
  memory.host = host, memory.disk = disk, memory.placement = placement;
  return memory;
}

/// What a budget that is too small is refused with; `ranks` share it.
int64_t least_of(Asked asked) {
  asked.memory.host = 4096;
  const std::string message = test::thrown_message([&] { generated(asked); });
  EXPECT_THAT(message, testing::HasSubstr("host = \"4KiB\" is too small for the"));
  const size_t begin = message.find("works is \"") + 10;
  return parse_bytes(message.substr(begin, message.find('"', begin) - begin)).value_or(0);
}

class StreamedGeneration : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { write_model(folder, GetParam()); }
  test::TemporaryFolder folder;
};

TEST_P(StreamedGeneration, SaysWhatAModelInMemorySays) {
  const int64_t all = generated({folder / "hf", in_tiers(1 << 30, "")}).stayed;
  const Text want = generated({folder / "run"});
  ASSERT_EQ(want.tokens.size(), static_cast<size_t>(kNew));
  EXPECT_EQ(generated({folder / "hf"}).tokens, want.tokens);
  for (const std::string placement : {"auto", "lru", "static"}) {
    const int64_t least = least_of({folder / "run", in_tiers(0, folder / "disk", placement)});
    ASSERT_LT(least, all / 2);
    for (const auto& [from, host] :
         std::vector<std::pair<std::string, int64_t>>{{"run", least}, {"hf", all / 2}, {"hf", 2 * all}}) {
      const Text got = generated({folder / from, in_tiers(host, folder / "disk", placement)});
      const std::string what = concat(GetParam(), " ", from, ", ", placement, ", ", host);
      EXPECT_EQ(got.tokens, want.tokens) << what;
      EXPECT_LE(got.counts.peak_host_bytes + got.stayed, host) << what;
      EXPECT_EQ(got.counts.bytes_read > 0, host < all) << what;
    }
  }
}

TEST_P(StreamedGeneration, SaysTheSameOverRanksAndInEveryPrecision) {
  std::vector<distributed::ParallelConfig> layouts(3);
  layouts[1].tensor.size = 2;
  layouts[2].pipeline.size = 2;
  for (size_t i = 0; i < layouts.size(); ++i) {
    Asked asked{folder / "run", {}, layouts[i], i == 1 ? at::kFloat : at::kBFloat16};
    const Text want = generated(asked);
    asked.memory = in_tiers(0, folder / "disk");
    asked.memory.host = least_of(asked);
    const Text got = generated(asked);
    EXPECT_EQ(got.tokens, want.tokens) << i;
    EXPECT_GT(got.counts.bytes_read, 0) << i;
    asked.memory.host -= 4096;
    EXPECT_THAT(test::thrown_message([&] { generated(asked); }), testing::HasSubstr("the smallest that works is")) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, StreamedGeneration, testing::Values("gpt2-tiny", "llama-tiny"),
                         [](const auto& info) { return info.param.substr(0, info.param.find('-')); });

class StreamedLoading : public testing::Test {
 protected:
  void SetUp() override { write_model(folder, "llama-tiny"); }
  test::TemporaryFolder folder;
};

TEST_F(StreamedLoading, TakesAsLittleAsTransfersNeedWithoutABudget) {
  const int64_t least = least_of({folder / "hf", in_tiers(0, folder / "disk")});
  const Text text = generated({folder / "hf", in_tiers(0, folder / "disk")});
  EXPECT_EQ(text.tokens, generated({folder / "hf"}).tokens);
  EXPECT_GT(text.counts.bytes_read, 0);
  EXPECT_LE(text.counts.peak_host_bytes + text.stayed, 2 * least);
}

// A fixed set stays, and everything else is read once a token: no order of leaving reads less (Belady 1966).
TEST_F(StreamedLoading, ReadsWhatDoesNotStayOnceAToken) {
  const int64_t all = generated({folder / "hf", in_tiers(1 << 30, "")}).stayed;
  const Text text = generated({folder / "hf", in_tiers(all / 2, folder / "disk")});
  EXPECT_GT(text.stayed, 0);
  const int64_t travel = text.counts.host_bytes + text.counts.disk_bytes, here = text.counts.peak_host_bytes;
  // What a pass leaves in buffers need not be read by the next one; the last one reads for one that does not come.
  EXPECT_LE(text.counts.bytes_read, kNew * travel + here);
  EXPECT_GE(text.counts.bytes_read, kNew * (travel - here));
  EXPECT_LE(text.counts.bytes_written, travel) << "what is on the disk does not change";
}

TEST_F(StreamedLoading, RefusesABudgetBeforeItReadsAWeight) {
  // Whoever read a weight would say that it is damaged.
  const std::string file = folder / "run/checkpoints/step-000001/rank-00000.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 4);
  EXPECT_THAT(test::thrown_message([&] { generated({folder / "run", in_tiers(4096, folder / "disk")}); }),
              testing::HasSubstr("the smallest that works is"));
  EXPECT_THAT(test::thrown_message([&] { generated({folder / "run", in_tiers(1 << 20, "")}); }),
              testing::HasSubstr("a folder for the rest (memory.disk)"));
}

TEST_F(StreamedLoading, NamesAFileThatIsDamaged) {
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
