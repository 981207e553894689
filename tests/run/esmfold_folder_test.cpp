// Folders of ESMFold: names of versions, mixed dtypes, and tensors that are missing or spare.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/checkpoint/weight_source.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/models/built_in.h"
#include "colossal/models/config.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/run/external_names.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::checkpoint::esmfold_folder_test {
namespace {

using testing::HasSubstr;
using Tensors = std::map<std::string, at::Tensor>;

models::ModelShape tiny() {
  return models::Registry().add(models::esmfold_architecture()).resolve({.name = "esmfold-tiny"});
}

/// A model with parameters of one seed.
struct Made {
  explicit Made(uint64_t seed) : parameters({}, {.dtype = at::kFloat, .seed = seed}) {
    nn::SerialLayers layers(parameters);
    models::make_model(tiny(), layers);
  }
  nn::Parameters parameters;
};

void write(const std::string& folder, const nn::Parameters& parameters, const TensorDtypes& dtypes) {
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {{"data", 1}});
    export_weights(folder, parameters, run::external_names(tiny()), nlohmann::json::object(), mesh.group("data"),
                   int64_t{1} << 30, dtypes);
  });
}

Tensors tensors_in(const std::string& folder) {
  const std::unique_ptr<WeightSource> files = open_weights(folder);
  Tensors found;
  for (const auto& [name, entry] : files->entries()) found[name] = files->tensor(name).clone();
  return found;
}

void write_tensors(const std::string& folder, const Tensors& tensors) {
  write_safetensors(folder + "/model.safetensors", tensors);
}

/// Returns a folder whose ESM-2 is in fp16, as published ones may be.
std::string mixed_folder(const test::TemporaryFolder& place) {
  const Made made(1);
  TensorDtypes dtypes{.others = at::kFloat};
  for (const nn::ExternalName& name : run::external_names(tiny()).names)
    for (const nn::ExternalRows& part : name.parts)
      if (part.name.starts_with("esm.")) dtypes.by_name[part.name] = at::kHalf;
  const std::string folder = place.path() + "/mixed";
  write(folder, made.parameters, dtypes);
  return folder;
}

TEST(EsmFoldFolder, KeepsTheDtypeOfEachTensor) {
  const test::TemporaryFolder place;
  const std::string folder = mixed_folder(place), again = place.path() + "/again";
  const Tensors want = tensors_in(folder);
  EXPECT_EQ(want.at("esm.encoder.layer.0.attention.self.key.weight").scalar_type(), at::kHalf);
  Made read(2);
  const ExternalNames names = run::external_names(tiny());
  import_weights(folder, read.parameters, names);
  write(again, read.parameters, dtypes_in(folder, names, at::kFloat));
  const Tensors got = tensors_in(again);
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, x] : want) {
    EXPECT_EQ(got.at(name).scalar_type(), x.scalar_type()) << name;
    EXPECT_TRUE(at::equal(got.at(name), x)) << name;
  }
}

TEST(EsmFoldFolder, ReadsNamesOfEachVersion) {
  const test::TemporaryFolder place;
  const std::string folder = mixed_folder(place);
  Tensors older;
  for (const auto& [name, x] : tensors_in(folder)) {
    std::string other = name;
    for (const auto& [end, old] :
         {std::pair(".LayerNorm.weight", ".LayerNorm.gamma"), std::pair(".LayerNorm.bias", ".LayerNorm.beta")})
      if (name.ends_with(end)) other = name.substr(0, name.size() - std::string(end).size()) + old;
    older[other] = x;
  }
  older["esm.encoder.layer.*.attention.self.rotary_embeddings.inv_freq"] = at::ones({4});
  older["af2_to_esm"] = at::arange(22, at::kLong);
  older.erase("esm.contact_head.regression.weight");
  EXPECT_TRUE(older.contains("esm.encoder.layer.0.attention.LayerNorm.gamma"));
  write_tensors(folder, older);
  Made read(2), same(1);
  import_weights(folder, read.parameters, run::external_names(tiny()));
  for (const char* name : {"blocks.0.norm_1.weight", "blocks.1.attention.qkv.weight", "blocks.5.structure.in.weight"})
    EXPECT_LT((read.parameters.at(name).value - same.parameters.at(name).value).abs().max().item<double>(), 1e-3);
}

TEST(EsmFoldFolder, ListsTensorsThatAreMissingOrSpare) {
  const test::TemporaryFolder place;
  const std::string folder = mixed_folder(place);
  Tensors tensors = tensors_in(folder);
  tensors.erase("trunk.recycle_disto.weight");
  tensors["trunk.blocks.2.layernorm_1.weight"] = at::ones({32});
  write_tensors(folder, tensors);
  Made read(2);
  const std::string message =
      test::thrown_message([&] { import_weights(folder, read.parameters, run::external_names(tiny())); });
  EXPECT_THAT(message, HasSubstr("trunk.recycle_disto.weight"));
  EXPECT_THAT(message, HasSubstr("trunk.blocks.2.layernorm_1.weight"));
}

}  // namespace
}  // namespace colossal::checkpoint::esmfold_folder_test
