// Adapters as folders of peft and as runs: put onto a model, merged into it, and trained further.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <set>

#include "colossal/base/file.h"
#include "colossal/base/json_file.h"
#include "colossal/checkpoint/peft/folder.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/nn/low_rank.h"
#include "support/thrown_message.h"
#include "train/adapter_folders.h"

namespace colossal::train::adapter_sources_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Values = std::map<std::string, at::Tensor>;

const std::vector<std::string> kDora{"kind=dora", "rank=3", "alpha=5"};

class AdapterSources : public AdapterFolders {
 protected:
  /// `norm_error`: bound of the relative difference of DoRA's m. Ranks sum the squares of rows in another order.
  static void expect_equal_tensors(const std::string& got, const std::string& want, double norm_error = 0) {
    const checkpoint::SafetensorsReader first(got + "/adapter_model.safetensors"),
        second(want + "/adapter_model.safetensors");
    ASSERT_EQ(first.entries().size(), second.entries().size());
    for (const auto& [name, entry] : second.entries())
      EXPECT_TRUE(at::allclose(first.tensor(name), second.tensor(name),
                               name.ends_with("lora_magnitude_vector") ? norm_error : 0, 0))
          << name;
  }
};

TEST_F(AdapterSources, ComputeAlikeApartMergedAndInAFolder) {
  const std::vector<std::string> of_gpt2{"kind=lora", "rank=3", "alpha=5"};
  std::vector<std::string> of_llama = kDora;
  for (const char* key : {"scale=root", "targets=[\"q_proj\", \"v_proj\", \"down_proj\"]", "ranks=[\"v_proj=2\"]"})
    of_llama.push_back(key);
  for (const auto& [model, keys] : {std::pair("gpt2-tiny", of_gpt2), std::pair("llama-tiny", of_llama)}) {
    SCOPED_TRACE(model);
    const bool is_lora = keys == of_gpt2;
    make_base(model);
    const run::Config c = adapted("adapted", folder, keys);
    train(c, Start::New);
    const std::string& run = c.run.folder;
    const double plain = loss(folder, {.dtype = at::kDouble}), apart = loss(run, {.merges_adapters = false}),
                 merged = loss(run, {});
    EXPECT_GT(std::abs(apart - plain), 1e-3) << "the adapters change something";
    EXPECT_NEAR(merged, apart, 1e-10);
    EXPECT_EQ(greedy(run, {}), greedy(run, {.merges_adapters = false}));
    const Values values = loaded(run, {});
    for (const auto& [name, value] : values) EXPECT_FALSE(nn::is_low_rank(name)) << name;

    const std::string out = base + "/" + model + "-peft";
    export_adapters(run, out);
    EXPECT_NEAR(loss(folder, with(out)), merged, 1e-10);
    EXPECT_EQ(loss(folder, with(run)), merged);
    EXPECT_NEAR(loss(folder, with(out, false)), merged, 1e-10);
    run::Loading off = with(out);
    off.adapter->scale = 0;
    if (is_lora) EXPECT_NEAR(loss(folder, off), plain, 1e-12);

    // Training further changes nothing before its first update, and writes the same tensors.
    const run::Config again = further("again", is_lora ? out : run);
    train(again, Start::Overwrite);
    const std::string second = base + "/second";
    export_adapters(again.run.folder, second);
    expect_equal_tensors(second, out);
    EXPECT_EQ(read_json_object(second + "/adapter_config.json", "test"),
              read_json_object(out + "/adapter_config.json", "test"));
    std::filesystem::remove_all(base + "/base");
    std::filesystem::remove_all(run);
    std::filesystem::remove_all(folder);
  }
}

/// Layouts whose matrices are cut in different ways.
std::vector<distributed::ParallelConfig> layouts() {
  std::vector<distributed::ParallelConfig> all;
  const auto add = [&](const parallel::TensorConfig& tensor, int64_t pipeline) {
    distributed::ParallelConfig one;
    one.tensor = tensor;
    one.pipeline.size = pipeline;
    all.push_back(one);
  };
  add({.size = 2}, 1);
  add({.size = 2}, 2);
  add({.size = 4, .mode = "2d"}, 1);
  add({.size = 8, .mode = "3d"}, 1);
  return all;
}

