// Kahneman-Tversky optimization. The second text of a row is its prompt with the answer of the row before it in the
// global batch, from which the step rule computes z.
#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/run/objectives/alignment/methods.h"
#include "colossal/run/objectives/alignment/preference_losses.h"
#include "colossal/run/objectives/alignment/preference_objective.h"
#include "colossal/tensor/host_value.h"

namespace colossal::run {
namespace {

class Kto final : public PreferenceObjective {
 public:
  Kto(const Config& config, const models::ModelShape& shape, const AlignmentKeys& keys, const ChatKeys& chats)
      : PreferenceObjective(config, shape, keys, chats, data::ChatSamples::Rated),
        options_{keys.beta_or(0.1), keys.desirable_weight, keys.undesirable_weight} {
    require(config.training.batch_size > 1, "alignment",
            "training.batch_size must be at least 2 with alignment.method = \"kto\", which compares each answer with "
            "that of another prompt: got ",
            config.training.batch_size);
  }
  bool has_reference() const override { return true; }
  std::optional<double> first_loss(const tensor::Batch& batch) const override {
    const at::Tensor desirable = batch.at("desirable").select(1, 0) != 0;
    const double rows = weight(batch),
                 wanted =
                     tensor::host_value((desirable.logical_and(batch.at("answer_lengths").select(1, 0) > 0)).sum());
    return (options_.desirable_weight * wanted + options_.undesirable_weight * (rows - wanted)) / 2;
  }

 protected:
  RowLosses row_losses(const Scores& scores) const override {
    const at::Tensor ratios = log_ratios(scores.sums, scores.reference).squeeze(1);
    const at::Tensor z = scores.batch.at(kDivergence).select(1, 0).to(ratios);
    const at::Tensor desirable = scores.batch.at("desirable").select(1, 0).to(ratios.device());
    return {kto_losses(ratios, desirable, z, options_), (options_.beta * ratios).unsqueeze(1)};
  }

 private:
  KtoOptions options_;
};

}  // namespace

std::unique_ptr<Objective> make_kto(const Config& config, const OwnTables& tables, const models::ModelShape& shape) {
  return std::make_unique<Kto>(config, shape, tables.as<AlignmentKeys>("alignment"), tables.data<ChatKeys>());
}

}  // namespace colossal::run
