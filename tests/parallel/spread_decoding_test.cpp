// Text whose keys and values are split over the ranks of a sequence. Logits and greedy tokens equal one process's, in
// every mode, for any length of the prompt, with tensor parallelism and in a pipeline. The bytes that a rank keeps and
// sends are exact. The tests must fail with collectives off.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/data/batch_fields.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/generate.h"
#include "colossal/memory/account.h"
#include "colossal/models/config.h"
#include "colossal/models/families/llama.h"
#include "colossal/models/registry.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/kv_cache.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/tokens.h"
#include "colossal/parallel/sequence/decoding.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/sequence/runs.h"
#include "support/parity.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::test::spread_decoding_test {
namespace {

using distributed::DistributedModel;
using distributed::ParallelConfig;
using models::ModelShape;

constexpr int64_t kNew = 9;

/// Uses twelve heads, which all modes can exchange, and enough positions for longer texts.
ModelShape with_heads(ModelShape shape, int64_t kv_heads) {
  shape.heads = 12, shape.kv_heads = kv_heads, shape.head_dim = 4, shape.positions = 40;
  return shape;
}

ModelShape gpt2() { return with_heads(tiny_gpt2(), 12); }
ModelShape llama() { return with_heads(tiny_llama(), 6); }
ModelShape mistral() {
  ModelShape shape = with_heads(tiny_llama(), 2);
  shape.own = models::LlamaSizes{.window = 5};
  return shape;
}
ModelShape biased() { return with_heads(tiny_biased(), 3); }

std::vector<int64_t> prompt_of(const ModelShape& shape, int64_t tokens) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < tokens; ++i) ids.push_back((i * i * 5 + 3) % shape.vocabulary);
  return ids;
}

/// Computes a rank's results for prompts.
struct Decoder {
  Decoder(comm::World& world, const ModelShape& shape, const ParallelConfig& config)
      : mesh(world, config.axes()), model(mesh, config, shape, {at::kDouble, at::kCPU, 5}, {}) {
    const at::NoGradGuard no_grad;
    for (nn::Parameter& p : model.parameters())
      if (p.value.dim() > 1) p.value.mul_(20);  // otherwise all tokens are almost equally likely
  }
  std::vector<int64_t> tokens(int64_t prompt) {
    return infer::generate(model, {.prompt = prompt_of(model.model().shape, prompt), .options = {.max_tokens = kNew}});
  }
  /// Returns the logits [V] after tokens [from, to) of a text.
  at::Tensor logits(nn::AttentionCache& cache, int64_t from, int64_t to) {
    const at::NoGradGuard no_grad;
    const at::Tensor ids = at::tensor(prompt_of(model.model().shape, to), at::kLong).slice(0, from);
    const int64_t rows = model.decoding_model().batch_parts;
    return model.next_logits(nn::step_of(nn::token_batch(ids.repeat({rows, 1}), at::arange(from, to).repeat({rows, 1})),
                                         {.parts = {nn::Decoding{&cache}}}));
  }
  /// Returns the logits of a prompt, and of each of the tokens after it: [1 + kNew, V].
  at::Tensor logits(int64_t prompt) {
    const auto cache = model.make_cache(prompt + kNew);
    std::vector<at::Tensor> all{logits(*cache, 0, prompt)};
    for (int64_t to = prompt + 1; to <= prompt + kNew; ++to) all.push_back(logits(*cache, to - 1, to));
    return at::stack(all);
  }
  comm::Mesh mesh;
  DistributedModel model;
};

struct Text {
  std::vector<int64_t> tokens;
  at::Tensor logits;
  double tolerance = 0;
};

