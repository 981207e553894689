// Direct preference optimization, with the losses of its relatives (preference_losses.h).
#include <ATen/ATen.h>

#include <cmath>

#include "colossal/run/objectives/alignment/answer_sums.h"
#include "colossal/run/objectives/alignment/methods.h"
#include "colossal/run/objectives/alignment/preference_losses.h"
#include "colossal/run/objectives/alignment/preference_objective.h"
#include "colossal/tensor/host_value.h"

namespace colossal::run {
namespace {

DpoOptions dpo_options(const AlignmentKeys& keys) {
  const DpoLoss loss = keys.loss == "robust"  ? DpoLoss::Robust
                       : keys.loss == "hinge" ? DpoLoss::Hinge
                                              : DpoLoss::Sigmoid;
  return {.beta = keys.beta_or(0.1), .loss = loss, .smoothing = keys.smoothing};
}

class Dpo final : public PreferenceObjective {
 public:
  Dpo(const Config& config, const models::ModelShape& shape, const AlignmentKeys& keys, const ChatKeys& chats)
      : PreferenceObjective(config, shape, keys, chats, data::ChatSamples::Pairs), options_(dpo_options(keys)) {}
  bool has_reference() const override { return true; }
  /// Robust DPO has log 2, too: (1 - 2e) log 2 / (1 - 2e). The likelihood of the policy is that of the reference.
  std::optional<double> first_loss(const tensor::Batch& batch) const override {
    const double compared = weight(batch) * (options_.loss == DpoLoss::Hinge ? 1 : std::log(2.0));
    if (keys().nll == 0) return compared;
    const at::Tensor lengths = answer_lengths(batch, 1).cpu().to(at::kDouble);
    const at::Tensor means = batch.at(kReferenceScores).narrow(1, 0, 1).cpu().to(at::kDouble) / lengths;
    const at::Tensor counts = batch.at("answer_lengths").narrow(1, 0, 1).cpu() > 0;
    return compared - keys().nll * tensor::host_value(means.masked_fill(~counts, 0).sum());
  }

 protected:
  RowLosses row_losses(const Scores& scores) const override {
    const at::Tensor ratios = log_ratios(scores.sums, scores.reference);
    at::Tensor losses = dpo_losses(ratios.select(1, 0) - ratios.select(1, 1), options_);
    if (keys().nll > 0) losses = losses - keys().nll * (scores.sums / scores.lengths).select(1, 0);
    return {losses, options_.beta * ratios};
  }

 private:
  DpoOptions options_;
};

}  // namespace

std::unique_ptr<Objective> make_dpo(const Config& config, const OwnTables& tables, const models::ModelShape& shape) {
  return std::make_unique<Dpo>(config, shape, tables.as<AlignmentKeys>("alignment"), tables.data<ChatKeys>());
}

}  // namespace colossal::run