// Ranks merge their own blocks, and sum the norms of DoRA.
TEST_F(AdapterSources, ComputeAlikeInEveryLayout) {
  make_base("llama-tiny");
  const run::Config c = adapted("adapted", folder, kDora);
  train(c, Start::New);
  const std::string out = base + "/peft";
  export_adapters(c.run.folder, out);
  const double want = loss(c.run.folder, {.merges_adapters = false});
  for (const distributed::ParallelConfig& layout : layouts())
    for (const bool merges : {true, false}) {
      EXPECT_NEAR(loss(c.run.folder, {.merges_adapters = merges}, layout), want, 1e-10) << merges;
      EXPECT_NEAR(loss(folder, with(out, merges), layout), want, 1e-10) << merges;
    }
  // Weights that are kept as codes are not changed: the adapters stay beside them.
  const run::Loading coded{.dtype = at::kFloat, .packing = nn::WeightPacking{.bits = 8, .group = 8}};
  EXPECT_TRUE(loaded(c.run.folder, coded).contains("blocks.0.mlp.down.adapter_b"));
  EXPECT_NEAR(loss(c.run.folder, coded), want, 0.05);
  run::Loading coded_folder = coded;
  coded_folder.adapter = run::AdapterChoice{.folder = out};
  EXPECT_THAT(test::thrown_message([&] { loaded(folder, coded_folder); }),
              AllOf(HasSubstr("magnitudes of DoRA must be put onto weights that are numbers"),
                    HasSubstr("colossal export --from " + folder)));
  const run::Loading packed{.packing = nn::WeightPacking{}, .packs_later = true};
  EXPECT_NEAR(loss(c.run.folder, packed), want, 1e-10);
  EXPECT_EQ(loss(c.run.folder, {.memory = {.host = 192 << 10, .disk = base + "/disk"}}), loss(c.run.folder, {}));
}

TEST_F(AdapterSources, TrainFurtherInEveryLayout) {
  make_base("llama-tiny");
  const run::Config c = adapted("adapted", folder, kDora);
  train(c, Start::New);
  const std::string out = base + "/peft", second = base + "/second";
  export_adapters(c.run.folder, out);
  run::Config again = further("again", out);
  again.parallel.data = 2;
  again.parallel.zero = 3;
  again.parallel.tensor.size = 2;
  train(again, Start::New);
  export_adapters(again.run.folder, second);
  // a sum of 32 squares rounds 32 times, half of that is in its root, and both are rounded once
  expect_equal_tensors(second, out, 18 * 0x1p-53);

  // The run has all that it needs of the folder.
  std::filesystem::remove_all(out);
  EXPECT_NEAR(loss(again.run.folder, {}), loss(c.run.folder, {}), 1e-10);
  again.training.steps = 5;
  train(again, Start::Resume);
  EXPECT_NEAR(loss(again.run.folder, {}), loss(c.run.folder, {}), 1e-10);
}

TEST_F(AdapterSources, GiveRunsThatStartFromThemMergedWeights) {
  make_base("llama-tiny");
  const run::Config c = adapted("adapted", folder, kDora);
  train(c, Start::New);
  const Values merged = loaded(c.run.folder, {});
  run::Config next = make("next", 2, 2);
  next.model = {.from = c.run.folder};
  next.data.tokenizer = "bytes";
  next.precision.mode = "fp64";
  next.parallel.zero = 3;
  next.optimizer.learning_rate = 0;
  next.optimizer.warmup_steps = 0;
  next.training.steps = 1;
  next.training.evaluate_batches = 0;
  train(next, Start::New);
  const Values got = loaded(next.run.folder, {});
  ASSERT_EQ(got.size(), merged.size());
  for (const auto& [name, value] : merged) EXPECT_LE((got.at(name) - value).abs().max().item<double>(), 1e-14) << name;

  // New adapters on top of them are others, although they have the same names.
  run::Config stacked = adapted("stacked", c.run.folder, kDora);
  stacked.optimizer.learning_rate = 0;
  train(stacked, Start::New);
  EXPECT_NEAR(loss(stacked.run.folder, {}), loss(c.run.folder, {}), 1e-10);
  EXPECT_NEAR(loss(stacked.run.folder, {.merges_adapters = false}), loss(c.run.folder, {}), 1e-10);
}

