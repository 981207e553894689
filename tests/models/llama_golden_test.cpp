// A real trained LLaMA (stories260K, in the Hugging Face layout) reproduces its reference: logits and greedy continuations.
// The weights are no part of the project: the test skips where ../shared/data is absent.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "colossal/checkpoint/hugging_face.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/infer/generate.h"
#include "colossal/models/registry.h"
#include "colossal/train/engine.h"
#include "support/parity.h"

namespace colossal::models {
namespace {

const std::string kFolder = std::string(COLOSSAL_SOURCE_DIR) + "/../shared/data/stories260K-hf";

struct Loaded {
  std::unique_ptr<nn::Parameters> parameters;
  Model model;
};

Loaded load(comm::Mesh& mesh, const parallel::TensorConfig& tensor, at::ScalarType dtype) {
  const ModelShape shape = shape_from_json(checkpoint::read_config(kFolder));
  const Architecture& row = architecture(shape.architecture);
  Loaded loaded;
  loaded.parameters = std::make_unique<nn::Parameters>(mesh.place(), nn::Parameters::Options{dtype});
  loaded.model = make_model(shape, *train::make_layers(*loaded.parameters, mesh, tensor));
  checkpoint::import_weights(kFolder, *loaded.parameters, {row.external_names(shape), row.prefix, row.ignored});
  return loaded;
}

class Stories260K : public testing::TestWithParam<parallel::TensorConfig> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kFolder)) GTEST_SKIP() << kFolder << " is absent";
    std::ifstream in(kFolder + "/reference.json");
    reference = nlohmann::json::parse(in);
  }
  nlohmann::json reference;
};

TEST_P(Stories260K, ReproducesLogitsAndGreedyContinuations) {
  comm::run_ranks(static_cast<int>(GetParam().size), [&](comm::World& world) {
    comm::Mesh mesh(world, parallel::tensor_axes(GetParam()));
    const Loaded loaded = load(mesh, GetParam(), at::kDouble);
    const int64_t rows = loaded.model.batch_parts;  // the prompt once for each of the ranks that split the batch
    const at::NoGradGuard no_grad;
    int checked = 0;
    for (const auto& item : reference.at("cases")) {
      const auto prompt = item.at("prompt_ids").get<std::vector<int64_t>>();
      const auto want_ids = item.at("greedy_ids").get<std::vector<int64_t>>();
      const auto want_logits = item.at("logits_last_prompt_position").get<std::vector<double>>();
      nn::Step step{.positions = at::arange(static_cast<int64_t>(prompt.size()), at::kLong).repeat({rows, 1})};
      const at::Tensor hidden = hidden_states(loaded.model, at::tensor(prompt, at::kLong).repeat({rows, 1}), step);
      const at::Tensor logits = loaded.model.head->logits(hidden.select(1, -1))[rows - 1];
      // The reference is float64 arithmetic rounded to float32: half a unit in the last place of the largest logit, and no more.
      const at::Tensor want = at::tensor(want_logits, at::kDouble);
      EXPECT_LE((logits - want).abs().max().item<double>(), want.abs().max().item<double>() * 0x1p-23);
      const auto got = infer::generate(loaded.model, prompt, {.max_tokens = static_cast<int64_t>(want_ids.size())},
                                       at::TensorOptions().dtype(at::kDouble));
      EXPECT_EQ(got, want_ids);
      ++checked;
    }
    EXPECT_GT(checked, 0);
  });
}
using Tensor = parallel::TensorConfig;
INSTANTIATE_TEST_SUITE_P(Layouts, Stories260K,
                         testing::Values(Tensor{}, Tensor{.size = 2}, Tensor{.size = 4}, Tensor{.size = 4, .mode = "2d"},
                                         Tensor{.size = 8, .mode = "2.5d", .depth = 2}, Tensor{.size = 8, .mode = "3d"}),
                         [](const auto& info) { return test::name_of(info.param); });

TEST_P(Stories260K, ExportLoadsBackBitwise) {
  const std::string folder = testing::TempDir() + "/stories260K-export-" + test::name_of(GetParam());
  std::filesystem::remove_all(folder);
  comm::run_ranks(static_cast<int>(GetParam().size), [&](comm::World& world) {
    comm::Mesh mesh(world, parallel::tensor_axes(GetParam()));
    const Loaded loaded = load(mesh, GetParam(), at::kFloat);
    const ModelShape& shape = loaded.model.shape;
    const Architecture& row = architecture(shape.architecture);
    checkpoint::export_weights(folder, *loaded.parameters, {row.external_names(shape), row.prefix, row.ignored}, row.to_json(shape),
                               mesh.all());
    EXPECT_EQ(shape_from_json(checkpoint::read_config(folder)), shape);
    nn::Parameters again(mesh.place(), {at::kFloat});
    make_model(shape, *train::make_layers(again, mesh, GetParam()));
    checkpoint::import_weights(folder, again, {row.external_names(shape), row.prefix, row.ignored});
    for (const nn::Parameter& p : *loaded.parameters) EXPECT_TRUE(at::equal(p.value, again.at(p.name).value)) << p.name;
  });
  // What any layout writes, one process reads as the original.
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {{"tensor", 1}});
    const Loaded original = load(mesh, {}, at::kFloat);
    const Architecture& row = architecture(original.model.shape.architecture);
    nn::Parameters exported(mesh.place(), {at::kFloat});
    make_model(original.model.shape, *train::make_layers(exported, mesh, {}));
    checkpoint::import_weights(folder, exported, {row.external_names(original.model.shape), row.prefix, row.ignored});
    for (const nn::Parameter& p : *original.parameters) EXPECT_TRUE(at::equal(p.value, exported.at(p.name).value)) << p.name;
  });
}

}  // namespace
}  // namespace colossal::models
