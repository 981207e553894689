// The transformers of Stable Diffusion 3 and FLUX, whose words and patches attend to each other as one sequence, under
// every layout against one process in fp64: losses, gradients, and weights after some steps. With collectives off each
// case must fail with a ParityError, or it proves nothing. COLOSSAL_ALL_LAYOUTS=1 runs products of layouts that a fast
// run leaves out.
#include <gtest/gtest.h>

#include <cstdlib>

#include "colossal/base/error.h"
#include "colossal/models/families/mmdit.h"
#include "colossal/models/registry.h"
#include "support/parity.h"
#include "support/tolerance.h"

namespace colossal::test::mmdit_parity_test {
namespace {

using parallel::SequenceConfig, parallel::TensorConfig;

bool runs_all() { return std::getenv("COLOSSAL_ALL_LAYOUTS") != nullptr; }

ParityCase case_of(const models::ModelShape& shape) {
  return {.shape = shape, .batch = 2, .sequence = 13, .steps = runs_all() ? 2 : 1};
}

void both(ParityCase c) {
  EXPECT_NO_THROW(check_parity(c));
  c.collectives_off = true;
  c.steps = 1;
  EXPECT_THROW(check_parity(c), ParityError);
}

/// Returns the case with the fewest rows, two or more, that it can divide.
ParityCase with_rows(ParityCase c) {
  const int64_t parts = c.data * parallel::batch_parts(c.tensor) * (c.pipeline.size > 1 ? c.pipeline.micro_batches : 1);
  c.batch = std::max<int64_t>(2, parts);
  return c;
}

std::vector<TensorConfig> tensor_layouts() {
  if (!runs_all()) return {{.size = 2, .sequence = true}, {.size = 3}};
  std::vector<TensorConfig> modes = tensor_modes();
  std::erase_if(modes, [](const TensorConfig& t) { return t.sequence && t.size == 3; });  // of 8 patches
  modes.push_back({.size = 5});
  return modes;
}

TEST(Mmdit, EqualsSingleProcessInEveryTensorMode) {
  for (const TensorConfig& tensor : tensor_layouts())
    for (const bool is_flux : {true, false}) {
      if (!is_flux && !runs_all()) continue;
      SCOPED_TRACE(name_of(tensor) + (is_flux ? "_flux" : "_sd3"));
      ParityCase c = case_of(is_flux ? tiny_flux(4) : tiny_sd3(4));
      c.tensor = tensor;
      both(with_rows(c));
    }
}

// Five words do not divide: the first rank has more of them.
TEST(Mmdit, EqualsSingleProcessInEverySequenceMode) {
  for (const SequenceConfig& sequences : sequence_modes())
    for (const bool is_flux : {true, false}) {
      const bool is_fast = is_flux ? sequences.mode == "ring" || sequences.mode == "usp" : sequences.mode == "gather";
      if (!is_fast && !runs_all()) continue;
      SCOPED_TRACE(sequences.mode + (is_flux ? "_flux" : "_sd3"));
      ParityCase c = case_of(is_flux ? tiny_flux() : tiny_sd3());
      c.sequences = sequences;
      both(c);
    }
}

// A caption of as many words as patches is divided as the patches are.
TEST(Mmdit, EqualsSingleProcessWithAsManyWordsAsPatches) {
  models::ModelShape shape = tiny_flux();
  auto own = shape.own.as<models::MmditSizes>();
  own.height = 2, own.width = 10;  // of five patches, in unequal runs
  shape.own = own;
  shape.architecture->settle(shape);
  ParityCase c = case_of(shape);
  c.sequences = {.size = 2, .mode = "gather"};
  c.pipeline = {.size = 2, .schedule = "1f1b", .micro_batches = 2};
  EXPECT_NO_THROW(check_parity(with_rows(c)));
}

TEST(Mmdit, EqualsSingleProcessInProductsOfSequenceAndTensorModes) {
  for (const SequenceConfig& sequences : sequence_modes())
    for (const TensorConfig& tensor :
         std::vector<TensorConfig>{{.size = 2}, {.size = 2, .sequence = true}, {.size = 4, .mode = "2d"}}) {
      if (!runs_all() && (sequences.mode != "ring" || !tensor.sequence)) continue;
      if (sequences.size > 2) continue;
      SCOPED_TRACE(sequences.mode + "_" + name_of(tensor));
      ParityCase c = case_of(tiny_flux(4));
      c.sequences = sequences;
      c.tensor = tensor;
      both(with_rows(c));
    }
}

TEST(Mmdit, EqualsSingleProcessWithReplicasThatShardParameters) {
  ParityCase c = case_of(tiny_flux(4));
  c.data = 2;
  c.tensor = {.size = 2};
  c.zero = 3;
  c.recompute = "block";
  both(with_rows(c));
}

TEST(Mmdit, EqualsSingleProcessInPipelines) {
  ParityCase c = case_of(tiny_flux());
  c.pipeline = {.size = 2, .schedule = "zero-bubble-h1", .micro_batches = 2};
  c.recompute = "selective";
  EXPECT_NO_THROW(check_parity(with_rows(c)));
  c.sequences = {.size = 2, .mode = "ulysses"};
  c.pipeline.schedule = "1f1b";
  EXPECT_NO_THROW(check_parity(with_rows(c)));
  c.shape = tiny_sd3(4);
  c.sequences = {};
  c.tensor = {.size = 2, .sequence = true};
  EXPECT_NO_THROW(check_parity(with_rows(c)));
}

TEST(Mmdit, FailsIfAStateIsLostBetweenStages) {
  ParityCase c = case_of(tiny_flux());
  c.pipeline = {.size = 2, .schedule = "1f1b", .micro_batches = 2};
  c.steps = 1;
  for (const int transfer : {0, 1, 2}) {  // patches, words and the condition of the first micro-batch
    c.lost_transfer = transfer;
    EXPECT_THROW(check_parity(c), ParityError) << transfer;
  }
}

TEST(Mmdit, ChangesNoBitIfBlocksAreRecomputed) {
  for (const char* recompute : {"selective", "block"}) {
    ParityCase c = case_of(tiny_flux());
    c.recompute = recompute;
    c.bitwise = true;
    check_parity(c);
  }
}

}  // namespace
}  // namespace colossal::test::mmdit_parity_test