/// Returns the text of one process after a prompt. The tolerance is for other orders of the sums: in products, and over
/// the keys of attention.
Text text_of(Decoder& decoder, int64_t prompt) {
  const ModelShape& shape = decoder.model.model().shape;
  std::vector<at::Tensor> weights;
  for (nn::Parameter& p : decoder.model.parameters()) weights.push_back(p.value);
  const int64_t longest_sum =
      std::max({shape.hidden, shape.ffn, shape.heads * shape.head_dim, shape.head_dim, prompt + kNew});
  const double moved = sensitivity([&] { return decoder.logits(prompt); }, weights);
  return {decoder.tokens(prompt), decoder.logits(prompt),
          4 * std::numeric_limits<double>::epsilon() * std::sqrt(static_cast<double>(longest_sum)) * moved};
}

/// Returns the texts of one process for prompts of these lengths.
std::vector<Text> texts_of(const ModelShape& shape, const std::vector<int64_t>& prompts) {
  std::vector<Text> texts;
  comm::run_ranks(1, [&](comm::World& world) {
    Decoder decoder(world, shape, {});
    for (const int64_t prompt : prompts) texts.push_back(text_of(decoder, prompt));
  });
  return texts;
}

/// Throws ParityError on the first difference.
void check(const ModelShape& shape, const ParallelConfig& config, const std::vector<int64_t>& prompts,
           bool collectives_off = false) {
  const std::vector<Text> want = texts_of(shape, prompts);
  comm::run_ranks(static_cast<int>(config.ranks()),
                  [&](comm::World& world) {
                    Decoder decoder(world, shape, config);
                    for (size_t i = 0; i < prompts.size(); ++i) {
                      const std::string what = concat(shape.architecture->name, ", ", config.sequence.mode, " of ",
                                                      config.sequence.size, ", a prompt of ", prompts[i]);
                      expect_within(decoder.logits(prompts[i]), want[i].logits, want[i].tolerance, what + ": logits");
                      if (decoder.tokens(prompts[i]) != want[i].tokens) throw ParityError(what + ": other tokens");
                    }
                  },
                  {.collectives_off = collectives_off});
}

class SpreadDecoding : public testing::TestWithParam<std::string> {
 protected:
  /// Returns a config. In usp, pairs exchange heads, and the pairs form a ring.
  parallel::SequenceConfig of(int64_t size) const {
    return {.size = size, .mode = GetParam(), .ulysses = GetParam() == "usp" && size % 2 == 0 ? 2 : 1};
  }
};

TEST_P(SpreadDecoding, EqualsOneProcess) {
  for (const ModelShape& shape : {gpt2(), llama(), mistral(), biased()})
    for (const int64_t ranks : {2, 3, 4}) EXPECT_NO_THROW(check(shape, {.sequence = of(ranks)}, {7})) << ranks;
  EXPECT_NO_THROW(check(llama(), {.sequence = of(1)}, {7}));
}

// Ranks of parallel.expert generate the same tokens and divide the experts.
TEST(ExpertDecoding, EqualsOneProcess) {
  models::ModelConfig config{.name = "llama-tiny"};
  config.vocabulary = 43;
  config.own = models::own_keys({"experts.count=4", "experts.used=2"});
  const ModelShape shape = models::built_in().resolve(config);
  const std::vector<ParallelConfig> layouts{{.expert = {.size = 2}},
                                            {.expert = {.size = 4}},
                                            {.data = 2, .expert = {.size = 2}},
                                            {.expert = {.size = 2}, .tensor = {.size = 2}},
                                            {.expert = {.size = 2, .tensor = "split"}, .tensor = {.size = 2}},
                                            {.expert = {.size = 2}, .sequence = {2, "gather"}},
                                            {.expert = {.size = 2}, .tensor = {.size = 2, .sequence = true}},
                                            {.expert = {.size = 2}, .pipeline = {.size = 2}}};
  for (const ParallelConfig& layout : layouts)
    EXPECT_NO_THROW(check(shape, layout, {1, 7})) << "expert " << layout.expert.size << ", tensor "
                                                  << name_of(layout.tensor) << ", sequence " << layout.sequence.size;
}

