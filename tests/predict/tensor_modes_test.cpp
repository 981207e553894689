// Modes of tensor parallelism on 64 GPUs, in the order that Tesseract (arXiv 2105.14500) and the 3D paper (arXiv
// 2105.14450) publish. We do not know the batch of Tesseract's runs, and the order of 1D and 2.5D depends on it: 1D
// sends activations, which grow with the batch, 2.5D mainly weights, which do not. They cross at about 50 rows
// (benchmarks/results/2026-11-27-published-runs.md).
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "colossal/plan/profile.h"
#include "colossal/predict/search.h"
#include "colossal/predict/step.h"
#include "support/parity.h"
#include "support/paths.h"

namespace colossal::predict::tensor_modes_test {
namespace {

/// Two of the layers of Tesseract's strong scaling: every layer adds the same calls.
models::ModelShape tesseract_gpt() {
  models::ModelShape shape = test::tiny_gpt2();
  shape.vocabulary = 51200, shape.layers = 2, shape.hidden = 3072, shape.heads = shape.kv_heads = 64;
  shape.head_dim = 48, shape.ffn = 4 * 3072, shape.positions = 512, shape.dropout = 0;
  return shape;
}

double step_seconds(const std::string& mode, int64_t batch) {
  run::Config config;
  config.parallel.tensor.size = 64;
  config.parallel.tensor.mode = mode;
  config.parallel.tensor.depth = mode == "2.5d" ? 4 : 1;
  config.precision.mode = "fp16";
  config.training.batch_size = batch;
  config.data.sequence = 512;
  const models::ModelShape shape = tesseract_gpt();
  const plan::Cluster cluster =
      cluster_of(config.parallel.ranks(), plan::load_profile(test::source_dir() + "/benchmarks/clusters/a100-4x.toml"));
  const train::ConfiguredRun on_gpus = on_devices({config, {.shape = shape}}, cluster);
  return predict_step(on_gpus, record_roles(on_gpus), cluster).step_seconds;
}

TEST(TensorModes, KeepFourPublishedPairsAt16Rows) {
  const double one = step_seconds("1d", 16), two = step_seconds("2d", 16), tesseract = step_seconds("2.5d", 16);
  const double three = step_seconds("3d", 16);
  EXPECT_LT(one, two);
  EXPECT_LT(tesseract, two);
  EXPECT_LT(three, one);
  EXPECT_LT(three, two);
}

TEST(TensorModes, KeepAllPublishedPairsAt64Rows) {
  const double one = step_seconds("1d", 64), two = step_seconds("2d", 64), tesseract = step_seconds("2.5d", 64);
  const double three = step_seconds("3d", 64);
  EXPECT_LT(one, two);
  EXPECT_LT(tesseract, one);
  EXPECT_LT(tesseract, two);
  EXPECT_LT(three, one);
  EXPECT_LT(three, two);
}

}  // namespace
}  // namespace colossal::predict::tensor_modes_test
