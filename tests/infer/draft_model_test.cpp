// Draft tokens of a smaller model: completions keep the distribution that they have without them, in every layout and
// for any cache size.
#include "colossal/infer/decoding/draft_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "colossal/base/json.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/infer/decoding/schema_cache.h"
#include "colossal/infer/engine.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/run/saved_model.h"
#include "colossal/text/tokenizers/byte.h"
#include "support/generated_text.h"
#include "support/thrown_message.h"

namespace colossal::infer::draft_model_test {
namespace {

using Tokens = std::vector<int64_t>;
using distributed::DistributedModel;
using distributed::ParallelConfig;

class DraftModel : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { test::write_model(folder, GetParam()); }

  /// The draft model is the model quantized to 8 bits.
  void with_models(const ParallelConfig& layout,
                   const std::function<void(DistributedModel&, DistributedModel&)>& work) {
    comm::run_ranks(static_cast<int>(layout.ranks()), [&](comm::World& world) {
      comm::Mesh mesh(world, layout.axes());
      const auto loaded = [&](const nn::WeightPacking& packing) {
        return run::load_model(folder / "hf", mesh, layout, at::kCPU, {.tokenizer = "none", .packing = packing});
      };
      const run::SavedModel model = loaded({}), draft = loaded({.bits = 8, .group = 64});
      work(*model.model, *draft.model);
    });
  }