TEST_P(SpreadDecoding, EqualsOneProcessWithTensorParallelismAndInAPipeline) {
  for (const parallel::TensorConfig& tensor :
       std::vector<parallel::TensorConfig>{{.size = 2}, {.size = 2, .sequence = true}, {.size = 4, .mode = "2d"}})
    EXPECT_NO_THROW(check(biased(), {.sequence = of(2), .tensor = tensor}, {1, 7})) << name_of(tensor);
  EXPECT_NO_THROW(check(gpt2(), {.sequence = of(2), .pipeline = {.size = 2}}, {1, 7}));
}

// For a prompt of one token only the merge of the ranks' results is used; a longer one uses the mode first.
TEST_P(SpreadDecoding, NeedsItsCollectives) {
  for (const int64_t prompt : {1, 7})
    EXPECT_THROW(check(llama(), {.sequence = of(2)}, {prompt}, true), ParityError) << prompt;
}

INSTANTIATE_TEST_SUITE_P(Modes, SpreadDecoding, testing::ValuesIn(parallel::sequence_mode_names()));

// Prompts shorter than the number of ranks, and longer ones that divide or do not.
TEST(SpreadPrompts, EqualsOneProcessForAnyLength) {
  for (const ModelShape& shape : {mistral(), biased()})
    EXPECT_NO_THROW(check(shape, {.sequence = {4, "ring"}}, {1, 3, 13, 24}));
}

// Under a window that spans half of the prompt a zigzag is uneven, so the cache is filled with many runs per rank.
TEST(SpreadPrompts, EqualsOneProcessForABalancedCut) {
  constexpr int64_t kPrompt = 256, kWindow = 128;
  ModelShape shape = mistral();
  shape.positions = kPrompt + kNew, shape.own = models::LlamaSizes{.window = kWindow};
  for (const parallel::SequenceConfig& config :
       std::vector<parallel::SequenceConfig>{{2, "ring"}, {.size = 4, .mode = "ring", .node = 2}}) {
    const auto cut = parallel::sequence_cut(config, kPrompt, {}, {{.window = kWindow}});
    EXPECT_GT(parallel::runs_of(cut, 0, config.size).size(), 2u);
    EXPECT_NO_THROW(check(shape, {.sequence = config}, {kPrompt})) << config.size;
  }
}

TEST(SpreadTokens, DifferFromEachOther) {
  const std::vector<int64_t> tokens = texts_of(llama(), {7}).front().tokens;
  EXPECT_EQ(tokens.size(), static_cast<size_t>(kNew));
  EXPECT_GE(std::set<int64_t>(tokens.begin(), tokens.end()).size(), 4u);
}

// A prompt sends keys and values to all others, and the last hidden state to all. A later token sends one result and
// one sum for each head, for any length of the text.
TEST(SpreadTraffic, SendsAResultAndASumPerHeadForAToken) {
  const ModelShape shape = llama();
  for (const int64_t ranks : {2, 3, 4})
    comm::run_ranks(static_cast<int>(ranks), [&](comm::World& world) {
      Decoder decoder(world, shape, {.sequence = {ranks, "ring"}});
      const auto cache = decoder.model.make_cache(24 + kNew);
      const auto sent = [&] { return world.traffic().total("", "").elements; };
      const auto n = static_cast<double>(ranks), layers = static_cast<double>(shape.layers);
      world.traffic().reset();
      decoder.logits(*cache, 0, 24);
      const auto keys = static_cast<double>(2 * 24 * shape.kv_heads * shape.head_dim);
      EXPECT_DOUBLE_EQ(sent(), (n - 1) / n * (layers * keys + static_cast<double>(shape.hidden)));
      for (int64_t to = 25; to < 24 + kNew; ++to) {
        world.traffic().reset();
        decoder.logits(*cache, to - 1, to);
        EXPECT_EQ(sent(), layers * (n - 1) * static_cast<double>(shape.heads * (shape.head_dim + 1)));
        EXPECT_EQ(world.traffic().total("", "").calls, shape.layers);
      }
    });
}

constexpr int64_t kRows = 2, kLayers = 3, kHeads = 2, kSize = 8;

