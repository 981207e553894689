#include "colossal/run/objectives/reconstruction/adversarial.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "colossal/base/error.h"
#include "colossal/run/objectives/reconstruction/latent_noise_samples.h"
#include "colossal/run/objectives/reconstruction/reconstruction_keys.h"

namespace colossal::run {

at::Tensor generator_losses(const models::Model&, const models::States& end, const nn::ForwardContext&) {
  return -end.at(0).mean({1, 2});
}

std::function<at::Tensor(const models::Model&, const models::States& end, const nn::ForwardContext& step)>
discriminator_loss(bool are_real) {
  return [are_real](const models::Model&, const models::States& end, const nn::ForwardContext& step) {
    const at::Tensor& scores = end.at(0);
    const at::Tensor margin = are_real ? 1 - scores : 1 + scores;
    // LibTorch runs the gradients of relu() and clamp() on values only, not on sizes.
    const at::Tensor losses = margin.masked_fill(margin < 0, 0).mean({1, 2}) / 2;
    return (losses * counts_of(scores, step)).sum();
  };
}

tensor::Batch judged(const tensor::Batch& batch, const at::Tensor& losses, const at::Tensor& gradient) {
  return batch.with(kAdversarialLosses, {losses, {tensor::Dim::Row}})
      .with(kAdversarialGradient, {gradient, batch.field("images").dims});
}

tensor::Batch not_judged(const tensor::Batch& batch) {
  const at::Tensor& images = batch.at("images");
  return judged(batch, at::zeros({images.size(0)}, images.options()), at::zeros(images.sizes(), images.options()));
}

at::Tensor adversarial_losses(const at::Tensor& pixels, const nn::ForwardContext& step) {
  require(step.batch->find(kAdversarialGradient).defined(), kReconstruction,
          "gan needs batches that a discriminator judged: got one without ", kAdversarialGradient,
          "; take the step rule of the objective (cli::whole_program())");
  const at::Tensor product = (pixels * pixels_of(step.batch->at(kAdversarialGradient), pixels)).sum({1, 2});
  // The product has the gradient, the field has the value. A difference of products would be no number in fp16 if the
  // gradient has overflowed.
  at::Tensor losses = product.clone();
  const at::NoGradGuard no_grad;
  losses.copy_(step.batch->at(kAdversarialLosses));
  return losses;
}

}  // namespace colossal::run
