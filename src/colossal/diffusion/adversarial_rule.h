// The steps of a run in which a discriminator judges what an autoencoder reconstructs (reconstruction.gan).
//
//   program.objectives.at("reconstruction").step_rule = diffusion::make_adversarial_rule;
//
// A step has five passes. The autoencoder reconstructs the batch without gradients. A pass through the discriminator
// gives the gradient of its scores with respect to these pictures. The autoencoder trains on the batch, with that
// gradient as a constant. The discriminator trains on the pictures of the batch and on their reconstructions. One
// update of both models ends the step, so both learn from the weights before it.
#pragma once
#include <memory>

#include "colossal/train/engine.h"
#include "colossal/train/step_rule.h"

namespace colossal::diffusion {

/// Returns the rule of a run with the objective reconstruction: the default one without reconstruction.gan. In the
/// first reconstruction.gan_start steps it makes one pass of the autoencoder alone. Then steps have the metrics
/// `generator_loss`, the mean loss of the autoencoder by the discriminator, and `discriminator_loss`. The gradient norm
/// is that of both models.
/// Communication of a step: that of its passes, and an all_reduce of [2] over the axes that split rows.
std::unique_ptr<train::StepRule> make_adversarial_rule(train::Engine& engine, const run::Config& config,
                                                       const run::OwnTables& tables);

}  // namespace colossal::diffusion
