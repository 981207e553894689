#include "support/course.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/data/batch_fields.h"
#include "colossal/train/checkpoints.h"

namespace colossal::test {

tensor::Batch batch_of(int64_t step, int64_t part, int64_t parts, const Text& text) {
  constexpr int64_t kSequence = 6;
  const auto ids = at::TensorOptions().dtype(at::kLong);
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(step));
  const int64_t rows = text.rows / parts;
  const at::Tensor tokens =
      at::randint(0, text.vocabulary, {text.rows, kSequence + 1}, generator, ids).narrow(0, part * rows, rows);
  return data::text_batch(tokens.narrow(1, 0, kSequence), tokens.narrow(1, 1, kSequence),
                          at::arange(kSequence, ids).expand({rows, kSequence}).contiguous());
}

tensor::Batch own_batch(const train::Engine& engine, int64_t step, const Text& text) {
  return engine.replica_rows(text.rows).of(batch_of(step, 0, 1, text));
}

run::Config course_config() {
  run::Config config;
  config.precision.mode = "fp64";
  config.parallel.chunk_mib = 0.01;
  config.training = {.steps = 50, .batch_size = 8, .seed = 1};
  return config;
}

double train_step(train::Engine& engine, int64_t step, const Text& text) {
  engine.zero_grad();
  const double loss = engine.train_step(own_batch(engine, step, text));
  engine.step();
  return loss;
}

std::vector<double> train(train::Engine& engine, int64_t first, int64_t last, const Text& text) {
  std::vector<double> losses;
  for (int64_t step = first; step < last; ++step) losses.push_back(train_step(engine, step, text));
  return losses;
}

void save(train::Engine& engine, const std::string& folder) {
  train::Checkpoints(folder, engine.mesh(), 1).save(engine);
}

void load(train::Engine& engine, const std::string& folder) {
  const train::Checkpoints checkpoints(folder, engine.mesh(), 1);
  checkpoints.resume(engine, checkpoints.steps());
}

std::string empty_folder(const std::string& name) {
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  std::string suite = test.test_suite_name();
  for (char& letter : suite)
    if (letter == '/') letter = '-';
  const std::string folder = concat(testing::TempDir(), "/", suite, "-", name);
  std::filesystem::remove_all(folder);
  return folder;
}

}  // namespace colossal::test
