// The transformers of Stable Diffusion 3, FLUX and Open-Sora 2, whose words and patches attend to each other as one
// sequence, under every layout against one process in fp64: losses, gradients, and weights after some steps. With
// collectives off each case must fail with a ParityError, or it proves nothing. COLOSSAL_ALL_LAYOUTS=1 runs products of
// layouts that a fast run leaves out.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "colossal/base/error.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/models/families/mmdit.h"
#include "colossal/models/registry.h"
#include "colossal/train/placed_model.h"
#include "support/parity.h"
#include "support/thrown_message.h"
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

enum class Kind : uint8_t { Sd3, Flux, OpenSora };
constexpr std::array kKinds{Kind::Sd3, Kind::Flux, Kind::OpenSora};

models::ModelShape shape_of(Kind kind, int64_t words = 5) {
  if (kind == Kind::OpenSora) return tiny_open_sora(words);
  return kind == Kind::Flux ? tiny_flux(words) : tiny_sd3(words);
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
    for (const Kind kind : kKinds) {
      if (kind != Kind::Flux && !runs_all()) continue;
      if (kind == Kind::OpenSora && tensor.sequence && 18 % tensor.size != 0) continue;  // patches
      SCOPED_TRACE(concat(name_of(tensor), "_", static_cast<int>(kind)));
      ParityCase c = case_of(shape_of(kind, 4));
      c.tensor = tensor;
      both(with_rows(c));
    }
}

// Three frames of 2 x 3 patches.
TEST(Mmdit, EqualsSingleProcessIfFeaturesOfClipsAreSplit) {
  for (const TensorConfig& tensor :
       {TensorConfig{.size = 4, .mode = "2d"}, TensorConfig{.size = 2, .sequence = true}}) {
    ParityCase c = case_of(tiny_open_sora(4));
    c.tensor = tensor;
    EXPECT_NO_THROW(check_parity(with_rows(c))) << name_of(tensor);
  }
}

/// Returns true for the modes in which a fast run checks a model.
bool is_fast(Kind kind, const std::string& mode) {
  if (kind == Kind::Sd3) return mode == "gather";
  return kind == Kind::Flux ? mode == "ring" || mode == "usp" : mode == "ulysses";
}

// Five words do not divide: the first rank has more of them.
TEST(Mmdit, EqualsSingleProcessInEverySequenceMode) {
  for (const SequenceConfig& sequences : sequence_modes())
    for (const Kind kind : kKinds) {
      if (!is_fast(kind, sequences.mode) && !runs_all()) continue;
      SCOPED_TRACE(concat(sequences.mode, "_", static_cast<int>(kind)));
      ParityCase c = case_of(shape_of(kind));
      c.sequences = sequences;
      both(c);
    }
}

// Neither the frames, nor their rows and columns, nor all 18 patches divide by four.
TEST(Mmdit, EqualsSingleProcessIfRanksShareFrames) {
  for (const char* mode : {"ring", "gather"}) {
    ParityCase c = case_of(tiny_open_sora());
    c.sequences = {.size = 4, .mode = mode};
    EXPECT_NO_THROW(check_parity(c)) << mode;
  }
}

TEST(Mmdit, HasNoAxesBetweenWhichRanksCouldSwitch) {
  distributed::ParallelConfig config;
  config.sequence = {.size = 2, .mode = "dsp"};
  EXPECT_THAT(thrown_message([&] { distributed::check_attention_axes(config, tiny_open_sora(), "open-sora-2"); }),
              testing::HasSubstr("open-sora-2 attends over one sequence of text and video; use ring or ulysses"));
}

// The model is made for 2 x 4 patches, and the pictures have 3 x 5 or 1 x 3.
TEST(Mmdit, ChecksThePatchesOfTheBatchBeforeRanksDivideThem) {
  const auto refused = [](const distributed::ParallelConfig& config, int64_t height, int64_t width) {
    const models::ModelShape shape = tiny_flux();
    tensor::Batch batch;
    batch.add("noised", {at::zeros({1, 4, height, width}),
                         {tensor::Dim::Row, tensor::Dim::Other, tensor::Dim::Other, tensor::Dim::Other}});
    return thrown_message([&] { train::check_sizes(config, shape, batch); });
  };
  distributed::ParallelConfig runs, parts;
  runs.tensor = {.size = 2, .sequence = true};
  parts.sequence = {.size = 4, .mode = "ring"};
  EXPECT_EQ(refused(runs, 4, 8), "");
  EXPECT_THAT(refused(runs, 6, 10), testing::HasSubstr("got 15"));
  EXPECT_EQ(refused(parts, 6, 10), "");
  EXPECT_THAT(refused(parts, 2, 6), testing::HasSubstr("got rows of 3"));
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
  for (const Kind kind : {Kind::Flux, Kind::OpenSora}) {
    ParityCase c = case_of(shape_of(kind, 4));
    c.data = 2;
    c.tensor = {.size = 2};
    c.zero = 3;
    c.recompute = "block";
    both(with_rows(c));
  }
}

TEST(Mmdit, EqualsSingleProcessInPipelines) {
  ParityCase c = case_of(tiny_flux());
  c.pipeline = {.size = 2, .schedule = "zero-bubble-h1", .micro_batches = 2};
  c.recompute = "selective";
  EXPECT_NO_THROW(check_parity(with_rows(c)));
  c.sequences = {.size = 2, .mode = "ulysses"};
  c.pipeline.schedule = "1f1b";
  EXPECT_NO_THROW(check_parity(with_rows(c)));
  c.shape = tiny_open_sora();
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
  for (const Kind kind : {Kind::Flux, Kind::OpenSora})
    for (const char* recompute : {"selective", "block"}) {
      ParityCase c = case_of(shape_of(kind));
      c.recompute = recompute;
      c.bitwise = true;
      check_parity(c);
    }
}

}  // namespace
}  // namespace colossal::test::mmdit_parity_test
