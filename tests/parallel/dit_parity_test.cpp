// DiT, whose blocks read a conditioning vector of each row, under every layout against one process in fp64: losses,
// gradients, and weights after some steps. With collectives off each case must fail with a ParityError, or it proves
// nothing. COLOSSAL_ALL_LAYOUTS=1 runs products of layouts that a fast run leaves out.
#include <gtest/gtest.h>

#include <cstdlib>

#include "colossal/base/error.h"
#include "colossal/models/families/dit.h"
#include "colossal/models/registry.h"
#include "colossal/schedule/make.h"
#include "support/parity.h"
#include "support/tolerance.h"

namespace colossal::test::dit_parity_test {
namespace {

using parallel::SequenceConfig, parallel::TensorConfig;

bool runs_all() { return std::getenv("COLOSSAL_ALL_LAYOUTS") != nullptr; }

ParityCase dit_case() { return {.shape = tiny_dit(), .batch = 2, .sequence = 8, .steps = 2}; }

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

/// Returns a layout of each form of the modulation: whole features of whole rows or of tokens, where the matrix divides
/// or has padding; features that are split, with rows that are the same inside or not.
std::vector<TensorConfig> tensor_layouts() {
  if (!runs_all())
    return {{.size = 5}, {.size = 2, .sequence = true}, {.size = 4, .mode = "2d"}, {.size = 8, .mode = "3d"}};
  std::vector<TensorConfig> modes = tensor_modes();
  std::erase_if(modes, [](const TensorConfig& t) { return t.sequence && t.size == 3; });  // of 8 tokens
  modes.push_back({.size = 5});
  return modes;
}

TEST(Dit, EqualsSingleProcessInEveryTensorMode) {
  for (const TensorConfig& tensor : tensor_layouts()) {
    SCOPED_TRACE(name_of(tensor));
    ParityCase c = dit_case();
    c.tensor = tensor;
    both(with_rows(c));
  }
}

TEST(Dit, EqualsSingleProcessWithReplicasThatShardParameters) {
  for (const TensorConfig& tensor : tensor_layouts()) {
    if (tensor.size > (runs_all() ? 9 : 2)) continue;
    SCOPED_TRACE(name_of(tensor));
    ParityCase c = dit_case();
    c.data = 2;
    c.tensor = tensor;
    c.zero = 3;
    c.recompute = "block";
    both(with_rows(c));
  }
}

TEST(Dit, EqualsSingleProcessInEverySequenceMode) {
  for (const SequenceConfig& sequences : sequence_modes()) {
    if (!runs_all() && sequences.size > 2) continue;
    SCOPED_TRACE(sequences.mode);
    ParityCase c = dit_case();
    c.sequences = sequences;
    both(c);
  }
}

TEST(Dit, EqualsSingleProcessInProductsOfSequenceAndTensorModes) {
  for (const SequenceConfig& sequences : sequence_modes())
    for (const TensorConfig& tensor :
         std::vector<TensorConfig>{{.size = 2}, {.size = 2, .sequence = true}, {.size = 4, .mode = "2d"}}) {
      if (!runs_all() && (sequences.mode != "ring" || !tensor.sequence)) continue;
      if (sequences.size > 2) continue;
      SCOPED_TRACE(sequences.mode + "_" + name_of(tensor));
      ParityCase c = dit_case();
      c.sequences = sequences;
      c.tensor = tensor;
      both(with_rows(c));
    }
}

TEST(Dit, EqualsSingleProcessUnderEverySchedule) {
  for (const schedule::Family& family : schedule::families()) {
    const std::string name = family.name;
    if (!runs_all() && name != "interleaved" && name != "zero-bubble-v" && name != "chimera") continue;
    SCOPED_TRACE(name);
    ParityCase c = dit_case();
    c.shape.layers = 4;
    c.pipeline = {.size = 2, .schedule = name, .micro_batches = 4};
    EXPECT_NO_THROW(check_parity(with_rows(c)));
  }
}

// The condition is sent from stage to stage, split as hidden states are.
TEST(Dit, EqualsSingleProcessInPipelinesOfOtherModes) {
  for (const TensorConfig& tensor : tensor_layouts()) {
    if (tensor.size > 8 || (!runs_all() && tensor.mode == "3d")) continue;
    SCOPED_TRACE(name_of(tensor));
    ParityCase c = dit_case();
    c.tensor = tensor;
    c.pipeline = {.size = 2, .schedule = "zero-bubble-h1", .micro_batches = 2};
    c.recompute = "selective";
    EXPECT_NO_THROW(check_parity(with_rows(c)));
  }
  ParityCase c = dit_case();
  c.sequences = {.size = 2, .mode = "ulysses"};
  c.pipeline = {.size = 2, .schedule = "1f1b", .micro_batches = 2};
  EXPECT_NO_THROW(check_parity(with_rows(c)));
}

TEST(Dit, FailsIfAStateIsLostBetweenStages) {
  ParityCase c = dit_case();
  c.pipeline = {.size = 2, .schedule = "1f1b", .micro_batches = 2};
  c.steps = 1;
  for (const int transfer : {0, 1}) {  // the hidden state and the condition of the first micro-batch
    c.lost_transfer = transfer;
    EXPECT_THROW(check_parity(c), ParityError) << transfer;
  }
}

TEST(Dit, ChangesNoBitIfBlocksAreRecomputed) {
  for (const char* recompute : {"selective", "block"}) {
    ParityCase c = dit_case();
    c.recompute = recompute;
    c.bitwise = true;
    check_parity(c);
  }
}

}  // namespace
}  // namespace colossal::test::dit_parity_test