TEST_F(AdapterSources, NeedTheBaseOnWhichTheyWereTrained) {
  make_base("gpt2-tiny");
  const run::Config c = adapted("adapted", folder, {"kind=lora", "rank=3", "alpha=5", "targets=[\"c_attn\"]"});
  train(c, Start::New);
  const double want = loss(c.run.folder, {});
  const std::string moved = base + "/moved";
  std::filesystem::rename(folder, moved);
  const auto message = [&](const run::Loading& loading, const std::string& from) {
    return test::thrown_message([&] { loaded(from, loading); });
  };
  EXPECT_THAT(message({}, c.run.folder), HasSubstr("name its new place with --base"));
  EXPECT_EQ(loss(c.run.folder, {.base = moved}), want);
  EXPECT_THAT(message({.base = moved}, moved), HasSubstr("--base must be for a run with adapters"));

  Values weights;
  const checkpoint::SafetensorsReader reader(moved + "/model.safetensors");
  for (const auto& [name, entry] : reader.entries()) weights[name] = reader.tensor(name) * 1.5;
  std::filesystem::create_directory(folder);
  std::filesystem::copy(moved + "/config.json", folder + "/config.json");
  checkpoint::write_safetensors(folder + "/model.safetensors", weights);
  const std::string other = "must be put onto the base on which they were trained: got other weights in " + folder;
  EXPECT_THAT(message({}, c.run.folder), HasSubstr(other));
  EXPECT_THAT(message({.adapter = run::AdapterChoice{.folder = c.run.folder}}, folder), HasSubstr(other));
  run::Config resumed = c;
  resumed.training.steps = 6;
  EXPECT_THAT(test::thrown_message([&] { train(resumed, Start::Resume); }),
              HasSubstr("model.from must have the weights on which the adapters of the checkpoint were trained"));
  EXPECT_THAT(test::thrown_message([&] { train(further("again", c.run.folder), Start::New); }),
              HasSubstr("must be trained further on the base on which they were trained"));
  EXPECT_THAT(message({.adapter = run::AdapterChoice{.folder = c.run.folder}}, c.run.folder),
              AllOf(HasSubstr("--adapter must be for a model without adapters"), HasSubstr("colossal export --from")));
}

/// Writes a folder of peft for the tied model of make_base() by hand.
void write_by_hand(const std::string& to, const std::string& module, const Values& tensors,
                   const std::function<void(nlohmann::json&)>& change = {}) {
  create_folder(to);
  Values all = tensors;
  const std::string name = "base_model.model.transformer.h.1." + module;
  all[name + ".lora_A.weight"] = at::sin(at::arange(64, at::kDouble)).view({2, 32});
  all[name + ".lora_B.weight"] = at::cos(at::arange(192, at::kDouble)).view({96, 2});
  checkpoint::write_safetensors(to + "/adapter_model.safetensors", all);
  nlohmann::json config{{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 1}, {"target_modules", {"c_attn"}}};
  if (change) change(config);
  write_file(to + "/adapter_config.json", config.dump());
}

TEST_F(AdapterSources, AddFoldersToTheWeightsOfLayers) {
  make_base("gpt2-tiny");
  const Values plain = loaded(folder, {.dtype = at::kDouble});
  write_by_hand(base + "/peft", "attn.c_attn", {});
  run::Loading loading = with(base + "/peft");
  loading.adapter->scale = 3;
  const at::Tensor a = at::sin(at::arange(64, at::kDouble)).view({2, 32}),
                   b = at::cos(at::arange(192, at::kDouble)).view({96, 2});
  for (const auto& [name, value] : loaded(folder, loading)) {
    const bool is_adapted = name == "blocks.1.attention.qkv.weight";
    const at::Tensor want = is_adapted ? plain.at(name) + 3 * 0.5 * b.mm(a) : plain.at(name);
    EXPECT_TRUE(at::allclose(value, want, 0, is_adapted ? 1e-14 : 0)) << name;
  }
}

