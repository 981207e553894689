#include "colossal/diffusion/encoding_rule.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string>
#include <vector>

#include "colossal/base/pipeline_parts.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/text_encoder.h"
#include "colossal/run/objectives/diffusion/latent_samples.h"

namespace colossal::diffusion {
namespace {

/// Returns what `encode` returns for each row of a field, which it gets as a batch of one.
template <class Encode>
std::vector<at::Tensor> encoded_rows(distributed::DistributedModel& model, const at::Tensor& field,
                                     const Encode& encode) {
  std::vector<at::Tensor> rows;
  for (const at::Tensor& row : field.to(model.parameters().options().device).split(1)) {
    const at::Tensor like;  // not read, because no pipeline cuts the model
    rows.push_back(model.at_end([&](const auto&) { return encode(model.decoding_model(), row); }, like)[0]);
  }
  return rows;
}

class EncodingRule final : public train::StepRule {
 public:
  explicit EncodingRule(bool reads_text) : reads_text_(reads_text) {}

  train::StepOutcome step(train::Engine& engine, const NextBatch& next) override {
    return train::update(engine, with_fields(engine, next()));
  }

  tensor::Batch with_fields(train::Engine& engine, const tensor::Batch& batch) override {
    const at::NoGradGuard no_grad;
    distributed::DistributedModel& vae = engine.model(run::kVae);
    const models::AutoencoderSizes sizes = models::autoencoder_of(vae.decoding_model().shape);
    std::vector<at::Tensor> latents = encoded_rows(vae, batch.at(run::kPixels), models::moments_of);
    for (size_t i = 0; i < latents.size(); ++i) {
      const at::Tensor noise = batch.at(run::kSampleNoise)[static_cast<int64_t>(i)].to(latents[i].device());
      latents[i] = run::drawn_latent(sizes, latents[i], noise);
    }
    at::Tensor text;
    if (reads_text_)
      text = at::stack(encoded_rows(
          engine.model(kTextEncoderPart), batch.at(run::kIds),
          [](const models::Model& model, const at::Tensor& ids) { return models::text_states(model, ids); }));
    return run::with_latents(batch, at::stack(latents), text);
  }

 private:
  bool reads_text_;
};

}  // namespace

std::unique_ptr<train::StepRule> make_encoding_rule(train::Engine& engine, const run::Config&, const run::OwnTables&) {
  const std::vector<std::string> names = engine.model_names();
  const auto has = [&](const char* name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  if (!has(run::kVae)) return std::make_unique<train::OneUpdate>();
  return std::make_unique<EncodingRule>(has(kTextEncoderPart));
}

}  // namespace colossal::diffusion
