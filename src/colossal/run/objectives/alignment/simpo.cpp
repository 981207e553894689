// Simple preference optimization, without a reference. The reward of an answer is beta times its mean log-probability.
#include <ATen/ATen.h>

#include "colossal/run/objectives/alignment/methods.h"
#include "colossal/run/objectives/alignment/preference_losses.h"
#include "colossal/run/objectives/alignment/preference_objective.h"

namespace colossal::run {
namespace {

class Simpo final : public PreferenceObjective {
 public:
  Simpo(const Config& config, const models::ModelShape& shape, const AlignmentKeys& keys, const ChatKeys& chats)
      : PreferenceObjective(config, shape, keys, chats, data::ChatSamples::Pairs), beta_(keys.beta_or(2)) {}
  bool has_reference() const override { return false; }
  std::optional<double> first_loss(const tensor::Batch&) const override { return std::nullopt; }

 protected:
  RowLosses row_losses(const Scores& scores) const override {
    const at::Tensor means = scores.sums / scores.lengths;
    return {simpo_losses(means.select(1, 0), means.select(1, 1), beta_, keys().margin), beta_ * means};
  }

 private:
  double beta_;
};

}  // namespace

std::unique_ptr<Objective> make_simpo(const Config& config, const OwnTables& tables, const models::ModelShape& shape) {
  return std::make_unique<Simpo>(config, shape, tables.as<AlignmentKeys>("alignment"), tables.data<ChatKeys>());
}

}  // namespace colossal::run
