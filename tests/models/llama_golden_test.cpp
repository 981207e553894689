// A real trained LLaMA (stories260K, in the Hugging Face layout) reproduces its reference logits and greedy
// continuations. The weights are not part of the project: the test is skipped if ../shared/data does not exist.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/generate.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "support/parity.h"
#include "support/paths.h"

namespace colossal::models::llama_golden_test {
namespace {

const std::string kFolder = test::source_dir() + "/../shared/data/stories260K-hf";

using distributed::DistributedModel;

std::unique_ptr<DistributedModel> load(comm::Mesh& mesh, const distributed::ParallelConfig& layout,
                                       at::ScalarType dtype, const std::string& folder = kFolder) {
  const ModelShape shape = built_in().shape_of(checkpoint::read_config(folder));
  const HuggingFace& row = shape.architecture->hugging_face;
  auto loaded = std::make_unique<DistributedModel>(mesh, layout, shape, nn::Parameters::Options{dtype},
                                                   DistributedModel::Workload{});
  checkpoint::import_weights(folder, loaded->parameters(), {row.names(shape), row.prefix, row.ignored_names()});
  return loaded;
}

class Stories260K : public testing::TestWithParam<distributed::ParallelConfig> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kFolder)) GTEST_SKIP() << kFolder << " is absent";
    std::ifstream in(kFolder + "/reference.json");
    reference = nlohmann::json::parse(in);
  }
  nlohmann::json reference;
};

TEST_P(Stories260K, ReproducesLogitsAndGreedyContinuations) {
  comm::run_ranks(static_cast<int>(GetParam().ranks()), [&](comm::World& world) {
    comm::Mesh mesh(world, GetParam().axes());
    const auto loaded = load(mesh, GetParam(), at::kDouble);
    const Model& model = loaded->decoding_model();
    const int64_t rows = model.batch_parts;  // the prompt once for each rank that splits the batch
    const at::NoGradGuard no_grad;
    int checked = 0;
    for (const auto& item : reference.at("cases")) {
      const auto prompt = item.at("prompt_ids").get<std::vector<int64_t>>();
      const auto want_ids = item.at("greedy_ids").get<std::vector<int64_t>>();
      const auto want_logits = item.at("logits_last_prompt_position").get<std::vector<double>>();
      const at::Tensor positions = at::arange(static_cast<int64_t>(prompt.size()), at::kLong).repeat({rows, 1});
      const at::Tensor logits = loaded->everywhere(
          nn::step_of(nn::token_batch(at::tensor(prompt, at::kLong).repeat({rows, 1}), positions)),
          [&](int, const States& end, const nn::ForwardContext& s) {
            return model.head->logits(end[0].select(1, -1), s)[rows - 1];
          },
          at::empty({model.shape.vocabulary}, at::kDouble));
      // The reference is float64 arithmetic rounded to float32, so the error is at most half a unit in the last place
      // of the largest logit.
      const at::Tensor want = at::tensor(want_logits, at::kDouble);
      EXPECT_LE((logits - want).abs().max().item<double>(), want.abs().max().item<double>() * 0x1p-23);
      const auto got = infer::generate(
          *loaded, {.prompt = prompt, .options = {.max_tokens = static_cast<int64_t>(want_ids.size())}});
      EXPECT_EQ(got, want_ids);
      ++checked;
    }
    EXPECT_GT(checked, 0);
  });
}
std::string name_of(const distributed::ParallelConfig& layout) {
  return concat(test::name_of(layout.tensor), "_pipeline", layout.pipeline.size, "_sequence", layout.sequence.size);
}

std::vector<distributed::ParallelConfig> layouts() {
  std::vector<distributed::ParallelConfig> list;
  for (const parallel::TensorConfig& tensor :
       std::vector<parallel::TensorConfig>{{},
                                           {.size = 2},
                                           {.size = 4},
                                           {.size = 2, .sequence = true},
                                           {.size = 4, .mode = "2d"},
                                           {.size = 8, .mode = "2.5d", .depth = 2},
                                           {.size = 8, .mode = "3d"}})
    list.push_back({.tensor = tensor});
  list.push_back({.pipeline = {.size = 5}});
  list.push_back({.sequence = {.size = 3, .mode = "ring"}});
  list.push_back(
      {.tensor = {.size = 4, .mode = "2d"}, .pipeline = {.size = 2, .schedule = "zero-bubble-v", .micro_batches = 1}});
  return list;
}
INSTANTIATE_TEST_SUITE_P(Layouts, Stories260K, testing::ValuesIn(layouts()),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(Stories260K, ExportLoadsBackBitwise) {
  const std::string folder = testing::TempDir() + "/stories260K-export-" + name_of(GetParam());
  std::filesystem::remove_all(folder);
  comm::run_ranks(static_cast<int>(GetParam().ranks()), [&](comm::World& world) {
    comm::Mesh mesh(world, GetParam().axes());
    const auto loaded = load(mesh, GetParam(), at::kFloat);
    const ModelShape& shape = loaded->model().shape;
    const HuggingFace& row = shape.architecture->hugging_face;
    checkpoint::export_weights(folder, loaded->parameters(), {row.names(shape), row.prefix, row.ignored_names()},
                               row.to_json(shape), mesh.all());
    EXPECT_EQ(built_in().shape_of(checkpoint::read_config(folder)), shape);
    const auto again = load(mesh, GetParam(), at::kFloat, folder);
    for (const nn::Parameter& p : loaded->parameters())
      EXPECT_TRUE(at::equal(p.value, again->parameters().at(p.name).value)) << p.name;
  });
  // An export by any layout must load in one process as the original.
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {{"tensor", 1}});
    const auto original = load(mesh, {}, at::kFloat), exported = load(mesh, {}, at::kFloat, folder);
    for (const nn::Parameter& p : original->parameters())
      EXPECT_TRUE(at::equal(p.value, exported->parameters().at(p.name).value)) << p.name;
  });
}

}  // namespace
}  // namespace colossal::models::llama_golden_test
