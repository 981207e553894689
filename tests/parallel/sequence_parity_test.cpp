// Whole models whose tokens are split over ranks against one process, alone and combined with every other kind of
// parallelism, in fp64. With collectives off each case must fail with a ParityError, or it proves nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/distributed/config.h"
#include "colossal/models/families/llama.h"
#include "colossal/schedule/make.h"
#include "colossal/train/placed_model.h"
#include "parallel/sequence_ranks.h"
#include "support/parity.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::test::sequence_parity_test {
namespace {

void both(ParityCase c) {
  EXPECT_NO_THROW(check_parity(c));
  c.collectives_off = true;
  c.steps = 1;
  EXPECT_THROW(check_parity(c), ParityError);
}

class SequenceParity : public testing::TestWithParam<std::string> {
 protected:
  /// Makes a case; usp has at least two pairs.
  ParityCase make(models::ModelShape shape, int64_t ranks, int64_t tokens, int64_t steps = 3) const {
    return {.shape = std::move(shape),
            .sequences = config_of(GetParam(), std::max(ranks, few_ranks(GetParam()))),
            .sequence = tokens,
            .steps = steps};
  }
};

// Ten steps, documents that the cut divides, and lengths that do not divide.
TEST_P(SequenceParity, Gpt2WithDropoutEqualsSingleProcess) {
  for (const auto& [ranks, tokens] : {std::pair{2, 8}, {4, 13}}) {
    ParityCase c = make(tiny_gpt2(), ranks, tokens, 10);
    c.shape.dropout = 0.3;
    both(c);
  }
}

TEST_P(SequenceParity, LlamaWithClippingEqualsSingleProcess) {
  for (const auto& [ranks, tokens] : {std::pair{4, 16}, {2, 7}}) {
    ParityCase c = make(tiny_llama(), ranks, tokens, 10);
    c.clip = 0.05;
    both(c);
  }
}

// More ranks than key-value heads; each rank's heads read another part of each of them.
TEST_P(SequenceParity, EqualsSingleProcessOnThreeAndEightRanks) {
  for (const int64_t ranks : {odd_ranks(GetParam()), int64_t{8}}) {
    ParityCase c = make(tiny_llama(), ranks, 13, 10);
    c.shape.heads = 24, c.shape.kv_heads = 2, c.shape.head_dim = 2;
    both(c);
  }
}

TEST_P(SequenceParity, EqualsSingleProcessWithWindowsAndLinearBiases) {
  ParityCase window = make(tiny_llama(), 2, 13), biased = make(tiny_biased(), 2, 16);
  window.shape.own = models::LlamaSizes{.window = 5};
  window.recompute = "selective";
  both(window);
  both(biased);
  both(make(tiny_mixed(), 2, 13));      // a window in one of its blocks
  both(make(tiny_projected(), 2, 13));  // windows in two blocks, and rotary positions that depend on the length of the
                                        // whole text
}

TEST_P(SequenceParity, EqualsSingleProcessWithDataAndZero) {
  for (const auto& [zero, sharers] : {std::pair{1, 0}, {2, 0}, {3, 0}, {3, 2}}) {
    ParityCase c = make(tiny_llama(), 2, 9);
    c.data = 2;
    c.zero = zero;
    c.zero_group = sharers;
    c.accumulate = 2;
    both(c);
  }
}

TEST_P(SequenceParity, EqualsSingleProcessWithTensorParallelism) {
  for (const parallel::TensorConfig& tensor :
       std::vector<parallel::TensorConfig>{{.size = 2}, {.size = 2, .sequence = true}, {.size = 4, .mode = "2d"}}) {
    ParityCase c = make(tiny_gpt2(), 2, tensor.sequence ? 16 : 11);
    c.shape.dropout = 0.3;
    c.tensor = tensor;
    both(c);
  }
}

// 150 tokens in two documents, of 38 and 112, which are split by pieces.
TEST_P(SequenceParity, EqualsSingleProcessForTokensSplitByDocuments) {
  ParityCase c = make(tiny_llama(), 2, 150, 2);
  c.shape.positions = 150;
  c.batch = 2;
  c.first_document = 38;
  EXPECT_NE(parallel::sequence_cut(c.sequences, c.sequence, random_batch(c, 0).at("documents")).lengths,
            parallel::sequence_cut(c.sequences, c.sequence, {}).lengths)
      << "a zigzag";
  both(c);
}

TEST_P(SequenceParity, EqualsSingleProcessInAPipelineWithRecomputation) {
  for (const char* recompute : {"block", "selective"}) {
    ParityCase c = make(tiny_gpt2(), 2, 7);
    c.pipeline.size = 2;
    c.pipeline.micro_batches = 2;
    c.recompute = recompute;
    both(c);
  }
}

TEST(SequenceParallelism, EqualsSingleProcessUnderEverySchedule) {
  for (const char* mode : {"ring", "ulysses"}) {
    ParityCase c{.shape = tiny_llama(), .sequences = {2, mode}, .sequence = 7, .steps = 2};
    c.shape.layers = 4;
    for (const schedule::Family& family : schedule::families()) {
      c.pipeline = {.size = 2, .schedule = family.name, .micro_batches = 4};
      EXPECT_NO_THROW(check_parity(c)) << mode << ", " << family.name;
    }
  }
}

TEST_P(SequenceParity, EqualsSingleProcessForMaskedTokens) {
  both(make(tiny_bert(), 2, 7));
  both(make(tiny_esm2(), 2, 7));
}

// One rank has the token that the head reads. Images have four patches and the class token, on two ranks and on four.
TEST_P(SequenceParity, EqualsSingleProcessForClassifiers) {
  for (const int64_t ranks : {2, 4}) {
    ParityCase images = make(tiny_vit(), ranks, 5), texts = make(tiny_bert("class"), ranks, 9);
    images.shape.dropout = texts.shape.dropout = 0.3;
    images.zero = 3;
    both(images);
    if (ranks == 4) both(make(tiny_deit(), ranks, 6));  // one rank has both tokens in front, or two have one each
    both(texts);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, SequenceParity, testing::ValuesIn(parallel::sequence_mode_names()));

TEST(SequenceParallelism, RefusesRowsWithFewerTokensThanRanks) {
  distributed::ParallelConfig config{.sequence = {.size = 8}};
  const auto refused = [&](int64_t tokens) {
    return thrown_message([&] { train::check_sizes(config, tiny_llama(), batch_of_ones(tiny_llama(), 1, tokens)); });
  };
  EXPECT_EQ(refused(5),
            "[parallel] each of the 8 ranks of parallel.sequence must have a token of each row: got rows of 5; raise "
            "data.sequence, or use fewer ranks");
  config.tensor = {.size = 2, .sequence = true};
  EXPECT_EQ(refused(20),
            "[parallel] with tensor.sequence the tokens of a row must be divisible by 2 * 8 (sequence.size) * 2 "
            "(tensor.size): got 20; nearest: 32");
  config.sequence.mode = "round";
  EXPECT_THAT(thrown_message([&] { config.axes(); }),
              testing::HasSubstr("[parallel] sequence.mode must be one of gather"));
}

}  // namespace
}  // namespace colossal::test::sequence_parity_test
