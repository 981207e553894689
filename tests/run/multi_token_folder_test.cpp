// Multi-token layers in Hugging Face folders: written and read again, copies of the embedding and of the head, and
// folders without the layers.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/models/config.h"
#include "colossal/models/families/deepseek.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/run/external_names.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::multi_token_folder_test {
namespace {

using Tensors = std::map<std::string, at::Tensor>;
using testing::HasSubstr;

models::ModelShape tiny(int64_t layers) {
  models::ModelShape shape = models::built_in().resolve({.name = "deepseek-tiny", .hidden = 32, .layers = 2});
  auto own = shape.own.as<models::DeepseekSizes>();
  own.multi_token_layers = layers;
  own.experts.bias_rate = 0;  // a folder says nothing of training
  shape.own = own;
  shape.set(models::MultiTokenSizes{layers});
  shape.tied = false;
  return shape;
}

struct Drawn {
  Drawn(const models::ModelShape& shape, uint64_t seed)
      : shape(shape), parameters({}, {.dtype = at::kFloat, .seed = seed}), layers(parameters) {
    models::make_model(shape, layers);
    for (nn::Buffer& buffer : parameters.buffers()) buffer.value.fill_(static_cast<double>(seed));
  }
  Tensors values() const {
    Tensors all;
    for (const nn::Parameter& p : parameters) all[p.name] = p.value.detach().clone();
    for (const nn::Buffer& b : parameters.buffers()) all[b.name] = b.value.clone();
    return all;
  }
  void write(const std::string& folder) const {
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {{"data", 1}});
      checkpoint::export_weights(folder, parameters, external_names(shape),
                                 shape.architecture->hugging_face.to_json(shape), mesh.group("data"));
    });
  }
  models::ModelShape shape;
  nn::Parameters parameters;
  nn::SerialLayers layers;
};

TEST(MultiTokenFolder, IsReadAsItWasWritten) {
  const test::TemporaryFolder folder;
  const Drawn written(tiny(2), 1);
  Drawn read(tiny(2), 2);
  written.write(folder.path());
  EXPECT_TRUE(models::built_in().shape_of(checkpoint::read_config(folder.path())) == written.shape);
  checkpoint::import_weights(folder.path(), read.parameters, external_names(read.shape));
  const Tensors want = written.values();
  for (const auto& [name, value] : read.values()) EXPECT_TRUE(at::equal(value, want.at(name))) << name;
}

TEST(MultiTokenFolder, MayLackTheLayers) {
  const test::TemporaryFolder folder;
  const Drawn written(tiny(0), 1);
  Drawn read(tiny(1), 2);
  written.write(folder.path());
  const Tensors before = read.values(), want = written.values();
  checkpoint::import_weights(folder.path(), read.parameters, external_names(read.shape));
  for (const auto& [name, value] : read.values())
    EXPECT_TRUE(at::equal(value, name.starts_with("head.multi_token.") ? before.at(name) : want.at(name))) << name;
}

TEST(MultiTokenFolder, LeavesTheLayersOutOnRequest) {
  const test::TemporaryFolder folder;
  Drawn(tiny(1), 1).write(folder.path());
  EXPECT_THAT(notice_of_left_out(folder.path(), tiny(0)).value_or(""), HasSubstr("the multi-token layer"));
  EXPECT_FALSE(notice_of_left_out(folder.path(), tiny(1)).has_value());
  Drawn read(tiny(0), 2);
  EXPECT_NO_THROW(checkpoint::import_weights(folder.path(), read.parameters, external_names(read.shape)));
}

// Published folders have a copy of the embedding and of the head in each layer.
TEST(MultiTokenFolder, RefusesCopiesThatDiffer) {
  const test::TemporaryFolder folder;
  const Drawn written(tiny(1), 1);
  const Tensors values = written.values();
  written.write(folder.path());
  const auto import_with = [&](const std::string& name, const at::Tensor& copy) {
    const test::TemporaryFolder other;
    written.write(other.path());
    Tensors all{{name, copy}};
    const checkpoint::SafetensorsReader file(folder / "model.safetensors");
    for (const auto& [stored, entry] : file.entries()) all[stored] = file.tensor(stored);
    checkpoint::write_safetensors(other / "model.safetensors", all);
    Drawn read(tiny(1), 2);
    return test::thrown_message(
        [&] { checkpoint::import_weights(other.path(), read.parameters, external_names(read.shape)); });
  };
  const std::string layer = "model.layers.2.";
  EXPECT_EQ(import_with(layer + "embed_tokens.weight", values.at("embedding.weight")), "");
  EXPECT_EQ(import_with(layer + "shared_head.head.weight", values.at("head.weight")), "");
  EXPECT_THAT(import_with(layer + "shared_head.head.weight", values.at("head.weight") + 1),
              HasSubstr("must equal lm_head.weight, because the multi-token layer makes them one weight"));
}

}  // namespace
}  // namespace colossal::run::multi_token_folder_test
