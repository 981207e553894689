// The parity driver with ranks on accelerators, which exchange data through the host. It covers whole models and every
// layout.
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/models/registry.h"
#include "colossal/parallel/sequence/exchange.h"
#include "support/accelerator.h"
#include "support/parity.h"
#include "support/tolerance.h"

namespace colossal::test::model_parity_accelerator_test {
namespace {

class ModelParityOnAccelerator : public AcceleratorTest {
 protected:
  static void expect_parity(ParityCase c, const std::string& what) {
    if (!has_accelerators_for(c.data * c.sequences.size * c.tensor.size * c.pipeline.size)) return;
    c.device = accelerator;
    c.steps = 2;
    EXPECT_NO_THROW(check_parity(c)) << c.shape.architecture->name << ", " << what;
  }
};

TEST_F(ModelParityOnAccelerator, EqualsOneProcessOnOneRank) {
  for (const models::ModelShape& shape : {tiny_gpt2(), tiny_llama(), tiny_vit(), tiny_bert()})
    expect_parity({.shape = shape, .clip = 0.5}, "as it is");
  expect_parity({.shape = tiny_gpt2(), .accumulate = 2, .recompute = "block"}, "block");
  expect_parity({.shape = tiny_llama(), .accumulate = 4, .recompute = "selective"}, "selective");
}

TEST_F(ModelParityOnAccelerator, EqualsOneProcessWithPictures) {
  for (const models::ModelShape& shape : {tiny_dit(), tiny_unet(), tiny_sd3(), tiny_flux(), tiny_open_sora()}) {
    const int64_t cells = shape.positions;  // patches of a transformer, pixels of a unet
    expect_parity({.shape = shape, .batch = 2, .sequence = cells}, "as it is");
    expect_parity({.shape = shape, .batch = 2, .sequence = cells, .recompute = "block"}, "block");
    expect_parity({.shape = shape, .tensor = {.size = 2}, .batch = 2, .sequence = cells}, "tensor");
  }
}

TEST_F(ModelParityOnAccelerator, EqualsOneProcessInEveryZeroStage) {
  for (const int64_t zero : {0, 1, 2, 3})
    expect_parity({.shape = tiny_gpt2(), .data = 2, .zero = zero}, concat("zero ", zero));
}

TEST_F(ModelParityOnAccelerator, EqualsOneProcessInEveryTensorMode) {
  for (const parallel::TensorConfig& mode : tensor_modes())
    if (mode.size <= 4 && mode.depth < 3) expect_parity({.shape = tiny_llama(), .tensor = mode}, name_of(mode));
  expect_parity({.shape = tiny_gpt2(), .tensor = {.size = 8, .mode = "3d"}}, "3d");
}

// Each row has two documents. A row of 150 tokens, whose first document has 38, is split by pieces.
TEST_F(ModelParityOnAccelerator, EqualsOneProcessInEverySequenceMode) {
  for (const parallel::SequenceConfig& sequences : sequence_modes()) {
    ParityCase c{.shape = tiny_llama(), .sequences = sequences, .sequence = 7};
    expect_parity(c, sequences.mode);
    c.batch = 1;
    c.sequence = c.shape.positions = 150;
    c.first_document = 38;
    EXPECT_NE(parallel::sequence_cut(c.sequences, c.sequence, random_batch(c, 0).at("documents")).lengths,
              parallel::sequence_cut(c.sequences, c.sequence, {}).lengths)
        << "a zigzag";
    expect_parity(c, sequences.mode + ", dealt out by documents");
  }
}

TEST_F(ModelParityOnAccelerator, EqualsOneProcessInPipelines) {
  models::ModelShape deep = tiny_gpt2();
  deep.layers = 4;
  for (const std::string schedule : {"gpipe", "1f1b", "interleaved", "zero-bubble-v", "chimera"})
    expect_parity({.shape = deep, .pipeline = {.size = 2, .schedule = schedule, .micro_batches = 2}}, schedule);
  expect_parity(
      {.shape = tiny_llama(), .data = 2, .tensor = {.size = 2}, .pipeline = {.size = 2, .micro_batches = 2}, .zero = 1},
      "all at once");
}

TEST_F(ModelParityOnAccelerator, FailsWithoutCollectives) {
  if (!has_accelerators_for(2)) GTEST_SKIP() << "two ranks that are threads need two devices";
  ParityCase c{.shape = tiny_gpt2(), .tensor = {.size = 2}, .steps = 1, .collectives_off = true, .device = accelerator};
  EXPECT_THROW(check_parity(c), ParityError);
}

}  // namespace
}  // namespace colossal::test::model_parity_accelerator_test
