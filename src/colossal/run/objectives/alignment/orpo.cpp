// Odds ratio preference optimization, without a reference: the negative log-likelihood of the chosen answers, plus beta
// times the loss of the odds. The reward of an answer is beta times its mean log-probability.
#include <ATen/ATen.h>

#include "colossal/run/objectives/alignment/methods.h"
#include "colossal/run/objectives/alignment/preference_losses.h"
#include "colossal/run/objectives/alignment/preference_objective.h"

namespace colossal::run {
namespace {

class Orpo final : public PreferenceObjective {
 public:
  Orpo(const Config& config, const models::ModelShape& shape, const AlignmentKeys& keys, const ChatKeys& chats)
      : PreferenceObjective(config, shape, keys, chats, data::ChatSamples::Pairs), beta_(keys.beta_or(0.1)) {}
  bool has_reference() const override { return false; }
  std::optional<double> first_loss(const tensor::Batch&) const override { return std::nullopt; }

 protected:
  RowLosses row_losses(const Scores& scores) const override {
    const at::Tensor means = scores.sums / scores.lengths;
    const at::Tensor odds = stable_softplus(-log_odds_ratios(means.select(1, 0), means.select(1, 1)));
    // The engine divides by the pairs of the global batch. The likelihood is a mean over its tokens, whose number is
    // the pairs times the mean length.
    const at::Tensor length = scores.batch.at("mean_answer_length").select(1, 0).to(scores.sums);
    return {beta_ * odds - scores.sums.select(1, 0) / length, beta_ * means};
  }

 private:
  double beta_;
};

}  // namespace

std::unique_ptr<Objective> make_orpo(const Config& config, const OwnTables& tables, const models::ModelShape& shape) {
  return std::make_unique<Orpo>(config, shape, tables.as<AlignmentKeys>("alignment"), tables.data<ChatKeys>());
}

}  // namespace colossal::run
