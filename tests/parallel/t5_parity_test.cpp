// An encoder and a decoder under every mode of tensor parallelism, and in pipelines that split either of them, against
// one process in fp64. Parameters are shared and blocks recomputed. Each case must fail with collectives off.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/comm/run_ranks.h"
#include "colossal/train/engine.h"
#include "support/course.h"
#include "support/parity.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::test::t5_parity_test {
namespace {

/// Returns a case of nine tokens per row, of which four belong to the source.
ParityCase case_of(bool is_first, int64_t batch) {
  return {.shape = tiny_t5(is_first), .batch = batch, .sequence = 9, .steps = 3};
}

void both(ParityCase c) {
  EXPECT_NO_THROW(check_parity(c));
  c.collectives_off = true;
  c.steps = 1;
  EXPECT_THROW(check_parity(c), ParityError);
}

TEST(T5Parity, EqualsSingleProcessInEveryTensorMode) {
  // three heads, padded if they do not divide
  const parallel::TensorConfig modes[] = {{.size = 2},
                                          {.size = 3},
                                          {.size = 4, .mode = "2d"},
                                          {.size = 8, .mode = "2.5d", .depth = 2},
                                          {.size = 8, .mode = "3d"}};
  for (const parallel::TensorConfig& mode : modes)
    for (const bool is_first : {true, false}) {
      SCOPED_TRACE(name_of(mode));
      ParityCase c = case_of(is_first, 8);
      c.tensor = mode;
      both(c);
    }
}

TEST(T5Parity, EqualsSingleProcessInPipelines) {
  for (const char* schedule : {"1f1b", "interleaved", "chimera"})
    for (const int64_t size : {2, 4}) {
      SCOPED_TRACE(schedule);
      ParityCase c = case_of(true, 2 * size);
      c.shape.layers = 8;  // five of them of the encoder
      c.shape.dropout = 0.2;
      c.pipeline = {.size = size, .schedule = schedule, .micro_batches = 2 * size};
      both(c);
    }
}

TEST(T5Parity, EqualsSingleProcessWithZeroAndRecomputation) {
  for (const int64_t zero : {1, 3})
    for (const char* recompute : {"selective", "block"}) {
      SCOPED_TRACE(recompute);
      ParityCase c = case_of(false, 8);
      c.data = 2;
      c.zero = zero;
      c.recompute = recompute;
      c.accumulate = 2;
      c.shape.dropout = 0.2;
      both(c);
    }
}

TEST(T5Parity, EqualsSingleProcessWithEveryAxis) {
  ParityCase c = case_of(true, 8);
  c.data = 2;
  c.zero = 1;
  c.recompute = "block";
  c.tensor = {.size = 2};
  c.pipeline = {.size = 2, .micro_batches = 2};
  c.clip = 0.05;
  both(c);
}

// Source and completion are two messages, which together have as many elements as a row.
TEST(T5Parity, PipelinesSendTheElementsOfWholeRows) {
  const ParityCase c = case_of(true, 4);
  comm::run_ranks(2, [&](comm::World& world) {
    run::Config config = course_config();
    config.parallel.pipeline = {.size = 2, .schedule = "1f1b", .micro_batches = 2};
    config.training.batch_size = c.batch;
    const auto engine = train::initialize(world, config, c.shape);
    world.traffic().reset();
    engine->zero_grad();
    engine->train_step(random_batch(c, 0));
    const comm::Traffic::Count sent = world.traffic().total("pipeline", "send");
    EXPECT_EQ(sent.elements, static_cast<double>(c.batch * c.sequence * c.shape.hidden));
    EXPECT_EQ(sent.calls, 2 * 2) << "two states of two micro-batches";
  });
}

TEST(T5Parity, RefusesLayoutsThatSplitTokens) {
  ParityCase c = case_of(true, 8);
  c.sequence = 10;
  c.sequences = {2, "ring"};
  EXPECT_THAT(
      thrown_message([&] { check_parity(c); }),
      testing::HasSubstr("must have all tokens of a row on one rank: got a layout that splits tokens; leave out"));
  c.sequences = {};
  c.tensor = {.size = 2, .sequence = true};
  EXPECT_THAT(thrown_message([&] { check_parity(c); }),
              testing::HasSubstr("must have all tokens of a row on one rank"));
}

}  // namespace
}  // namespace colossal::test::t5_parity_test
