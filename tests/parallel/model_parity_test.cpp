// Whole models under every small layout against one process, in fp64: losses, input gradient, every parameter
// gradient, gradient norms, and weights after ten steps. With collectives off each case must fail with a ParityError,
// or it proves nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/comm/simulated_world.h"
#include "colossal/models/families/deepseek.h"
#include "colossal/models/families/falcon.h"
#include "colossal/models/families/gpt2.h"
#include "colossal/models/families/llama.h"
#include "colossal/models/families/opt.h"
#include "colossal/models/families/vit.h"
#include "colossal/models/registry.h"
#include "colossal/train/engine.h"
#include "support/parity.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::test::model_parity_test {
namespace {

struct Layout {
  int data;
  int64_t tensor;
  const char* mode = "1d";
  int64_t depth = 1;
  bool sequence = false, keep_gathered = false;
};

void PrintTo(const Layout& l, std::ostream* out) {
  *out << "data" << l.data << "_tensor" << l.tensor;
  if (l.mode[0] != '1') *out << "_" << (l.mode[1] == '.' ? "2_5" : std::string(l.mode, 1)) << "d";
  if (l.depth > 1) *out << l.depth;
  if (l.sequence) *out << "_sequence" << (l.keep_gathered ? "_kept" : "");
}

class ModelParity : public testing::TestWithParam<Layout> {
 protected:
  ParityCase make(models::ModelShape shape) const {
    const Layout& l = GetParam();
    ParityCase c{.shape = std::move(shape), .data = l.data};
    c.tensor = {
        .size = l.tensor, .mode = l.mode, .depth = l.depth, .keep_gathered = l.keep_gathered, .sequence = l.sequence};
    c.batch = c.data * parallel::batch_parts(c.tensor);
    c.batch *= std::max<int64_t>(1, 4 / c.batch);
    return c;
  }
  void both(ParityCase c) const {
    EXPECT_NO_THROW(check_parity(c));
    c.collectives_off = true;
    c.steps = 1;
    EXPECT_THROW(check_parity(c), ParityError);
  }
};

// Two families whose blocks and ends share nothing except the layers. The first has masked dropout, learned positions
// and a tied head. The second has rotary positions, grouped heads, gates, an untied head, and clipping by the norm
// over all ranks.
TEST_P(ModelParity, Gpt2WithDropoutEqualsSingleProcess) {
  ParityCase c = make(tiny_gpt2());
  c.shape.dropout = 0.3;
  both(c);
}
TEST_P(ModelParity, LlamaWithClippingEqualsSingleProcess) {
  ParityCase c = make(tiny_llama());
  c.clip = 0.05;
  both(c);
}

INSTANTIATE_TEST_SUITE_P(Layouts, ModelParity,
                         testing::Values(Layout{1, 2}, Layout{1, 4}, Layout{2, 1}, Layout{4, 1}, Layout{2, 2},
                                         Layout{4, 2}, Layout{2, 4}, Layout{1, 4, "2d"}, Layout{2, 4, "2d"},
                                         Layout{1, 8, "2.5d", 2}, Layout{2, 4, "2.5d", 4}, Layout{1, 8, "3d"},
                                         Layout{2, 8, "3d"}),
                         testing::PrintToStringParamName());

/// A DeiT whose classes are the mean of two heads.
models::ModelShape distilled_deit() {
  models::ModelShape shape = tiny_deit();
  auto sizes = shape.own.as<models::VitSizes>();
  sizes.distillation_head = true;
  shape.own = sizes;
  return shape;
}

TEST(DistilledDeit, RefusesLayoutsThatSplitTheTokensOfAnImage) {
  const ParityCase sequences{.shape = distilled_deit(), .sequences = {2, "ring"}, .sequence = 6, .steps = 1};
  EXPECT_THAT(thrown_message([&] { check_parity(sequences); }),
              testing::HasSubstr("must have all tokens of an image on one rank: got a layout that splits tokens"));
  ParityCase tensor{.shape = distilled_deit(), .tensor = {.size = 2, .sequence = true}, .sequence = 6, .steps = 1};
  EXPECT_THAT(thrown_message([&] { check_parity(tensor); }), testing::HasSubstr("set parallel.sequence.size = 1"));
}

TEST(DistilledDeit, RefusesSplitTokensOnEveryStageBeforeSending) {
  run::Config config;
  config.parallel.pipeline.size = 2;
  config.parallel.tensor = {.size = 2, .sequence = true};
  for (int rank = 0; rank < 4; ++rank) {
    const auto alone = comm::make_simulated_world(rank, 4);
    const auto start = [&](const models::ModelShape& shape) {
      return thrown_message([&] { train::initialize(*alone, config, shape, at::kMeta); });
    };
    EXPECT_THAT(start(distilled_deit()), testing::HasSubstr("must have all tokens of an image on one rank")) << rank;
    EXPECT_EQ(start(tiny_deit()), "") << rank;
  }
}

/// Features that depend on the mode and not on the number of its ranks: one layout of each mode.
class ModeModelParity : public ModelParity {
 protected:
  ParityCase make_short(models::ModelShape shape) const {
    ParityCase c = make(std::move(shape));
    c.steps = 3;
    return c;
  }
};

// The blocks are the same as above; only the ends differ.
TEST_P(ModeModelParity, EndsOfVitAndBertEqualSingleProcess) {
  both(make_short(tiny_vit()));
  both(make_short(tiny_deit()));
  ParityCase distilled = make_short(distilled_deit());
  distilled.tensor.sequence = false;
  both(distilled);
  both(make_short(tiny_bert("masked-token")));
  both(make_short(tiny_bert("class")));
}

// Each rank knows the share of masked tokens, whichever of them it has.
TEST_P(ModeModelParity, Esm2EqualsSingleProcess) { both(make_short(tiny_esm2())); }

// Latent attention with and without a latent of queries, and heads that are padded.
TEST_P(ModeModelParity, DeepseekEqualsSingleProcess) {
  both(make_short(tiny_deepseek()));
  models::ModelShape shape = tiny_deepseek();
  auto own = shape.own.as<models::DeepseekSizes>();
  own.q_rank = 0;
  shape.own = own;
  shape.heads = shape.kv_heads = 5;
  both(make_short(shape));
}

TEST_P(ModeModelParity, BlocksOfEveryVariantEqualSingleProcess) {
  both(make_short(tiny_mixed()));
  both(make_short(tiny_projected()));
}

// 5 heads and 3 kv groups have no common divisor with the ranks: padded heads, padded ffn, padded vocabulary.
TEST_P(ModeModelParity, SizesThatDoNotDivideEqualSingleProcess) {
  models::ModelShape odd = tiny_gpt2();
  odd.heads = odd.kv_heads = 5;
  odd.ffn = 27;
  both(make_short(odd));
  models::ModelShape grouped = tiny_llama();
  grouped.heads = 6;
  grouped.kv_heads = 3;
  both(make_short(grouped));
}

TEST_P(ModeModelParity, EqualsSingleProcessWithASharedKvHeadAndAWindow) {
  models::ModelShape shape = tiny_llama();
  shape.kv_heads = 1;
  shape.own = models::LlamaSizes{.window = 2};
  both(make_short(shape));
}

TEST_P(ModeModelParity, AccumulationEqualsSingleProcess) {
  ParityCase c = make_short(tiny_gpt2());
  c.batch *= 2;
  c.accumulate = 2;
  both(c);
}

INSTANTIATE_TEST_SUITE_P(Modes, ModeModelParity,
                         testing::Values(Layout{2, 4}, Layout{2, 4, "2d"}, Layout{1, 8, "2.5d", 2}, Layout{2, 8, "3d"}),
                         testing::PrintToStringParamName());

/// Returns small models with the features that only families of GPT have. PaLM: norms without biases and scaled logits
/// over one kv head. BLOOM: ALiBi and a norm after the embedding. OPT: an embedding narrower than the hidden states.
/// Falcon: groups with two norms and weaker ALiBi. GPT-2: scores scaled by layer.
std::vector<models::ModelShape> gpt_families() {
  const auto tiny = [](const char* name, models::OwnSizes own, int64_t kv_heads) {
    return models::ModelShape{.architecture = models::built_in().at(name),
                              .vocabulary = 37,
                              .hidden = 24,
                              .layers = 2,
                              .heads = 4,
                              .kv_heads = kv_heads,
                              .head_dim = 6,
                              .ffn = 96,
                              .positions = 16,
                              .own = std::move(own)};
  };
  return {tiny("palm", {}, 1), tiny("bloom", {}, 4),
          tiny("opt", models::OptSizes{.norm_first = false, .word_features = 12}, 4),
          tiny("falcon", models::FalconSizes{.norms = 2, .alibi = true}, 2),
          tiny("gpt2", models::Gpt2Sizes{.activation = "relu", .scale_scores_by_layer = true}, 4)};
}

TEST_P(ModeModelParity, FamiliesOfGptEqualSingleProcess) {
  for (const models::ModelShape& shape : gpt_families()) {
    SCOPED_TRACE(shape.architecture->name);
    both(make_short(shape));
  }
}

/// Megatron's sequence form, for text; images are refused.
class SequenceModelParity : public ModelParity {
 protected:
  ParityCase make_text(models::ModelShape shape) const {
    ParityCase c = make(std::move(shape));
    c.sequence = c.tensor.size == 4 ? 8 : 6;
    return c;
  }
};

TEST_P(SequenceModelParity, Gpt2EqualsSingleProcess) {
  ParityCase c = make_text(tiny_gpt2());
  c.shape.dropout = 0.3;
  both(c);
}
TEST_P(SequenceModelParity, FamiliesOfGptEqualSingleProcess) {
  for (const models::ModelShape& shape : gpt_families()) {
    SCOPED_TRACE(shape.architecture->name);
    ParityCase c = make_text(shape);
    c.steps = 3;
    both(c);
  }
}
TEST_P(SequenceModelParity, LlamaEqualsSingleProcess) { both(make_text(tiny_llama())); }
TEST_P(SequenceModelParity, DeepseekEqualsSingleProcess) { both(make_text(tiny_deepseek())); }
TEST_P(SequenceModelParity, EncodersEqualSingleProcess) {
  for (const models::ModelShape& shape : {tiny_bert(), tiny_esm2()}) {
    ParityCase c = make_text(shape);
    c.steps = 3;
    both(c);
  }
}

TEST_P(SequenceModelParity, SizesThatDoNotDivideAndMicroBatchesEqualSingleProcess) {
  models::ModelShape shape = tiny_llama();
  shape.heads = 6;
  shape.kv_heads = 3;
  ParityCase c = make_text(shape);
  c.batch *= 2;
  c.accumulate = 2;
  c.clip = 0.05;
  both(c);
}

INSTANTIATE_TEST_SUITE_P(Layouts, SequenceModelParity,
                         testing::Values(Layout{1, 2, "1d", 1, true}, Layout{2, 3, "1d", 1, true},
                                         Layout{1, 4, "1d", 1, true, true}),
                         testing::PrintToStringParamName());

// One rank has the token that the head reads. Images have four patches and the class token; texts are tested as well.
TEST(SequenceForm, EqualsSingleProcessForClassifiers) {
  ParityCase images{.shape = tiny_vit(), .tensor = {.size = 5, .sequence = true}, .sequence = 5, .steps = 3};
  ParityCase texts{.shape = tiny_bert("class"), .tensor = {.size = 2, .sequence = true}, .steps = 3};
  texts.shape.dropout = 0.3;
  for (ParityCase c : {images, texts}) {
    EXPECT_NO_THROW(check_parity(c));
    c.collectives_off = true;
    EXPECT_THROW(check_parity(c), ParityError);
  }
}

TEST(SequenceForm, EqualsSingleProcessForBlocksOfEveryVariant) {
  for (const models::ModelShape& shape : {tiny_mixed(), tiny_projected()}) {
    ParityCase c{.shape = shape, .tensor = {.size = 2, .sequence = true}, .steps = 3};
    EXPECT_NO_THROW(check_parity(c)) << shape.architecture->name;
    c.collectives_off = true;
    EXPECT_THROW(check_parity(c), ParityError) << shape.architecture->name;
  }
}

/// Larger grids, where rows and columns of three reveal errors that two would hide.
class WideModelParity : public ModelParity {};

TEST_P(WideModelParity, LlamaEqualsSingleProcess) {
  ParityCase c = make(tiny_llama());
  c.steps = 3;
  c.clip = 0.05;
  both(c);
}

INSTANTIATE_TEST_SUITE_P(Layouts, WideModelParity,
                         testing::Values(Layout{1, 9, "2d"}, Layout{1, 12, "2.5d", 3}, Layout{1, 18, "2.5d", 2},
                                         Layout{1, 27, "3d"}),
                         testing::PrintToStringParamName());

// Ends that the blocks of LLaMA do not cover: learned positions, patches and a class token, dense and tied heads.
TEST(WideEnds, EqualsSingleProcessIn2d) {
  for (const models::ModelShape& shape : {tiny_gpt2(), tiny_vit(), tiny_bert()}) {
    ParityCase c{.shape = shape, .tensor = {.size = 9, .mode = "2d"}, .batch = 6, .steps = 3, .clip = 0.05};
    EXPECT_NO_THROW(check_parity(c)) << shape.architecture->name;
    c.collectives_off = true;
    c.steps = 1;
    EXPECT_THROW(check_parity(c), ParityError) << shape.architecture->name;
  }
}

}  // namespace
}  // namespace colossal::test::model_parity_test
