// Names of a model's tensors in a folder, and parts of folders that a model leaves out.
#include "colossal/run/external_names.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <map>

#include "colossal/base/error.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/checkpoint/weight_source.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/models/config.h"
#include "colossal/models/folder_names.h"
#include "colossal/models/registry.h"
#include "colossal/nn/serial_layers.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::external_names_test {
namespace {

TEST(ExternalNames, ReportsAPartThatIsLeftOut) {
  const models::ModelShape shape = models::built_in().resolve({.name = "deepseek-tiny"});  // 4 layers
  const test::TemporaryFolder folder;
  const auto notice = [&](const std::string& tensor) {
    checkpoint::write_safetensors(folder / "model.safetensors", {{tensor, at::zeros({2, 2})}});
    return notice_of_left_out(folder.path(), shape);
  };
  EXPECT_FALSE(notice("model.layers.3.mlp.gate.weight").has_value());
  EXPECT_THAT(notice("model.layers.4.eh_proj.weight").value_or(""),
              testing::HasSubstr("holds model.layers.4.eh_proj.weight, which is left out: it belongs to the "
                                 "multi-token layer"));
  EXPECT_FALSE(notice_of_left_out(folder.path(), models::built_in().resolve({.name = "llama-tiny"})).has_value());
  EXPECT_THAT(external_names(shape).ignored, testing::Contains("model.layers.4.*"));
}

using Tensors = std::map<std::string, at::Tensor>;

/// Returns the tensors of a folder of the model.
Tensors folder_of(const models::ModelShape& shape, const nn::Parameters& parameters) {
  const test::TemporaryFolder folder;
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    checkpoint::export_weights(folder.path(), parameters, external_names(shape), {{"model_type", "x"}}, mesh.all());
  });
  const checkpoint::SafetensorsReader file(folder / "model.safetensors");
  Tensors tensors;
  for (const auto& [name, entry] : file.entries()) tensors[name] = file.tensor(name).clone();
  return tensors;
}

/// Returns the message of the error that reading `tensors` gives; empty = the values are those of `want`.
std::string reading(const Tensors& tensors, const models::ModelShape& shape, const nn::Parameters& want) {
  nn::Parameters parameters({}, {.seed = 77});
  nn::SerialLayers layers(parameters);
  models::make_model(shape, layers);
  std::vector<checkpoint::NamedTensor> values;
  for (const nn::Parameter& p : parameters) values.push_back({p.name, p.value.detach(), p.spec, {}});
  const auto source = checkpoint::weights_in_memory(tensors);
  std::string message = test::thrown_message(
      [&] { checkpoint::import_weights(*source, "folder", parameters, values, external_names(shape)); });
  for (const nn::Parameter& p : want)
    if (message.empty() && !at::equal(parameters.at(p.name).value, p.value)) message = "other values of " + p.name;
  return message;
}

// Of a weight that has several names, other programs may keep any one.
TEST(ExternalNames, ReadsATiedWeightUnderEachOfItsNames) {
  int64_t tried = 0;
  const models::Registry registry = models::built_in();
  for (const auto& row : registry.architectures()) {
    if (row->hugging_face.model_type.empty()) continue;
    models::ModelShape shape = registry.resolve({.name = row->presets.front().name});
    if (!shape.task().reads_text()) continue;
    shape.tied = true;
    if (models::copies_in_folder(shape).empty()) continue;  // a model without a head
    nn::Parameters parameters({}, {.seed = 3});
    nn::SerialLayers layers(parameters);
    models::make_model(shape, layers);
    const Tensors whole = folder_of(shape, parameters);
    for (const nn::ExternalCopy& copy : models::copies_in_folder(shape)) {
      const std::string what = concat(row->name, ": ", copy.name, " for ", copy.original);
      Tensors renamed = whole, both = whole;
      renamed[copy.name] = whole.at(copy.original);
      renamed.erase(copy.original);
      EXPECT_EQ(reading(renamed, shape, parameters), "") << what;
      both[copy.name] = whole.at(copy.original) + 1;
      EXPECT_THAT(reading(both, shape, parameters), testing::HasSubstr("makes them one weight")) << what;
      ++tried;
    }
    Tensors none = whole;
    for (const nn::ExternalCopy& copy : models::copies_in_folder(shape)) none.erase(copy.original);
    EXPECT_THAT(reading(none, shape, parameters), testing::HasSubstr("does not hold this model")) << row->name;
  }
  EXPECT_GE(tried, 16);  // 13 families, of which BERT has two such weights and T5 three names
}

// Two copies without their original: the first is read, and the other must equal it.
TEST(ExternalNames, ComparesCopiesWithoutTheirOriginal) {
  models::ModelShape shape = models::built_in().resolve({.name = "t5-tiny"});
  nn::Parameters parameters({}, {.seed = 3});
  nn::SerialLayers layers(parameters);
  models::make_model(shape, layers);
  Tensors tensors = folder_of(shape, parameters);
  tensors["encoder.embed_tokens.weight"] = tensors["decoder.embed_tokens.weight"] = tensors.at("shared.weight");
  tensors.erase("shared.weight");
  EXPECT_EQ(reading(tensors, shape, parameters), "");
  tensors["decoder.embed_tokens.weight"] = tensors.at("encoder.embed_tokens.weight") + 1;
  EXPECT_THAT(reading(tensors, shape, parameters),
              testing::HasSubstr("decoder.embed_tokens.weight must equal encoder.embed_tokens.weight"));
}

}  // namespace
}  // namespace colossal::run::external_names_test