/// A rank's cache after a prompt and `more` tokens, and its bytes.
struct Filled {
  Filled(const parallel::SequenceConfig& config, int64_t rank, int64_t prompt, int64_t more, int64_t capacity)
      : cache(capacity, rank, config.size) {
    const memory::Account account;
    const nn::ForwardContext dealt{
        .cut = std::make_shared<const nn::SequenceCut>(parallel::sequence_cut(config, prompt, {}))};
    share = parallel::size_of(parallel::runs_of(*dealt.cut, rank, config.size));
    append(dealt, share, prompt);
    for (int64_t i = 0; i < more; ++i) append({}, 1, 1);
    bytes = account.usage().total;
  }
  void append(const nn::ForwardContext& step, int64_t own, int64_t tokens) {
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const at::Tensor x = at::ones({kRows, own, kHeads, kSize}, at::kDouble);
      const nn::KeysValues held = cache.append(layer, x, x, step);
      int64_t positions = 0;
      for (const nn::KeyPositions& p : held.part.value()) positions += p.size;
      EXPECT_EQ(held.k.size(1), positions);
    }
    cache.advance(step, tokens);
  }
  parallel::SpreadCache cache;
  int64_t share = 0, bytes = 0;
};

TEST(SpreadCache, TakesAShareOfTheBytesAndFillsEvenly) {
  for (const parallel::SequenceConfig& config :
       std::vector<parallel::SequenceConfig>{{2, "ring"}, {3, "gather"}, {4, "usp", 2}, {8, "usp", 4}})
    for (const int64_t prompt : {8, 13, 29})
      for (const int64_t more : {0, 1, 30}) {
        const int64_t capacity = prompt + more;
        std::vector<int64_t> found(capacity);
        for (int64_t rank = 0; rank < config.size; ++rank) {
          const Filled filled(config, rank, prompt, more, capacity);
          const int64_t most = std::max((capacity + config.size - 1) / config.size, filled.share);
          EXPECT_LE(filled.share, (prompt + config.size - 1) / config.size + (config.mode == "usp" ? 1 : 0));
          EXPECT_EQ(filled.bytes, 2 * kLayers * kRows * most * kHeads * kSize * 8);
          EXPECT_THAT(filled.cache.lengths(), testing::ElementsAre(capacity));
          for (const nn::KeyPositions& p : filled.cache.held().own)
            for (int64_t i = 0; i < p.size; ++i) ++found.at(p.first + i * p.stride);
          const auto [least, largest] =
              std::minmax_element(filled.cache.held().counts.begin(), filled.cache.held().counts.end());
          EXPECT_LE(*largest - *least, more == 30 || config.mode != "usp" ? 1 : 2) << config.mode << " of " << prompt;
          EXPECT_LE(filled.cache.held().own.size(), 6u) << "tokens in turn are one series";
        }
        EXPECT_THAT(found, testing::Each(1)) << "each token is kept by one rank";
      }
}

TEST(SpreadCache, RefusesUnsupportedSteps) {
  parallel::SpreadCache cache(4, 0, 2);
  const auto refused = [&](int64_t tokens, const nn::ForwardContext& step) {
    const at::Tensor x = at::zeros({1, tokens, 2, 8});
    return thrown_message([&] { cache.append(0, x, x, step); });
  };
  EXPECT_EQ(refused(5, {}), "[kv_cache] the sequence must fit the cache: got 5 tokens, capacity 4");
  EXPECT_EQ(refused(2, {.parts = {nn::Sequences{{1, 1}}}}),
            "[kv_cache] with a cache shared by ranks a row must be one sequence: got 2; continue one prompt at a time, "
            "or without parallel.sequence");
  EXPECT_EQ(refused(3, {.cut = std::make_shared<const nn::SequenceCut>(parallel::zigzag(4, 2))}),
            "[kv_cache] a step must have the 2 tokens that its cut assigns to this rank: got 3");
}

