#include "colossal/diffusion/adversarial_rule.h"

#include <ATen/ATen.h>

#include <cstdint>

#include "colossal/distributed/distributed_model.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/autoencoder_clips.h"
#include "colossal/nn/batch_step.h"
#include "colossal/run/objectives/reconstruction/adversarial.h"
#include "colossal/run/objectives/reconstruction/latent_noise_samples.h"
#include "colossal/run/objectives/reconstruction/reconstruction_keys.h"
#include "colossal/tensor/host_value.h"

namespace colossal::diffusion {
namespace {

/// Returns the pictures or clips that the autoencoder makes of those of a micro-batch.
at::Tensor reconstructions(const models::Model&, const models::States& end, const nn::ForwardContext& step) {
  const at::Tensor &images = step.batch->at("images"), &pixels = end.at(models::AutoencoderStates::hidden);
  if (images.dim() == 4) return models::reconstructed_pictures(pixels, images.size(2), images.size(3));
  return models::reconstructed_clips(pixels, {images.size(2), {images.size(3), images.size(4)}});
}

class AdversarialRule final : public train::StepRule {
 public:
  explicit AdversarialRule(int64_t start) : start_(start) {}

  train::StepOutcome step(train::Engine& engine, const NextBatch& next) override {
    const tensor::Batch batch = next();
    // Plans must know the larger steps of a run.
    if (engine.steps_done() < start_ && !engine.device().is_meta())
      return train::update(engine, run::not_judged(batch));
    engine.objective().check(batch);
    const tensor::Batch fakes = engine.with_result(batch, "images", reconstructions);
    const auto [losses, gradient] = engine.gradient_of(fakes, "images", run::generator_losses, run::kDiscriminator);
    engine.zero_grad();
    const double loss = engine.train_step(run::judged(batch, losses, gradient)),
                 weight = engine.objective().weight(batch), of_generator = mean_of_rows(engine, losses, batch, weight);
    const auto judge = [&](const tensor::Batch& pictures, bool are_real) {
      return engine.train_step(pictures, weight, run::discriminator_loss(are_real), run::kDiscriminator);
    };
    const double of_discriminator = judge(batch, true) + judge(fakes, false);
    train::StepOutcome outcome{.loss = loss, .result = engine.step()};
    const char* const plot = "Discriminator";
    outcome.rows.push_back({.name = "generator_loss", .value = of_generator, .plot = plot, .legend = "autoencoder"});
    outcome.rows.push_back(
        {.name = "discriminator_loss", .value = of_discriminator, .plot = plot, .legend = "discriminator"});
    return outcome;
  }

 private:
  /// Returns the mean of the rows of all ranks that count.
  static double mean_of_rows(train::Engine& engine, const at::Tensor& losses, const tensor::Batch& batch,
                             double weight) {
    const at::Tensor counts = batch.at(run::kCounts).to(losses.device()).to(losses.scalar_type());
    at::Tensor totals = at::tensor({tensor::host_value((losses * counts).sum()), weight}, at::kDouble);
    comm::Mesh& mesh = engine.mesh();
    mesh.group(mesh.coordinates().row_axes()).all_reduce(totals, comm::Reduce::Sum).wait();
    const double* sums = totals.const_data_ptr<double>();
    return run::mean_of(sums[0], sums[1]);
  }

  int64_t start_;
};

}  // namespace

std::unique_ptr<train::StepRule> make_adversarial_rule(train::Engine& engine, const run::Config&,
                                                       const run::OwnTables& tables) {
  const auto keys = tables.as<run::ReconstructionKeys>(run::kReconstruction);
  if (keys.gan == 0) return std::make_unique<train::OneUpdate>();
  // A discriminator that cannot judge pictures of these sizes refuses them here, and not after gan_start steps.
  const nn::ForwardContext example = nn::step_of(engine.objective().example(1));
  engine.model(run::kDiscriminator).model().states.front().sizes(example, -1);
  return std::make_unique<AdversarialRule>(keys.gan_start);
}

}  // namespace colossal::diffusion