  test::TemporaryFolder folder;
};

struct Said {
  std::vector<Tokens> answers;
  Engine::DraftCounts draft_counts;
  int64_t preempted;
};

Said said(DistributedModel& model, const std::vector<Request>& requests, const EngineOptions& options) {
  Engine engine(model, options);
  Said all{std::vector<Tokens>(requests.size()), {}, 0};
  size_t added = 0;
  while (added < requests.size() || engine.has_work()) {
    for (int i = 0; i < 3 && added < requests.size(); ++i, ++added)
      engine.add(requests[added], [&own = all.answers[added]](const Event& event) {
        if (event.is_answer()) own.push_back(event.token);
      });
    engine.step();
  }
  all.draft_counts = engine.draft_counts(), all.preempted = engine.counts().preempted;
  return all;
}

std::vector<Request> some_requests(double temperature) {
  std::mt19937 draw(11);
  std::vector<Request> requests;
  for (int64_t i = 0; i < 16; ++i) {
    Request request{.options = {.max_tokens = static_cast<int64_t>(draw() % 25)}};
    const auto length = static_cast<int64_t>(1 + draw() % 20);
    for (int64_t t = 0; t < length; ++t) request.prompt.push_back(40 + draw() % 60);
    request.options.sampling = {.temperature = temperature, .seed = i, .repetition_penalty = i % 2 ? 1.2 : 1};
    if (i % 4 == 0) request.end_ids = {static_cast<int64_t>(draw() % 100)};
    requests.push_back(std::move(request));
  }
  return requests;
}

/// Returns options with a large cache, or with one so small that drafts are cut and requests are preempted.
EngineOptions some_options(DistributedModel& model, DistributedModel& draft, bool is_tight) {
  const int64_t block = 16 * (ModelRunner::bytes_of_token(model) + ModelRunner::bytes_of_token(draft));
  return {.cache_bytes = is_tight ? block * 4 / model.cache_ranks() : int64_t{1} << 22,
          .block_tokens = 16,
          .step_tokens = is_tight ? 7 : 512,
          .draft_tokens = 4,
          .draft = &draft};
}

TEST_P(DraftModel, LeavesGreedyCompletionsUnchanged) {
  const std::vector<Request> requests = some_requests(0);
  for (const ParallelConfig& layout : {ParallelConfig{}, ParallelConfig{.tensor = {.size = 2}, .pipeline = {.size = 2}},
                                       ParallelConfig{.sequence = {.size = 2}}})
    with_models(layout, [&](DistributedModel& model, DistributedModel& draft) {
      const Said want = said(model, requests, {.cache_bytes = 1 << 22, .block_tokens = 16});
      for (const bool is_tight : {false, true}) {
        const Said got = said(model, requests, some_options(model, draft, is_tight));
        EXPECT_EQ(got.answers, want.answers);
        EXPECT_GT(got.draft_counts.accepted, got.draft_counts.proposed / 4);
        EXPECT_LT(got.draft_counts.accepted, got.draft_counts.proposed);
        if (is_tight && layout.sequence.size == 1) EXPECT_GT(got.preempted, 0);
      }
    });
}

TEST_P(DraftModel, SamplesIndependentlyOfRoomAndOtherRequests) {
  const std::vector<Request> requests = some_requests(1);
  with_models({}, [&](DistributedModel& model, DistributedModel& draft) {
    const Said want = said(model, requests, some_options(model, draft, false));
    const Said tight = said(model, requests, some_options(model, draft, true));
    EXPECT_EQ(tight.answers, want.answers);
    EXPECT_GT(tight.preempted, 0);
    for (const size_t i : {3, 9}) {
      const Said alone = said(model, {requests[i]}, some_options(model, draft, false));
      EXPECT_EQ(alone.answers[0], want.answers[i]);
    }
  });
}

/// Returns log-probabilities [n, V] of the next token of texts with equal lengths.
at::Tensor following(DistributedModel& model, const at::Tensor& texts) {
  const at::NoGradGuard no_grad;
  return model
      .everywhere(
          nn::step_of(nn::token_batch(texts, at::arange(texts.size(1)).expand_as(texts))),
          [&](int, const models::States& end, const nn::ForwardContext& step) {
            return model.decoding_model().head->logits(end[0].select(1, -1), step);
          },
          at::Tensor())
      .to(at::kDouble);
}

// Compares pairs of tokens after a prompt, from the four most probable each, with their exact probabilities. The sum
// has 15 degrees of freedom, so it is below 15 + 4 sqrt(30) for all but one seed in thousands.
TEST_P(DraftModel, PreservesTheDistributionOfTheModel) {
  constexpr int64_t kDraws = 3000;
  with_models({}, [&](DistributedModel& model, DistributedModel& draft) {
    const Tokens prompt{65, 66, 67, 68};
    std::vector<Request> requests;
    const SamplingOptions options{.temperature = 3, .top_k = 4};
    for (int64_t i = 0; i < kDraws; ++i) {
      requests.push_back({.prompt = prompt, .options = {.max_tokens = 4, .sampling = options}});
      requests.back().options.sampling.seed = i;
    }
    const Said got =
        said(model, requests, {.cache_bytes = 1 << 24, .block_tokens = 16, .draft_tokens = 3, .draft = &draft});
    EXPECT_GT(got.draft_counts.accepted, got.draft_counts.proposed / 4);
    EXPECT_LT(got.draft_counts.accepted, got.draft_counts.proposed);
    // Counts the third and fourth token after the most frequent first token.
    std::map<int64_t, int64_t> firsts;
    for (const Tokens& answer : got.answers) ++firsts[answer[0]];
    const int64_t first =
        std::max_element(firsts.begin(), firsts.end(), [](auto& a, auto& b) { return a.second < b.second; })->first;
    std::map<std::pair<int64_t, int64_t>, int64_t> counts;
    int64_t all = 0;
    for (const Tokens& answer : got.answers)
      if (answer[0] == first) ++counts[{answer[1], answer[2]}], ++all;
    Tokens text = prompt;
    text.push_back(first);
    const at::Tensor second = probabilities(following(model, at::tensor(text).unsqueeze(0))[0], options);
    double sum = 0;
    int64_t cells = 0;
    for (int64_t a = 0; a < second.size(0); ++a) {
      if (second[a].item<double>() == 0) continue;
      Tokens longer = text;
      longer.push_back(a);
      const at::Tensor third = probabilities(following(model, at::tensor(longer).unsqueeze(0))[0], options);
      for (int64_t b = 0; b < third.size(0); ++b) {
        const double expected = static_cast<double>(all) * (second[a] * third[b]).item<double>();
        if (expected == 0) continue;
        ++cells;
        sum += std::pow(static_cast<double>(counts[{a, b}]) - expected, 2) / expected;
      }
    }
    EXPECT_EQ(cells, 16);
    EXPECT_LT(sum, 15 + 4 * std::sqrt(30.0));
  });
}

TEST_P(DraftModel, FollowsAGrammar) {
  const text::ByteTokenizer tokenizer;
  SchemaCache schemas(tokenizer, {256});
  const auto make = [&] { return schemas.constraint(R"({"enum": ["yes, of course", "no, never"]})"); };
  std::vector<Request> requests;
  for (int64_t i = 0; i < 8; ++i) {
    requests.push_back({.prompt = {65, 66 + i}, .end_ids = {256}, .options = {.max_tokens = 30}, .constraint = make()});
    requests.back().options.sampling = {.temperature = i % 2 ? 1.0 : 0.0, .seed = i};
  }
  with_models({}, [&](DistributedModel& model, DistributedModel& draft) {
    const Said got = said(model, requests, some_options(model, draft, false));
    for (const Tokens& answer : got.answers)
      EXPECT_TRUE(nlohmann::json::parse(tokenizer.decode(answer), nullptr, false).is_string())
          << tokenizer.decode(answer);
    // The draft follows the grammar too, so it can be wrong only if there is a choice.
    EXPECT_GT(got.draft_counts.accepted * 10, got.draft_counts.proposed * 8);
  });
}

TEST_P(DraftModel, SupportsAnotherVocabularyAndFewerPositions) {
  with_models({}, [&](DistributedModel&, DistributedModel& draft) {
    const int64_t own = draft.decoding_model().shape.vocabulary;
    for (const int64_t vocabulary : {own - 150, own + 9}) {
      infer::DraftModel drafts(draft, vocabulary, {.cache = {.blocks = 4, .block_tokens = 16}, .max_draft_tokens = 3});
      const Sampler sampler({.temperature = 4});
      const auto drafted = drafts.write({{.id = 1, .tokens = {60, 61}, .max_draft_tokens = 3, .sampler = sampler},
                                         {.id = 2, .tokens = Tokens(30, 65), .max_draft_tokens = 3, .sampler = sampler},
                                         {.id = 3, .tokens = {own}, .max_draft_tokens = 3, .sampler = sampler}});
      ASSERT_EQ(drafted[0].size(), 3);
      for (const DraftedToken& token : drafted[0]) {
        EXPECT_LT(token.token, std::min(vocabulary, own));
        EXPECT_EQ(token.probabilities.size(0), vocabulary);
      }
      EXPECT_THAT(drafted[1], testing::IsEmpty()) << "32 positions";
      EXPECT_THAT(drafted[2], testing::IsEmpty()) << "a token it does not know";
    }
    EXPECT_THAT(test::thrown_message([&] { Engine(draft, {.draft = &draft}); }), testing::HasSubstr("draft_tokens"));
  });
}

INSTANTIATE_TEST_SUITE_P(Models, DraftModel, testing::Values("gpt2-tiny", "llama-tiny"),
                         [](const auto& info) { return info.param.substr(0, info.param.find('-')); });

}  // namespace
}  // namespace colossal::infer::draft_model_test
