// Folders of CLIP's text encoder, as transformers 4 and 5 and whole CLIPs store it, and what such a model cannot do.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <map>

#include "colossal/base/json.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/distributed/config.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/run/external_names.h"
#include "colossal/run/objective.h"
#include "colossal/run/program.h"
#include "colossal/run/saved_model.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::clip_folder_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Tensors = std::map<std::string, at::Tensor>;

json config_of(const char* kind) {
  return {{"model_type", "clip_text_model"},
          {"architectures", {kind}},
          {"vocab_size", 19},
          {"hidden_size", 8},
          {"intermediate_size", 12},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 2},
          {"max_position_embeddings", 7},
          {"projection_dim", 6}};
}

/// Returns the random tensors of a folder with these names.
Tensors random_tensors(const std::string& prefix, bool has_projection) {
  const at::Generator generator = at::detail::createCPUGenerator(5);
  Tensors tensors;
  const auto add = [&](const std::string& name, at::IntArrayRef sizes) {
    tensors[name] = at::randn(sizes, generator, at::TensorOptions(at::kFloat));
  };
  const auto layer = [&](const std::string& name, int64_t out, int64_t in) {
    add(name + ".weight", {out, in});
    add(name + ".bias", {out});
  };
  const auto norm = [&](const std::string& name) {
    add(name + ".weight", {8});
    add(name + ".bias", {8});
  };
  add(prefix + "embeddings.token_embedding.weight", {19, 8});
  add(prefix + "embeddings.position_embedding.weight", {7, 8});
  for (const char* block : {"0.", "1."}) {
    const std::string at = prefix + "encoder.layers." + block;
    for (const char* part : {"q", "k", "v", "out"}) layer(at + "self_attn." + part + "_proj", 8, 8);
    layer(at + "mlp.fc1", 12, 8);
    layer(at + "mlp.fc2", 8, 12);
    norm(at + "layer_norm1");
    norm(at + "layer_norm2");
  }
  norm(prefix + "final_layer_norm");
  if (has_projection) add("text_projection.weight", {6, 8});
  return tensors;
}

/// Reads the tensors as a folder, writes the model, and returns the tensors of the folder that is written.
Tensors written_again(const json& config, const Tensors& tensors) {
  const test::TemporaryFolder from, to;
  checkpoint::write_safetensors(from / "model.safetensors", tensors);
  const models::ModelShape shape = models::built_in().shape_of(config);
  nn::Parameters parameters({}, {});
  nn::SerialLayers layers(parameters);
  models::make_model(shape, layers);
  checkpoint::import_weights(from.path(), parameters, external_names(shape));
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    checkpoint::export_weights(to.path(), parameters, external_names(shape),
                               shape.architecture->hugging_face.to_json(shape), mesh.all());
  });
  const checkpoint::SafetensorsReader file(to / "model.safetensors");
  Tensors again;
  for (const auto& [name, entry] : file.entries()) again[name] = file.tensor(name).clone();
  return again;
}

void expect_equal(const Tensors& got, const Tensors& want) {
  EXPECT_EQ(got.size(), want.size());
  for (const auto& [name, value] : want) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_TRUE(at::equal(got.at(name), value)) << name;
  }
}

TEST(ClipFolder, ComesBackBitForBitWithThePrefixOfTheNames) {
  for (const bool projects : {false, true}) {
    const json config = config_of(projects ? "CLIPTextModelWithProjection" : "CLIPTextModel");
    const Tensors want = random_tensors("text_model.", projects);
    Tensors old = want;
    old["text_model.embeddings.position_ids"] = at::arange(7).unsqueeze(0);
    expect_equal(written_again(config, want), want);
    expect_equal(written_again(config, old), want);
    expect_equal(written_again(config, random_tensors("", projects)), want);
  }
}

TEST(ClipFolder, MayBeAWholeClip) {
  json text = config_of("");
  text.erase("model_type"), text.erase("architectures");
  const json config = {{"model_type", "clip"}, {"projection_dim", 6}, {"text_config", text}};
  const Tensors want = random_tensors("text_model.", true);
  Tensors whole = want;
  whole["vision_model.post_layernorm.weight"] = at::ones({3});
  whole["visual_projection.weight"] = at::ones({6, 3});
  whole["logit_scale"] = at::ones({});
  expect_equal(written_again(config, whole), want);
}

TEST(ClipFolder, MustHoldAllTensorsAndNoOthers) {
  Tensors tensors = random_tensors("text_model.", false);
  tensors["text_model.extra.weight"] = at::ones({3});
  EXPECT_THAT(test::thrown_message([&] { written_again(config_of("CLIPTextModel"), tensors); }),
              HasSubstr("text_model.extra.weight"));
  EXPECT_THAT(test::thrown_message([&] {
                written_again(config_of("CLIPTextModelWithProjection"), random_tensors("text_model.", false));
              }),
              HasSubstr("text_projection.weight"));
}

TEST(ClipFolder, DoesNotTrainAlone) {
  const models::ModelShape shape = models::built_in().resolve({.name = "clip-text-tiny"});
  EXPECT_THAT(test::thrown_message([&] { choose_objective({}, built_in_objectives(), shape); }),
              HasSubstr("[objective] a model that is trained alone must have an objective: got a clip_text, which "
                        "reads text for other models and is trained as a part of them; name another model"));
}

TEST(ClipFolder, NeitherGeneratesNorEmbedsTexts) {
  const test::TemporaryFolder folder;
  folder.write("config.json", config_of("CLIPTextModel").dump());
  checkpoint::write_safetensors(folder / "model.safetensors", random_tensors("text_model.", false));
  comm::run_ranks(1, [&](comm::World& world) {
    const distributed::ParallelConfig layout;
    comm::Mesh mesh(world, layout.axes());
    const auto refusal = [&](const Loading& loading) {
      return test::thrown_message([&] { load_model(folder.path(), mesh, layout, at::kCPU, loading, built_in()); });
    };
    EXPECT_THAT(refusal({.tokenizer = "bytes"}), HasSubstr("which reads text: it has no text to continue"));
    EXPECT_THAT(refusal({.tokenizer = "none", .headless = true}),
                HasSubstr("which reads text for a denoiser of pictures: its states are no embeddings of texts"));
    EXPECT_EQ(refusal({.tokenizer = "none"}), "");
  });
}

}  // namespace
}  // namespace colossal::run::clip_folder_test