// All ranks refuse alike, before anything is sent.
TEST(SpreadDecodingLimits, ExplainsItsLimits) {
  comm::run_ranks(2, [](comm::World& world) {
    Decoder decoder(world, gpt2(), {.sequence = {2, "ring"}});
    const auto documents = at::zeros({1, 4}, at::kLong);
    const auto pass = [&](nn::AttentionCache* cache, int64_t tokens, const at::Tensor& documents) {
      const at::NoGradGuard no_grad;
      return thrown_message([&] {
        const at::Tensor ones = at::ones({1, tokens}, at::kLong);
        decoder.model.next_logits(nn::step_of(data::text_batch(ones, ones, at::arange(tokens).unsqueeze(0), documents),
                                              {.parts = {nn::Decoding{cache}}}));
      });
    };
    EXPECT_THAT(pass(nullptr, 4, {}), testing::HasSubstr("decoding needs a cache: got a step without one"));
    nn::KvCache whole(8);
    EXPECT_THAT(pass(&whole, 4, {}), testing::HasSubstr("[kv_cache] a step must have all tokens of each sequence"));
    EXPECT_THAT(pass(&whole, 1, {}), testing::HasSubstr("must share a cache: got a cache of whole sequences; use the "
                                                        "one that DistributedModel::make_cache returns"));
    const auto cache = decoder.model.make_cache(8);
    EXPECT_THAT(pass(cache.get(), 4, documents),
                testing::HasSubstr("a cache must be filled by one prompt of one document"));
    EXPECT_THAT(pass(cache.get(), 1, documents.narrow(1, 0, 1)),
                testing::HasSubstr("must be causal and over one document"));
    EXPECT_THAT(pass(cache.get(), 9, {}),
                testing::HasSubstr("the sequence must fit the cache: got 9 tokens, capacity 8"));
    EXPECT_EQ(pass(cache.get(), 4, {}), "");
    const nn::ForwardContext more =
        nn::step_of(nn::token_batch(at::ones({1, 4}, at::kLong), at::arange(4).unsqueeze(0)),
                    {.parts = {nn::Decoding{cache.get()}}});
    EXPECT_THAT(thrown_message([&] {
                  decoder.model.forward(
                      {more}, [](int, const models::States& end, const nn::ForwardContext&) { return end[0]; });
                }),
                testing::HasSubstr("got a cache that holds tokens"));
  });
  EXPECT_THAT(thrown_message([] { check(with_heads(tiny_gpt2(), 12), {.sequence = {5, "ulysses"}}, {7}); }),
              testing::HasSubstr("the 12 attention heads of a rank must be divisible by the 5 ranks"));
}

TEST(SpreadDecodingLimits, ExplainsLimitsOfAttention) {
  comm::run_ranks(2, [](comm::World& world) {
    const parallel::SequenceConfig config{2, "ring"};
    comm::Mesh mesh(world, parallel::sequence_axes(config));
    const parallel::Layout layout = parallel::with_spread_cache(parallel::make_layout({}, mesh), config);
    const nn::AttentionShape shape{8, 2, 2, 4};
    const at::Tensor x = at::ones({1, 1, 2, 4});
    parallel::SpreadCache cache(8, world.rank(), 2);
    const auto refused = [&](const std::unique_ptr<nn::Attention>& attention) {
      return thrown_message([&] { attention->forward({x, x, x, {}}, {.parts = {nn::Decoding{&cache}}}); });
    };
    EXPECT_THAT(refused(layout.attention(0, shape, {.causal = false})),
                testing::HasSubstr("with a cache shared by parallel.sequence attention must be causal and over one "
                                   "document: got bidirectional attention"));
    EXPECT_THAT(refused(nn::whole_attention(0, shape, {})),
                testing::HasSubstr("attention of whole sequences needs all keys of a cache: got some of them"));
    EXPECT_EQ(refused(layout.attention(0, shape, {})), "");
  });
}

}  // namespace
}  // namespace colossal::test::spread_decoding_test
