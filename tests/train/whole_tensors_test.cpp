// Whole tensors of user-defined modules in training: read one at a time, and written as a folder of weights.
#include "colossal/train/whole_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/checkpoint/hugging_face/weight_folder.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/account.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/train/module_training.h"
#include "support/temporary_folder.h"

namespace colossal::train::whole_tensors_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int64_t kWidth = 31;  // no multiple of the ranks: parameters begin and end inside of parts
constexpr int kLayers = 4;

struct Chain : torch::nn::Module {
  explicit Chain(int64_t width = kWidth) {
    const at::NoGradGuard no_grad;
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(width, width)));
      for (at::Tensor& p : layers.back()->parameters())
        p.copy_(at::arange(p.numel()).add(i).mul(0.37).sin().mul(0.2).view(p.sizes()));
    }
    layers[1]->weight.requires_grad_(false);
    calls = register_buffer("calls", at::full({}, 3, at::kLong));
    none = register_buffer("none", at::zeros({0}));
  }
  std::vector<torch::nn::Linear> layers;
  at::Tensor calls, none;
};

run::Config config_of(int64_t ranks, int64_t zero, const std::string& mode) {
  run::Config config;
  config.run.device = "cpu";
  config.parallel.data = ranks;
  config.parallel.zero = zero;
  config.parallel.chunk_mib = 0.006;  // more than a layer, which therefore continues in another chunk
  config.precision.mode = mode;
  config.training.batch_size = ranks;
  return config;
}

/// Runs body(world, config) under every ZeRO stage, in half of them with groups of two ranks, and with a disk.
template <class Body>
void for_each_residence(const Body& body) {
  const test::TemporaryFolder folder;
  for (const int ranks : {1, 2, 4})
    for (const int64_t zero : {0, 1, 3, 4})
      comm::run_ranks(ranks, [&](comm::World& world) {
        run::Config config = config_of(ranks, std::min<int64_t>(zero, 3), zero % 2 == 0 ? "fp32" : "bf16");
        if (ranks == 4 && zero > 0) config.parallel.zero_group = 2;
        if (zero == 4) config.memory.host = 1 << 20, config.memory.disk = folder.path();
        body(world, config);
      });
}

TEST(WholeTensors, ReturnsExactParametersAndBuffersOnAllRanks) {
  const Chain alone;
  for_each_residence([&](comm::World& world, const run::Config& config) {
    Chain module;
    if (world.rank() > 0) module.calls.fill_(7);
    const auto training = initialize(world, module, config);
    if (world.rank() > 0) module.calls.fill_(8);
    WholeTensors tensors = training->named_tensors();
    std::map<std::string, at::Tensor> got;
    while (const auto tensor = tensors.next()) got[tensor->name] = tensor->value;
    ASSERT_EQ(got.size(), 2 * kLayers + 2);
    for (const auto& p : alone.named_parameters()) {
      const bool is_exact = p.value().requires_grad();  // frozen parameters have the compute dtype
      EXPECT_EQ(got.at(p.key()).scalar_type(), is_exact ? at::kFloat : training->dtype());
      EXPECT_TRUE(at::equal(got.at(p.key()), is_exact ? p.value() : p.value().to(training->dtype()))) << p.key();
    }
    EXPECT_EQ(got.at("calls").item<int64_t>(), 3);
    EXPECT_EQ(got.at("none").numel(), 0);
    EXPECT_TRUE(at::equal(tensors.read("layer3.bias"), alone.layers[3]->bias)) << "read again";
    EXPECT_THAT([&] { tensors.read("layer9"); }, ThrowsMessage<Error>(HasSubstr("got layer9")));
  });
}

TEST(WholeTensors, WritesFilesOfLimitedSize) {
  const Chain alone;
  const test::TemporaryFolder folder;
  const std::string path = folder / "out";
  for_each_residence([&](comm::World& world, const run::Config& config) {
    Chain module;
    const auto training = initialize(world, module, config);
    const std::vector<std::pair<std::string, std::string>> names{
        {"head", "layer3.weight"}, {"first", "layer0.weight"}, {"calls", "calls"}, {"bias", "layer0.bias"}};
    training->save_pretrained(path, names, at::kDouble, kWidth * kWidth * 8 + 300);
    if (world.rank() > 0) return;
    const checkpoint::WeightFolder files(path);
    ASSERT_EQ(files.entries().size(), 4u);
    EXPECT_TRUE(std::filesystem::exists(path + "/model-00002-of-00002.safetensors"));
    EXPECT_TRUE(at::equal(files.tensor("head"), alone.layers[3]->weight.to(at::kDouble)));
    EXPECT_TRUE(at::equal(files.tensor("first"), alone.layers[0]->weight.to(at::kDouble)));
    EXPECT_TRUE(at::equal(files.tensor("bias"), alone.layers[0]->bias.to(at::kDouble)));
    EXPECT_EQ(files.tensor("calls").item<int64_t>(), 3) << "integers keep their dtype";
  });
}

TEST(WholeTensors, WritesAllTensorsUnderTheirOwnNamesByDefault) {
  const test::TemporaryFolder folder;
  comm::run_ranks(2, [&](comm::World& world) {
    Chain module;
    initialize(world, module, config_of(2, 3, "fp32"))->save_pretrained(folder.path());
  });
  const Chain alone;
  const checkpoint::WeightFolder files(folder.path());
  EXPECT_EQ(files.entries().size(), 2u * kLayers + 2);
  for (const auto& p : alone.named_parameters()) EXPECT_TRUE(at::equal(files.tensor(p.key()), p.value())) << p.key();
}

TEST(WholeTensors, RefusesUnknownNamesAndFoldersOnAllRanks) {
  const test::TemporaryFolder folder;
  const std::string file = folder.write("file", "not a folder");
  comm::run_ranks(2, [&](comm::World& world) {
    Chain module;
    const auto training = initialize(world, module, config_of(2, 3, "fp32"));
    EXPECT_THAT([&] { training->save_pretrained(folder.path(), {{"a", "layer7"}}); },
                ThrowsMessage<Error>(HasSubstr("got layer7")));
    EXPECT_THAT([&] { training->save_pretrained(folder.path(), {{"a", "calls"}, {"a", "none"}}); },
                ThrowsMessage<Error>(HasSubstr("got a twice")));
    EXPECT_THROW(training->save_pretrained(file + "/under"), Error);
    training->save_pretrained(folder / "out");
  });
}

// Beside its shards a rank holds one tensor, and on the way to the file a copy of it.
TEST(WholeTensors, NeverHoldsTheModuleWhole) {
  constexpr int64_t kWide = 256;
  const test::TemporaryFolder folder;
  comm::run_ranks(2, [&](comm::World& world) {
    Chain module(kWide);
    const auto training = initialize(world, module, config_of(2, 3, "fp32"));
    const memory::Account account;
    training->save_pretrained(folder.path());
    EXPECT_LE(account.usage().peak_total, 3 * kWide * kWide * 4);
  });
}

}  // namespace
}  // namespace colossal::train::whole_tensors_test
