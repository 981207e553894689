// Identity preference optimization.
#include <ATen/ATen.h>

#include "colossal/run/objectives/alignment/methods.h"
#include "colossal/run/objectives/alignment/preference_losses.h"
#include "colossal/run/objectives/alignment/preference_objective.h"

namespace colossal::run {
namespace {

class Ipo final : public PreferenceObjective {
 public:
  Ipo(const Config& config, const models::ModelShape& shape, const AlignmentKeys& keys, const ChatKeys& chats)
      : PreferenceObjective(config, shape, keys, chats, data::ChatSamples::Pairs), beta_(keys.beta_or(0.1)) {}
  bool has_reference() const override { return true; }
  std::optional<double> first_loss(const tensor::Batch& batch) const override {
    return weight(batch) / (4 * beta_ * beta_);
  }

 protected:
  RowLosses row_losses(const Scores& scores) const override {
    const at::Tensor ratios = log_ratios(scores.sums, scores.reference);
    const at::Tensor compared = keys().loss == "sum" ? ratios : ratios / scores.lengths;
    return {ipo_losses(compared.select(1, 0) - compared.select(1, 1), beta_), beta_ * ratios};
  }

 private:
  double beta_;
};

}  // namespace

std::unique_ptr<Objective> make_ipo(const Config& config, const OwnTables& tables, const models::ModelShape& shape) {
  return std::make_unique<Ipo>(config, shape, tables.as<AlignmentKeys>("alignment"), tables.data<ChatKeys>());
}

}  // namespace colossal::run
