// Reward models: a score of each text, learned from pairs and rankings.
#include <ATen/ATen.h>

#include "colossal/run/objectives/alignment/methods.h"
#include "colossal/run/objectives/alignment/preference_losses.h"
#include "colossal/run/objectives/alignment/preference_objective.h"
#include "colossal/run/objectives/alignment/text_scores.h"

namespace colossal::run {
namespace {

class Reward final : public PreferenceObjective {
 public:
  Reward(const Config& config, const models::ModelShape& shape, const AlignmentKeys& keys, const ChatKeys& chats)
      : PreferenceObjective(config, shape, keys, chats, data::ChatSamples::Ranked) {}
  int64_t outputs() const override { return 1; }
  bool has_reference() const override { return false; }
  std::optional<double> first_loss(const tensor::Batch&) const override { return std::nullopt; }
  std::string missing_from(const models::Model& model) const override {
    return model.shape.outputs() > 0 ? "" : "a head of outputs";
  }

 protected:
  at::Tensor scores_of(const models::Model& model, const models::States& end,
                       const nn::ForwardContext& step) const override {
    return text_scores(model, end, step, texts());
  }
  RowLosses row_losses(const Scores& scores) const override {
    const at::Tensor& r = scores.sums;
    const at::Tensor counts = (scores.batch.at("answer_lengths") > 0).to(r.device());
    const at::Tensor margins = scores.batch.at("margins").select(1, 0).to(r);
    const at::Tensor pairs = pair_weights(counts).to(r.scalar_type());
    const at::Tensor better = (pairs.sum(2) * r).sum(1), worse = (pairs.sum(1) * r).sum(1);
    const at::Tensor right = (pairs * (r.unsqueeze(2) > r.unsqueeze(1)).to(r.scalar_type())).sum({1, 2});
    return {reward_losses(r, counts, margins, keys().centre), at::stack({better, worse}, 1), right};
  }
};

}  // namespace

std::unique_ptr<Objective> make_reward(const Config& config, const OwnTables& tables, const models::ModelShape& shape) {
  return std::make_unique<Reward>(config, shape, tables.as<AlignmentKeys>("alignment"), tables.data<ChatKeys>());
}

}  // namespace colossal::run
