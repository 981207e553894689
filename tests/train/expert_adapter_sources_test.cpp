// Runs with adapters of experts, and folders of peft with them: put beside a model, merged into it, and trained
// further.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "colossal/base/file.h"
#include "colossal/base/json_file.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/nn/low_rank.h"
#include "support/thrown_message.h"
#include "train/adapter_folders.h"

namespace colossal::train::expert_adapter_sources_test {
namespace {

using testing::HasSubstr;
using Values = std::map<std::string, at::Tensor>;

constexpr int64_t kExperts = 4, kHidden = 32, kRank = 3;

class ExpertAdapterSources : public AdapterFolders {
 protected:
  void SetUp() override {
    AdapterFolders::SetUp();
    make_base("llama-tiny", [](run::Config& c) { c.model.own = models::own_keys({"experts.count=4"}); });
    ffn = loaded(folder, {}).at("blocks.0.mlp.experts.down.weight").size(2);
  }
  run::Config adapted() const {
    return AdapterFolders::adapted(
        "adapted", folder,
        {"kind=lora", "rank=3", "alpha=20", "targets=[\"q_proj\", \"experts\"]", "ranks=[\"experts.down_proj=2\"]"});
  }

  int64_t ffn = 0;
};

TEST_F(ExpertAdapterSources, ComputeAlikeApartMergedInAFolderAndInEveryLayout) {
  const run::Config c = adapted();
  train(c, Start::New);
  const std::string& run = c.run.folder;
  const double plain = loss(folder, {.dtype = at::kDouble}), apart = loss(run, {.merges_adapters = false}),
               merged = loss(run, {});
  EXPECT_GT(std::abs(apart - plain), 1e-3) << "the adapters change something";
  EXPECT_NEAR(merged, apart, 1e-10);
  EXPECT_EQ(greedy(run, {}), greedy(run, {.merges_adapters = false}));
  const Values values = loaded(run, {});
  for (const auto& [name, value] : values) EXPECT_FALSE(nn::is_low_rank(name)) << name;
  EXPECT_EQ(log_of(c).find("have no adapters"), std::string::npos);

  const std::string out = base + "/peft";
  export_adapters(run, out);
  EXPECT_NEAR(loss(folder, with(out)), merged, 1e-10);
  EXPECT_NEAR(loss(folder, with(out, false)), merged, 1e-10);
  const nlohmann::json written = read_json_object(out + "/adapter_config.json", "test");
  EXPECT_EQ(written.at("target_parameters"), (nlohmann::json{"experts.down_proj", "experts.gate_up_proj"}));
  EXPECT_EQ(written.at("target_modules"), nlohmann::json{"q_proj"});
  const checkpoint::SafetensorsReader reader(out + "/adapter_model.safetensors");
  const std::string experts = "base_model.model.model.layers.0.mlp.experts";
  EXPECT_EQ(reader.tensor(experts + ".base_layer.lora_A.weight").sizes(), (at::IntArrayRef{kRank * kExperts, kHidden}));
  EXPECT_EQ(reader.tensor(experts + ".base_layer.lora_B.weight").sizes(), (at::IntArrayRef{2 * ffn, kRank * kExperts}));
  EXPECT_EQ(reader.tensor(experts + ".lora_A.weight").sizes(), (at::IntArrayRef{2 * kExperts, ffn}));

  std::vector<distributed::ParallelConfig> layouts(4);
  layouts[0].tensor.size = 2;
  layouts[1].expert.size = 2;
  layouts[1].pipeline.size = 2;
  layouts[2].tensor = {.size = 4, .mode = "2d"};
  layouts[3].tensor.size = layouts[3].expert.size = 2;
  layouts[3].expert.tensor = "split";
  for (const distributed::ParallelConfig& layout : layouts)
    for (const bool merges : {true, false}) {
      EXPECT_NEAR(loss(run, {.merges_adapters = merges}, layout), merged, 1e-10);
      EXPECT_NEAR(loss(folder, with(out, merges), layout), merged, 1e-10);
    }
  EXPECT_EQ(loss(run, {.memory = {.host = 440 << 10, .disk = base + "/disk"}}), merged) << "streamed from a disk";
  // Experts of a folder in fp32 are packed one by one as they are read, but not those that change.
  const std::string narrow = base + "/hf32";
  Values weights;
  const checkpoint::SafetensorsReader of_base(folder + "/model.safetensors");
  for (const auto& [name, entry] : of_base.entries()) weights[name] = of_base.tensor(name).to(at::kFloat);
  std::filesystem::create_directory(narrow);
  std::filesystem::copy(folder + "/config.json", narrow + "/config.json");
  checkpoint::write_safetensors(narrow + "/model.safetensors", weights);
  for (const bool packs_later : {false, true}) {
    run::Loading packed = with(out);
    packed.dtype = at::kFloat;  // the dtype whose weights are packed
    packed.packing = nn::WeightPacking{};
    packed.packs_later = packs_later;
    EXPECT_NEAR(loss(narrow, packed), merged, 1e-4) << packs_later;
  }
  const run::Loading coded{.dtype = at::kFloat, .packing = nn::WeightPacking{.bits = 8, .group = 8}};
  EXPECT_TRUE(loaded(run, coded).contains("blocks.0.mlp.experts.down.adapter_b"));
  EXPECT_NEAR(loss(run, coded), merged, 0.05);

  // Training further changes nothing before its first update, and writes the same files.
  for (const std::string& from : {out, run}) {
    run::Config again = further("again", from);
    again.parallel.expert.size = 2;
    again.parallel.zero = 1;
    train(again, Start::Overwrite);
    const std::string second = base + "/second";
    export_adapters(again.run.folder, second);
    const checkpoint::SafetensorsReader got(second + "/adapter_model.safetensors");
    ASSERT_EQ(got.entries().size(), reader.entries().size());
    for (const auto& [name, entry] : reader.entries()) EXPECT_TRUE(at::equal(got.tensor(name), reader.tensor(name)));
    EXPECT_EQ(read_json_object(second + "/adapter_config.json", "test"), written);
    std::filesystem::remove_all(again.run.folder);
  }

  run::Config more = c;
  more.training.steps = 6;
  more.parallel.expert.size = 2;
  more.parallel.tensor.size = 2;
  train(more, Start::Resume);
  EXPECT_GT(std::abs(loss(run, {}) - merged), 1e-4) << "it trained on";
}

/// A folder of transformers 4, with adapters of the matrices of each expert of layer 1.
void write_experts_apart(const std::string& to, int64_t ffn,
                         const std::function<void(Values&, nlohmann::json&)>& change) {
  create_folder(to);
  Values tensors;
  for (int64_t expert = 0; expert < kExperts; ++expert)
    for (const std::string matrix : {"w1", "w2", "w3"}) {
      const int64_t in = matrix == "w2" ? ffn : kHidden, out = matrix == "w2" ? kHidden : ffn;
      const std::string name = concat("base_model.model.model.layers.1.block_sparse_moe.experts.", expert, ".", matrix);
      const auto wave = [&](int64_t rows, int64_t columns) {
        return at::sin(at::arange(rows * columns, at::kDouble) + static_cast<double>(tensors.size()))
            .mul(0.1)
            .view({rows, columns});
      };
      tensors[name + ".lora_A.weight"] = wave(2, in);
      tensors[name + ".lora_B.weight"] = wave(out, 2);
    }
  nlohmann::json config{{"peft_type", "LORA"},
                        {"r", 2},
                        {"lora_alpha", 3},
                        {"lora_dropout", 0.1},
                        {"target_modules", {"w1", "w2", "w3"}},
                        {"alpha_pattern", {{"w3", 5}}}};
  change(tensors, config);
  checkpoint::write_safetensors(to + "/adapter_model.safetensors", tensors);
  write_file(to + "/adapter_config.json", config.dump());
}

TEST_F(ExpertAdapterSources, ReadFoldersWithAnAdapterForEachExpert) {
  const std::string peft = base + "/peft";
  Values tensors;
  write_experts_apart(peft, ffn, [&](Values& all, nlohmann::json&) { tensors = all; });
  const Values plain = loaded(folder, {.dtype = at::kDouble}), merged = loaded(folder, with(peft));
  const auto change = [&](int64_t expert, const std::string& matrix, double scale) {
    const std::string name = concat("base_model.model.model.layers.1.block_sparse_moe.experts.", expert, ".", matrix);
    return scale * tensors.at(name + ".lora_B.weight").mm(tensors.at(name + ".lora_A.weight"));
  };
  const std::string stack = "blocks.1.mlp.experts.";
  for (int64_t expert = 0; expert < kExperts; ++expert) {
    const at::Tensor up = at::cat({change(expert, "w1", 1.5), change(expert, "w3", 2.5)}),
                     down = change(expert, "w2", 1.5);
    EXPECT_TRUE(at::allclose(merged.at(stack + "gate_up.weight")[expert],
                             plain.at(stack + "gate_up.weight")[expert] + up, 0, 1e-14));
    EXPECT_TRUE(at::allclose(merged.at(stack + "down.weight")[expert], plain.at(stack + "down.weight")[expert] + down,
                             0, 1e-14));
  }
  EXPECT_TRUE(at::equal(merged.at("blocks.0.mlp.experts.down.weight"), plain.at("blocks.0.mlp.experts.down.weight")));

  const double want = loss(folder, with(peft));
  EXPECT_NEAR(loss(folder, with(peft, false)), want, 1e-10);
  // Trained further, they are written as stacks: gate and up have one adapter of twice the rank.
  const run::Config again = further("again", peft);
  train(again, Start::New);
  EXPECT_NEAR(loss(again.run.folder, {}), want, 1e-10);
  const std::string second = base + "/second";
  export_adapters(again.run.folder, second);
  EXPECT_NEAR(loss(folder, with(second)), want, 1e-10);
  const checkpoint::SafetensorsReader reader(second + "/adapter_model.safetensors");
  EXPECT_EQ(reader.tensor("base_model.model.model.layers.1.mlp.experts.base_layer.lora_A.weight").size(0),
            4 * kExperts);
}

TEST_F(ExpertAdapterSources, RefuseFoldersThatDoNotFit) {
  const std::string peft = base + "/peft", name = "base_model.model.model.layers.1.block_sparse_moe.experts.2.w1";
  const auto message = [&](const std::function<void(Values&, nlohmann::json&)>& change) {
    std::filesystem::remove_all(peft);
    write_experts_apart(peft, ffn, change);
    return test::thrown_message([&] { loaded(folder, with(peft)); });
  };
  EXPECT_THAT(message([&](Values& tensors, nlohmann::json&) {
                tensors.erase(name + ".lora_A.weight");
                tensors.erase(name + ".lora_B.weight");
              }),
              HasSubstr("adapters must be of all experts of a layer, or of none: got those of 3 of 4"));
  EXPECT_THAT(message([&](Values& tensors, nlohmann::json& config) {
                tensors[name + ".lora_A.weight"] = at::ones({1, kHidden}, at::kDouble);
                tensors[name + ".lora_B.weight"] = at::ones({ffn, 1}, at::kDouble);
                config["rank_pattern"] = {{"experts\\.2\\.w1", 1}};
              }),
              HasSubstr("must have one rank: got 2 for model.layers.1.block_sparse_moe.experts.0.w1 and 1 for"));
  EXPECT_THAT(message([&](Values& tensors, nlohmann::json&) {
                tensors["base_model.model.model.layers.1.block_sparse_moe.gate.lora_A.weight"] =
                    at::ones({2, kHidden}, at::kDouble);
                tensors["base_model.model.model.layers.1.block_sparse_moe.gate.lora_B.weight"] =
                    at::ones({kExperts, 2}, at::kDouble);
              }),
              HasSubstr("must be of linear layers of the model: got model.layers.1.block_sparse_moe.gate"));
}

}  // namespace
}  // namespace colossal::train::expert_adapter_sources_test
