// The adversarial terms of autoencoders, with the hinge loss (Lim and Ye 2017, arXiv:1705.02894), as in Rombach et al.
// 2021 (arXiv:2112.10752): a discriminator learns to give pictures of the data scores above 1 and reconstructions
// scores below -1, and the autoencoder learns to raise the scores of its reconstructions.
//
//   const auto [losses, gradient] = engine.gradient_of(fakes, "images", run::generator_losses, run::kDiscriminator);
//   engine.train_step(run::judged(batch, losses, gradient));                        // the autoencoder
//   engine.train_step(batch, weight, run::discriminator_loss(true), run::kDiscriminator);
//   engine.train_step(fakes, weight, run::discriminator_loss(false), run::kDiscriminator);
//
// Both see reconstructions by the same weights, those before the step.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

#include "colossal/models/model.h"
#include "colossal/nn/forward_context.h"
#include "colossal/tensor/batch.h"

namespace colossal::run {

/// Names of the fields of judged(): the losses of rows [B], and their gradient [B, channels, H, W].
inline constexpr char kAdversarialLosses[] = "adversarial_losses", kAdversarialGradient[] = "adversarial_gradient";

/// Returns the loss of the autoencoder for each row, [B]: minus the mean of the scores of its patches. `end` is that of
/// the discriminator, whose end[0] has the scores [B, patches, 1].
at::Tensor generator_losses(const models::Model&, const models::States& end, const nn::ForwardContext&);

/// Returns the loss of the discriminator on a micro-batch of pictures of the data (`are_real`), or of reconstructions,
/// as a function of its end: half the mean over the patches of max(0, 1 - score), or of max(0, 1 + score), summed over
/// the rows that count.
std::function<at::Tensor(const models::Model&, const models::States& end, const nn::ForwardContext& step)>
discriminator_loss(bool are_real);

/// Returns the batch with the losses of its reconstructions and their gradient, which the objective takes as constants.
tensor::Batch judged(const tensor::Batch& batch, const at::Tensor& losses, const at::Tensor& gradient);
/// Returns the batch with zeros in their place, for steps without the discriminator. It may be on meta.
tensor::Batch not_judged(const tensor::Batch& batch);

/// Returns the adversarial loss of each row of judged(), [B], whose gradient with respect to `pixels` [B, H W,
/// channels] is the field. Errors ("reconstruction"): a batch without the fields.
at::Tensor adversarial_losses(const at::Tensor& pixels, const nn::ForwardContext& step);

}  // namespace colossal::run
