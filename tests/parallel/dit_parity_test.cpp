// DiT, whose blocks read a conditioning vector of each row, under every layout against one process in fp64. With
// collectives off each case must fail with a ParityError, or it proves nothing.
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/models/registry.h"
#include "colossal/schedule/make.h"
#include "support/parity.h"
#include "support/tolerance.h"

namespace colossal::test::dit_parity_test {
namespace {

ParityCase dit_case() { return {.shape = tiny_dit(), .sequence = 6, .steps = 3}; }

void both(ParityCase c) {
  EXPECT_NO_THROW(check_parity(c));
  c.collectives_off = true;
  c.steps = 1;
  EXPECT_THROW(check_parity(c), ParityError);
}

/// Returns the case with the fewest rows of at least four that it can divide.
ParityCase with_rows(ParityCase c) {
  const int64_t parts = c.data * parallel::batch_parts(c.tensor) * (c.pipeline.size > 1 ? c.pipeline.micro_batches : 1);
  c.batch = parts * std::max<int64_t>(1, 4 / parts);
  return c;
}

TEST(Dit, EqualsSingleProcessInEveryTensorMode) {
  for (const parallel::TensorConfig& tensor : tensor_modes()) {
    if (tensor.size > 12) continue;
    SCOPED_TRACE(name_of(tensor));
    ParityCase c = dit_case();
    c.tensor = tensor;
    both(with_rows(c));
  }
}

TEST(Dit, EqualsSingleProcessWithReplicasThatShardParameters) {
  for (const parallel::TensorConfig& tensor :
       std::vector<parallel::TensorConfig>{{}, {.size = 2}, {.size = 2, .sequence = true}, {.size = 4, .mode = "2d"}}) {
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
  for (const parallel::SequenceConfig& sequences : sequence_modes()) {
    SCOPED_TRACE(sequences.mode);
    ParityCase c = dit_case();
    c.sequences = sequences;
    both(c);
    if (sequences.size > 2) continue;
    c.tensor = {.size = 2};
    both(c);
  }
  ParityCase c = dit_case();
  c.sequences = {.size = 3, .mode = "ring"};
  c.tensor = {.size = 2, .sequence = true};
  both(c);
}

TEST(Dit, EqualsSingleProcessUnderEverySchedule) {
  for (const schedule::Family& family : schedule::families()) {
    SCOPED_TRACE(family.name);
    ParityCase c = dit_case();
    c.shape.layers = 4;
    c.pipeline = {.size = 2, .schedule = family.name, .micro_batches = 4};
    EXPECT_NO_THROW(check_parity(with_rows(c)));
  }
}

// The condition is sent from stage to stage, split as hidden states are.
TEST(Dit, EqualsSingleProcessInPipelinesOfTensorAndSequenceModes) {
  for (const parallel::TensorConfig& tensor : std::vector<parallel::TensorConfig>{
           {.size = 2}, {.size = 2, .sequence = true}, {.size = 4, .mode = "2d"}, {.size = 8, .mode = "3d"}}) {
    SCOPED_TRACE(name_of(tensor));
    ParityCase c = dit_case();
    c.tensor = tensor;
    c.pipeline = {.size = 2, .schedule = "zero-bubble-h1", .micro_batches = 2};
    c.recompute = "selective";
    both(with_rows(c));
  }
  ParityCase c = dit_case();
  c.sequences = {.size = 2, .mode = "ulysses"};
  c.pipeline = {.size = 2, .schedule = "1f1b", .micro_batches = 2};
  both(with_rows(c));
}

TEST(Dit, FailsIfTheConditionIsLostBetweenStages) {
  ParityCase c = dit_case();
  c.shape.layers = 4;
  c.pipeline = {.size = 2, .schedule = "1f1b", .micro_batches = 2};
  c.steps = 1;
  for (const int transfer : {0, 1}) {  // hidden state and condition
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
