// Log-probabilities of prompt tokens equal the log-probabilities of the whole text in training, for any chunks, blocks
// and layouts.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iterator>

#include "colossal/comm/run_ranks.h"
#include "colossal/infer/engine.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/run/saved_model.h"
#include "infer/engine_answers.h"
#include "support/generated_text.h"
#include "support/thrown_message.h"

namespace colossal::infer::prompt_log_probabilities_test {
namespace {

using engine_test::Tokens;

class PromptLogProbabilities : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { test::write_model(folder, GetParam()); }

  void with_model(const distributed::ParallelConfig& layout,
                  const std::function<void(distributed::DistributedModel&)>& work) {
    comm::run_ranks(static_cast<int>(layout.ranks()), [&](comm::World& world) {
      comm::Mesh mesh(world, layout.axes());
      const run::SavedModel saved =
          run::load_model(folder / "hf", mesh, layout, at::kCPU, {.tokenizer = "none", .dtype = at::kDouble});
      work(*saved.model);
    });
  }

  test::TemporaryFolder folder;
};

/// Returns the log-probability of each token but the first, from the logits of the whole text.
std::vector<double> in_training(distributed::DistributedModel& model, const Tokens& text) {
  const at::NoGradGuard no_grad;
  const at::Tensor ids = at::tensor(text, at::kLong).unsqueeze(0);
  const at::Tensor all = model.everywhere(
      nn::step_of(nn::token_batch(ids, at::arange(ids.size(1)).unsqueeze(0))),
      [&](int, const models::States& end, const nn::ForwardContext& step) {
        return model.decoding_model().head->logits(end[0], step)[0];
      },
      at::Tensor());
  const at::Tensor logarithms = all.log_softmax(-1);
  std::vector<double> own;
  for (size_t i = 1; i < text.size(); ++i)
    own.push_back(logarithms[static_cast<int64_t>(i) - 1][text[i]].item<double>());
  return own;
}

/// Returns prompts of 1 to 30 tokens with a common prefix.
std::vector<Tokens> prompts() {
  std::vector<Tokens> all;
  for (int64_t i = 0; i < 7; ++i) {
    Tokens prompt;
    for (int64_t t = 0; t < 1 + (i * 11) % 30; ++t) prompt.push_back(t < 20 ? 60 + t : 40 + (t * t + i) % 50);
    all.push_back(std::move(prompt));
  }
  all.push_back(all.back());
  return all;
}

struct Told {
  std::vector<LogProbabilities> prompt;
  Tokens tokens;
  FinishReason finish_reason = FinishReason::None;
};

/// Returns the first token that a text asks to score; 1 = all.
int64_t first_of(const Tokens& text, bool scores_all) {
  return scores_all ? 1 : std::max<int64_t>(1, std::ssize(text) * 2 / 3);
}

std::vector<Told> told_by(Engine& engine, const std::vector<Tokens>& texts, int64_t max_tokens,
                          bool scores_all = true) {
  std::vector<Told> told(texts.size());
  std::vector<Event> events;
  int64_t first_id = -1;
  for (const Tokens& prompt : texts) {
    const int64_t id = engine.add({.prompt = prompt,
                                   .options = {.max_tokens = max_tokens, .prompt_logprobs = 1},
                                   .scored_from = first_of(prompt, scores_all)},
                                  engine_test::into(events));
    if (first_id < 0) first_id = id;
  }
  while (engine.has_work())
    for (const Event& event : engine_test::stepped(engine, events)) {
      Told& own = told[static_cast<size_t>(event.id - first_id)];
      EXPECT_TRUE(event.prompt_log_probabilities.empty() || own.tokens.empty());
      if (event.token >= 0) own.tokens.push_back(event.token);
      for (const LogProbabilities& each : event.prompt_log_probabilities) own.prompt.push_back(each);
      own.finish_reason = event.finish_reason;
    }
  return told;
}

void expect_those_of_training(const std::vector<Told>& told, const std::vector<std::vector<double>>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(told[i].prompt.size(), want[i].size()) << i;
    for (size_t t = 0; t < want[i].size(); ++t) {
      EXPECT_NEAR(told[i].prompt[t].own, want[i][t], 1e-9 * (1 - want[i][t])) << i << " " << t;
      EXPECT_GE(told[i].prompt[t].best.at(0).second, told[i].prompt[t].own);
    }
  }
}

int64_t bytes_of_block(distributed::DistributedModel& model, int64_t tokens) {
  return ModelRunner::bytes_of_token(model) * tokens;
}