// peft unties a head of which it trains one part; transformers#45127 is the export that ties it again.
TEST_F(AdapterSources, UntieTheHeadThatTheyTrain) {
  make_base("gpt2-tiny");
  const Values plain = loaded(folder, {.dtype = at::kDouble});
  const at::Tensor trained = plain.at("embedding.weight") * 2;
  for (const std::string module : {"lm_head", "wte"}) {
    const bool is_head = module == "lm_head";
    write_by_hand(base + "/peft", "attn.c_attn",
                  {{is_head ? "base_model.model.lm_head.weight" : "base_model.model.transformer.wte.weight", trained}},
                  [&](nlohmann::json& config) { config["modules_to_save"] = {module}; });
    const Values got = loaded(folder, with(base + "/peft"));
    EXPECT_TRUE(at::equal(got.at("head.weight"), is_head ? trained : plain.at("embedding.weight")));
    EXPECT_TRUE(at::equal(got.at("embedding.weight"), is_head ? plain.at("embedding.weight") : trained));
  }
  write_by_hand(base + "/peft", "attn.c_attn", {{"base_model.model.transformer.wte.weight", trained}},
                [](nlohmann::json& config) {
                  config["modules_to_save"] = {"wte"};
                  config["ensure_weight_tying"] = true;
                });
  const Values tied = loaded(folder, with(base + "/peft"));
  EXPECT_TRUE(at::equal(tied.at("embedding.weight"), trained));
  EXPECT_FALSE(tied.contains("head.weight"));
}

TEST_F(AdapterSources, RefuseFoldersOfOtherModels) {
  make_base("gpt2-tiny");
  const std::string out = base + "/peft";
  const auto message = [&](const std::string& module, const Values& tensors = {},
                           const std::function<void(nlohmann::json&)>& change = {}) {
    write_by_hand(out, module, tensors, change);
    return test::thrown_message([&] { loaded(folder, {.adapter = run::AdapterChoice{.folder = out}}); });
  };
  EXPECT_THAT(message("attn.c_attn"), "");
  EXPECT_THAT(message("attn.c_atn", {}, [](auto& config) { config.erase("target_modules"); }),
              AllOf(HasSubstr("must be of linear layers of the model"), HasSubstr("c_attn`?")));
  EXPECT_THAT(message("mlp.c_fc", {}, [](auto& config) { config.erase("target_modules"); }),
              HasSubstr("must be for a layer [128, 32]: got one for [96, 32]"));
  const auto saves = [](nlohmann::json& config) { config["modules_to_save"] = {"ln_f"}; };
  EXPECT_THAT(message("attn.c_attn", {{"base_model.model.transformer.ln_f.weight", at::ones({32})}}, saves),
              HasSubstr("must have all tensors of norm.bias"));
  EXPECT_THAT(message("attn.c_attn", {{"base_model.model.transformer.ln_f.weight", at::ones({3})}}, saves),
              HasSubstr("must have all tensors of norm."));
  EXPECT_THAT(test::thrown_message([&] { loaded(folder, {.adapter = run::AdapterChoice{.folder = base + "/none"}}); }),
              HasSubstr("adapters must be in a folder: there is none at"));
  EXPECT_THAT(test::thrown_message([&] { loaded(folder, {.adapter = run::AdapterChoice{.folder = folder}}); }),
              HasSubstr("got neither a folder of peft"));
}

TEST_F(AdapterSources, RefuseKeysThatDisagree) {
  make_base("gpt2-tiny");
  write_by_hand(base + "/peft", "attn.c_attn", {});
  for (const std::string flag : {"kind=dora", "rank=4", "alpha=2", "scale=root", "targets=[\"c_fc\"]",
                                 "trained=[\"wte\"]", "ranks=[\"c_attn=1\"]"}) {
    run::Config c = further("again", base + "/peft");
    c.tables.set("--adapter." + flag);
    EXPECT_THAT(test::thrown_message([&] { train(c, Start::Overwrite); }),
                AllOf(HasSubstr("adapter." + flag.substr(0, flag.find('='))), HasSubstr("leave it out")))
        << flag;
  }
  run::Config c = further("again", base + "/peft");
  for (const std::string flag : {"kind=lora", "rank=2", "dropout=0.1", "targets=[\"h.1.attn.c_attn\"]"})
    c.tables.set("--adapter." + flag);
  train(c, Start::Overwrite);
}

}  // namespace
}  // namespace colossal::train::adapter_sources_test
