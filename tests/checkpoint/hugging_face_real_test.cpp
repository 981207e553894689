// Reads a published folder and writes it back. The folder is outside of the repository.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/sample_state.h"
#include "colossal/base/error.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/safetensors.h"
#include "support/paths.h"
#include "support/temporary_folder.h"

namespace colossal::checkpoint::hugging_face_real_test {
namespace {

namespace fs = std::filesystem;

const std::string kStories = test::source_dir() + "/../shared/data/stories260K-hf";

/// Declares its LLaMA with our parameters: fused projections, 5 layers, hidden 64, 8 heads and 4 key and value heads of
/// 8, ffn 172.
nn::Parameters stories(const tensor::MeshCoordinates& coordinates, ExternalNames& external) {
  using tensor::ShardSpec;
  const std::vector<std::string> axes{"tensor"};
  nn::Parameters parameters(coordinates, {});
  const auto add = [&](const std::string& name, ShardSpec spec, std::vector<nn::ExternalRows> parts) {
    parameters.add(name, std::move(spec), {}, true);
    external.names.push_back({name, std::move(parts)});
  };
  external = {{}, "model.", {}};
  add("embedding", ShardSpec::split({512, 64}, 0, axes), {"model.embed_tokens.weight"});
  for (int i = 0; i < 5; ++i) {
    const std::string ours = concat("blocks.", i, "."), theirs = concat("model.layers.", i, ".");
    const std::string attention = theirs + "self_attn.", mlp = theirs + "mlp.";
    add(ours + "qkv", ShardSpec::split({128, 64}, 0, axes, {{64, 8}, {32, 8, true}, {32, 8, true}}),
        {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"});
    add(ours + "out", ShardSpec::split({64, 64}, 1, axes), {attention + "o_proj.weight"});
    add(ours + "gate_up", ShardSpec::split({344, 64}, 0, axes, {{172}, {172}}),
        {mlp + "gate_proj.weight", mlp + "up_proj.weight"});
    add(ours + "down", ShardSpec::split({64, 172}, 1, axes), {mlp + "down_proj.weight"});
    add(ours + "norm_1", ShardSpec::whole({64}), {theirs + "input_layernorm.weight"});
    add(ours + "norm_2", ShardSpec::whole({64}), {theirs + "post_attention_layernorm.weight"});
  }
  add("norm", ShardSpec::whole({64}), {"model.norm.weight"});
  return parameters;
}

TEST(HuggingFaceReal, ReadsAFolderAndWritesItBackBitwise) {
  if (!fs::exists(kStories)) GTEST_SKIP() << "needs " << kStories;
  const SafetensorsReader original(std::string(kStories) + "/model.safetensors");
  test::TemporaryFolder folder;
  for (const auto& [layout, max_bytes] :
       {std::pair{Layout{1, 1}, 1 << 30}, {Layout{2, 2}, 1 << 30}, {Layout{1, 8}, 1 << 19}}) {
    on_layout(layout, [&, max_bytes = max_bytes](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
      ExternalNames external;
      nn::Parameters parameters = stories(coordinates, external);
      import_weights(kStories, parameters, external);
      export_weights(folder.path(), parameters, external, read_config(kStories), world, max_bytes);
    });
    int64_t seen = 0;
    for (const auto& file : fs::directory_iterator(folder.path())) {
      if (file.path().extension() != ".safetensors") continue;
      const SafetensorsReader written(file.path().string());
      for (const auto& [name, entry] : written.entries()) {
        EXPECT_EQ(entry.shape, original.entries().at(name).shape) << name;
        EXPECT_EQ(written.bytes(name), original.bytes(name)) << name;
        ++seen;
      }
    }
    EXPECT_EQ(seen, static_cast<int64_t>(original.entries().size()));
    EXPECT_EQ(read_config(folder.path()), read_config(kStories));
  }
  EXPECT_TRUE(fs::exists(folder / "model.safetensors.index.json")) << "the last round was written in shards";
}

}  // namespace
}  // namespace colossal::checkpoint::hugging_face_real_test