TEST_P(PromptLogProbabilities, EqualTrainingForAnyChunksAndBlocks) {
  const std::vector<Tokens> texts = prompts();
  with_model({}, [&](distributed::DistributedModel& model) {
    std::vector<std::vector<double>> want;
    for (const Tokens& text : texts) want.push_back(in_training(model, text));
    Engine plain(model, {.cache_bytes = 40 * bytes_of_block(model, 16), .block_tokens = 16});
    std::vector<Request> requests;
    for (const Tokens& text : texts) requests.push_back({.prompt = text, .options = {.max_tokens = 8}});
    const std::vector<Tokens> answers = engine_test::answers_of(plain, requests);
    int64_t preempted = 0;
    for (const int64_t step_tokens : {1, 5, 512})
      for (const int64_t blocks : {3, 40})
        for (const int64_t draft_tokens : {0, 3})
          for (const int64_t max_tokens : {0, 8}) {
            Engine engine(model, {.cache_bytes = blocks * bytes_of_block(model, 16),
                                  .block_tokens = 16,
                                  .step_tokens = step_tokens,
                                  .draft_tokens = draft_tokens});
            const std::vector<Told> told = told_by(engine, texts, max_tokens);
            preempted += engine.counts().preempted;
            expect_those_of_training(told, want);
            for (size_t i = 0; i < texts.size(); ++i) {
              EXPECT_EQ(told[i].tokens, max_tokens == 0 ? Tokens() : answers[i]);
              EXPECT_EQ(told[i].finish_reason,
                        max_tokens > 0 && texts[i].size() > 25 ? FinishReason::AtPositions : FinishReason::AtLength);
            }
          }
    EXPECT_GT(preempted, 0);
  });
}

TEST_P(PromptLogProbabilities, EqualTrainingInEveryLayout) {
  const std::vector<Tokens> texts = prompts();
  std::vector<std::vector<double>> want;
  with_model({}, [&](distributed::DistributedModel& model) {
    for (const Tokens& text : texts) want.push_back(in_training(model, text));
  });
  std::vector<distributed::ParallelConfig> layouts(6);
  layouts[0].tensor.size = 2, layouts[0].pipeline.size = 2;
  layouts[1].tensor = {.size = 2, .sequence = true};
  layouts[2].tensor = {.size = 4, .mode = "2d"};
  layouts[3].sequence = {.size = 2, .mode = "ring"};
  layouts[4].tensor = {.size = 8, .mode = "3d"};
  layouts[5].tensor = {.size = 8, .mode = "2.5d", .depth = 2};
  for (const distributed::ParallelConfig& layout : layouts)
    with_model(layout, [&](distributed::DistributedModel& model) {
      Engine engine(model, {.cache_bytes = 6 * bytes_of_block(model, 16), .block_tokens = 16, .step_tokens = 7});
      expect_those_of_training(told_by(engine, texts, 2), want);
      std::vector<std::vector<double>> last;
      for (size_t i = 0; i < texts.size(); ++i)
        last.emplace_back(want[i].begin() + first_of(texts[i], false) - 1, want[i].end());
      expect_those_of_training(told_by(engine, texts, 2, /*scores_all=*/false), last);
      EXPECT_EQ(engine.counts().found_tokens > 0, model.cache_ranks() == 1);  // a block of two ranks is longer
    });
}

TEST_P(PromptLogProbabilities, DoNotReuseCachedPrefixes) {
  const Tokens prompt(30, 65);
  with_model({}, [&](distributed::DistributedModel& model) {
    const std::vector<double> want = in_training(model, prompt);
    Engine engine(model, {.cache_bytes = 8 * bytes_of_block(model, 16), .block_tokens = 16});
    engine.add({.prompt = prompt, .options = {.max_tokens = 1}});
    while (engine.has_work()) engine.step();
    std::vector<LogProbabilities> told;
    engine.add({.prompt = prompt, .options = {.max_tokens = 1, .prompt_logprobs = 0}},
               [&](const Event& event) { told = event.prompt_log_probabilities; });
    while (engine.has_work()) engine.step();
    EXPECT_EQ(engine.counts().found_tokens, 0);
    ASSERT_EQ(told.size(), want.size());
    for (size_t t = 0; t < want.size(); ++t) EXPECT_NEAR(told[t].own, want[t], 1e-9 * (1 - want[t]));
    engine.add({.prompt = prompt, .options = {.max_tokens = 1}});  // caches its blocks for other requests
    while (engine.has_work()) engine.step();
    EXPECT_GT(engine.counts().found_tokens, 0);
    EXPECT_THAT(test::thrown_message(
                    [&] { engine.add({.prompt = prompt, .options = {.prompt_logprobs = 0, .attention_sinks = 2}}); }),
                testing::HasSubstr("exclude attention_sinks"));
  });
}

INSTANTIATE_TEST_SUITE_P(Models, PromptLogProbabilities, testing::Values("gpt2-tiny", "llama-tiny"),
                         [](const auto& info) { return info.param.substr(0, info.param.find('-')); });

}  // namespace
}  // namespace colossal::infer::prompt_log_probabilities_test
