// Updates on answers that were drawn from a model in training, and the comparison of both log-probabilities.
//
//   const std::vector<RolloutAnswer> answers = drawn(*engine, 0, prompts);
//   expect_drawn(*engine, update_of(prompts, answers, /*packed=*/false), "first update");
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "colossal/align/rollouts/sampler.h"
#include "colossal/data/batch_fields.h"
#include "colossal/nn/loss_head.h"
#include "colossal/train/engine.h"

namespace colossal::align::updates {

inline constexpr int64_t kWords = 37, kEnd = 5;  // all ids are below kWords
inline constexpr double kTemperature = 0.8;

inline nn::WeightPacking panels(bool in_training) { return {.keeps_values = true, .in_training = in_training}; }

inline SamplerOptions options() {
  return {.max_tokens = 9,
          .temperature = kTemperature,
          .end_ids = {kEnd},
          .cache_bytes = 1 << 23,
          .block_tokens = 16,
          .seed = 3};
}

/// Prompts of various lengths, other ones on each replica; `more` = further ones of the first replica.
inline std::vector<RolloutPrompt> prompts_of(int64_t replica, int64_t more = 0) {
  std::vector<RolloutPrompt> prompts;
  for (const int64_t length : {1, 4, 11, 18}) {
    RolloutPrompt prompt{.index = replica * 100 + static_cast<int64_t>(prompts.size())};
    for (int64_t i = 0; i < length; ++i) prompt.ids.push_back((7 * i + 3 * prompt.index + 11) % kWords);
    prompts.push_back(std::move(prompt));
    if (replica == 0 && static_cast<int64_t>(prompts.size()) == 2 + more) break;
  }
  return prompts;
}

/// Returns the draws of answers [0, answers) to each prompt.
inline std::vector<Draw> draws_of(const std::vector<RolloutPrompt>& prompts, int64_t answers = 3) {
  std::vector<Draw> draws;
  for (const RolloutPrompt& prompt : prompts)
    for (int64_t number = 0; number < answers; ++number) draws.push_back({&prompt, number});
  return draws;
}

/// Returns the answers in the order of their draws.
inline std::vector<RolloutAnswer> drawn(train::Engine& engine, const SamplerOptions& options, int64_t step,
                                        const std::vector<Draw>& draws) {
  std::map<std::pair<int64_t, int64_t>, RolloutAnswer> complete;
  Sampler(engine, options).draw(step, draws, [&](RolloutAnswer answer) {
    EXPECT_TRUE(complete.try_emplace({answer.prompt, answer.number}, answer).second) << "an answer is complete once";
  });
  EXPECT_EQ(complete.size(), draws.size());
  std::vector<RolloutAnswer> answers;
  for (const Draw& draw : draws) answers.push_back(complete.at({draw.prompt->index, draw.number}));
  return answers;
}

/// Returns three answers to each prompt.
inline std::vector<RolloutAnswer> drawn(train::Engine& engine, int64_t step,
                                        const std::vector<RolloutPrompt>& prompts) {
  return drawn(engine, options(), step, draws_of(prompts));
}

/// A batch with the answers, whose tokens are the labels, and their log-probabilities [B, S] at the labels.
struct Update {
  tensor::Batch batch;
  at::Tensor drawn;
};

/// The sequence of an answer: ids, labels and positions.
struct Sequence {
  std::vector<int64_t> ids, labels, positions;
  std::vector<float> drawn;
};

inline Sequence sequence_of(const RolloutPrompt& prompt, const RolloutAnswer& answer) {
  Sequence s{prompt.ids, {}, {}, {}};
  s.ids.insert(s.ids.end(), answer.ids.begin(), answer.ids.end());
  for (size_t t = 0; t < s.ids.size(); ++t) {
    const bool counts = t + 1 >= prompt.ids.size() && t + 1 < s.ids.size();
    s.labels.push_back(counts ? s.ids[t + 1] : data::kIgnored);
    s.drawn.push_back(counts ? static_cast<float>(answer.log_probabilities[t + 1 - prompt.ids.size()]) : 0);
    s.positions.push_back(static_cast<int64_t>(t));
  }
  return s;
}

/// `packed`: several sequences per row, as documents; otherwise one padded sequence per row.
inline Update update_of(const std::vector<RolloutPrompt>& prompts, const std::vector<RolloutAnswer>& answers,
                        bool packed) {
  const size_t in_row = packed ? 3 : 1;
  std::vector<std::vector<Sequence>> rows(answers.size() / in_row);
  size_t longest = 0;
  for (size_t i = 0; i < rows.size() * in_row; ++i) {
    const RolloutAnswer& answer = answers[i];
    const auto prompt =
        std::find_if(prompts.begin(), prompts.end(), [&](const RolloutPrompt& p) { return p.index == answer.prompt; });
    rows[i / in_row].push_back(sequence_of(*prompt, answer));
  }
  for (const auto& row : rows) {
    size_t length = 0;
    for (const Sequence& s : row) length += s.ids.size();
    longest = std::max(longest, length);
  }
  const auto whole = [&](int64_t value) {
    return at::full({static_cast<int64_t>(rows.size()), static_cast<int64_t>(longest)}, value, at::kLong);
  };
  at::Tensor ids = whole(1), labels = whole(data::kIgnored), positions = whole(0), documents = whole(99),
             drawn = whole(0).to(at::kFloat);
  for (size_t r = 0; r < rows.size(); ++r) {
    int64_t first = 0, number = 0;
    for (const Sequence& s : rows[r]) {
      const auto put = [&](at::Tensor& field, const auto& values) {
        field[static_cast<int64_t>(r)].narrow(0, first, static_cast<int64_t>(values.size())).copy_(at::tensor(values));
      };
      put(ids, s.ids), put(labels, s.labels), put(positions, s.positions), put(drawn, s.drawn);
      put(documents, std::vector<int64_t>(s.ids.size(), number++));
      first += static_cast<int64_t>(s.ids.size());
    }
  }
  return {data::text_batch(ids, labels, positions, packed ? documents : at::Tensor()), drawn};
}

/// Trains on answers. Expects the log-probabilities of their tokens in the forward pass to be the drawn ones.
inline void expect_drawn(train::Engine& engine, Update update, const std::string& what) {
  // Ranks of experts draw the same answers, and each trains on a part of them.
  const tensor::MeshCoordinates& here = engine.mesh().coordinates();
  const int64_t parts = here.size("expert"), rows = update.batch.rows() / parts;
  update = {update.batch.part(here.index("expert") * rows, rows),
            update.drawn.narrow(0, here.index("expert") * rows, rows)};
  std::vector<at::Tensor> found;
  engine.zero_grad();
  engine.train_step(update.batch, static_cast<double>(update.drawn.numel()),
                    [&](const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
                      const at::Tensor labels = step.batch->at("labels");
                      const auto scores = [&](bool entropy) {
                        return model.head->scores(end.at(0), labels, step, {kTemperature, entropy});
                      };
                      const ops::TokenScores all = scores(true);
                      found.push_back(all.log_probabilities.detach());
                      EXPECT_TRUE(at::equal(found.back(), scores(false).log_probabilities)) << "beside entropies";
                      return -(all.log_probabilities + 0.01 * all.entropies).sum();
                    });
  engine.step();
  if (found.empty()) return;  // another stage has the head
  const at::Tensor trained = at::cat(found), error = (trained - update.drawn).abs();
  EXPECT_LT(trained.min().item<float>(), 0) << what;
  EXPECT_TRUE(at::equal(trained, update.drawn)) << what << ": off by " << error.max().item<float>();
}

}  // namespace colossal::align::updates
