// Kohya's adapters of layers with the names of makers' files, of which several modules may have rows: they change the
// weights as the makers' file with the same change.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "colossal/checkpoint/ldm/module_names.h"
#include "colossal/checkpoint/ldm/weights.h"
#include "colossal/checkpoint/peft/pipeline_file.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "colossal/run/pipeline_adapters.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::makers_adapters_test {
namespace {

using checkpoint::LdmPlace;
using testing::HasSubstr;
using Tensors = std::map<std::string, at::Tensor>;

constexpr int64_t kRank = 2;

models::ModelShape shape_of(const std::string& preset) { return models::built_in().resolve({.name = preset}); }

std::string kohya(std::string module) {
  std::replace(module.begin(), module.end(), '.', '_');
  return "lora_unet_" + module;
}

std::map<std::string, std::vector<LdmPlace>> makers_modules(const AdapterModules& modules) {
  std::vector<std::string> names;
  for (const LinearModule& module : modules.linear()) names.push_back(module.name);
  return checkpoint::ldm_modules(names);
}

const LinearModule& module_of(const AdapterModules& modules, const std::string& name) {
  for (const LinearModule& module : modules.linear())
    if (module.name == name) return module;
  throw std::out_of_range(name);
}

at::Tensor random(const std::vector<int64_t>& sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kFloat));
}

/// A file of adapters of all layers, and the change that they make in a makers' file.
struct Files {
  Tensors adapters, change;
};

Files files_of(const AdapterModules& modules) {
  Files files;
  uint64_t seed = 0;
  for (const auto& [name, places] : makers_modules(modules)) {
    const LinearModule& module = module_of(modules, places.front().name);
    const checkpoint::LdmRows& rows = places.front().rows;
    std::vector<int64_t> of_b{module.part.count / rows.count * rows.of, kRank};
    if (module.is_convolution()) of_b.insert(of_b.end(), {1, 1});
    const at::Tensor a = random(module.shape_of_a(kRank), ++seed), b = random(of_b, ++seed);
    files.adapters[kohya(name) + ".lora_down.weight"] = a;
    files.adapters[kohya(name) + ".lora_up.weight"] = b;
    files.adapters[kohya(name) + ".alpha"] = at::scalar_tensor(1., at::kFloat);
    std::vector<int64_t> sizes = module.shape_of_a(of_b[0]);
    files.change["model.diffusion_model." + name + ".weight"] =
        at::matmul(b.flatten(1), a.flatten(1)).view(sizes).contiguous() / kRank;
  }
  return files;
}

class MakersAdapters : public testing::TestWithParam<const char*> {};

TEST_P(MakersAdapters, ChangeWeightsAsTheMakersFileWould) {
  const models::ModelShape shape = shape_of(GetParam());
  const AdapterModules modules(shape);
  const Files files = files_of(modules);
  const test::TemporaryFolder folder;
  checkpoint::write_safetensors(folder / "lora.safetensors", files.adapters);
  checkpoint::write_safetensors(folder / "model.safetensors", files.change);
  const checkpoint::LdmWeights change(folder / "model.safetensors", shape.architecture->diffusers.part);
  const auto adapters = adapters_of_part(checkpoint::read_pipeline_file(folder / "lora.safetensors"), modules, shape);
  std::set<size_t> found;
  for (const FolderAdapter& one : adapters) {
    EXPECT_TRUE(found.insert(one.module).second);
    const LinearModule& module = modules.linear()[one.module];
    const at::Tensor got = at::matmul(one.layer.b, one.layer.a.flatten(1)) * (one.alpha / kRank);
    EXPECT_TRUE(at::allclose(got, change.tensor(module.name + ".weight").flatten(1), 1e-5, 1e-5)) << module.name;
  }
  for (size_t i = 0; i < modules.linear().size(); ++i)
    EXPECT_TRUE(found.contains(i)) << modules.linear()[i].name << " has no name in a makers' file";
}

INSTANTIATE_TEST_SUITE_P(Presets, MakersAdapters, testing::Values("flux-tiny", "sd3-tiny", "sdxl-tiny", "sd-1.5-tiny"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase_if(name, [](char c) { return c == '-' || c == '.'; });
                           return name;
                         });

TEST(FusedAdapters, ShareTheirFirstMatrix) {
  const models::ModelShape shape = shape_of("flux-tiny");
  const AdapterModules modules(shape);
  const int64_t hidden = shape.hidden;
  const checkpoint::PeftLayer layer{.a = at::ones({1, hidden}), .b = at::arange(7 * hidden).unsqueeze(1), .rank = 1};
  const auto adapters = [&](const std::string& name, const checkpoint::PeftLayer& one) {
    return adapters_of_part(checkpoint::PeftFolder::of_pipeline({.rank = 1, .alpha = 1}, {{name, one}}), modules,
                            shape);
  };
  const auto found = adapters("lora_unet_single_blocks_0_linear1", layer);
  ASSERT_EQ(found.size(), 4u) << "q, k, v and the feed-forward layer";
  for (const FolderAdapter& one : found) {
    EXPECT_TRUE(one.layer.a.is_alias_of(layer.a));
    const std::string& name = modules.linear()[one.module].name;
    const at::Tensor k = layer.b.narrow(0, hidden, hidden), up = layer.b.narrow(0, 3 * hidden, 4 * hidden);
    EXPECT_TRUE(!name.ends_with("attn.to_k") || at::equal(one.layer.b, k));
    EXPECT_TRUE(!name.ends_with("proj_mlp") || at::equal(one.layer.b, up));
  }
  checkpoint::PeftLayer odd = layer;
  odd.b = at::ones({7 * hidden + 1, 1});
  EXPECT_THAT(test::thrown_message([&] { adapters("lora_unet_single_blocks_0_linear1", odd); }),
              HasSubstr("must have outputs of 7 equal parts"));
  EXPECT_THAT(test::thrown_message([&] { adapters("lora_unet_double_blocks_9_img_attn_qkv", layer); }),
              HasSubstr("got lora_unet_double_blocks_9_img_attn_qkv without one"));
  EXPECT_THAT(test::thrown_message([&] { adapters("lora_unet_double_blocks_0_img_mlp_0", layer); }),
              HasSubstr("it belongs to another base"));
}

}  // namespace
}  // namespace colossal::run::makers_adapters_test
