#include "colossal/diffusion/encoding_rule.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/pipeline_parts.h"
#include "colossal/diffusion/clip_moments.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/caption_parts.h"
#include "colossal/run/model_source.h"
#include "colossal/run/objectives/diffusion/diffusion_objective.h"
#include "colossal/run/objectives/diffusion/latent_samples.h"
#include "colossal/run/program.h"

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
  /// `pipeline`: without captions, if the model reads none or has its text encoder within it.
  explicit EncodingRule(run::PipelineSource pipeline) : pipeline_(std::move(pipeline)) {
    if (!pipeline_.zeros_for_empty) return;
    for (size_t i = 0; i < pipeline_.captions.size(); ++i) {
      const models::ModelShape shape = run::find_source(pipeline_.captions[i].encoder, run::built_in()).shape;
      empty_.push_back(
          run::caption_ids(run::captions_for(pipeline_.captions[i], pipeline_.sizes.captions[i], shape), "").ids);
    }
  }

  train::StepOutcome step(train::Engine& engine, const NextBatch& next) override {
    return train::update(engine, with_fields(engine, next()));
  }

  tensor::Batch with_fields(train::Engine& engine, const tensor::Batch& batch) override {
    const at::NoGradGuard no_grad;
    return run::with_latents(batch, latents_of_rows(engine, batch), told_rows(engine, batch));
  }

 private:
  /// Returns the latents of all rows; undefined for a model of pixels.
  static at::Tensor latents_of_rows(train::Engine& engine, const tensor::Batch& batch) {
    if (!batch.find(run::kPixels).defined()) return {};
    distributed::DistributedModel& vae = engine.model(run::kVae);
    const models::AutoencoderSizes sizes = models::autoencoder_of(vae.decoding_model().shape);
    std::vector<at::Tensor> latents =
        encoded_rows(vae, batch.at(run::kPixels),
                     [](const models::Model& model, const at::Tensor& row) { return encoded_moments(model, row); });
    for (size_t i = 0; i < latents.size(); ++i) {
      const at::Tensor noise = batch.at(run::kSampleNoise)[static_cast<int64_t>(i)].to(latents[i].device());
      latents[i] = run::drawn_latent(sizes, latents[i], noise);
    }
    return at::stack(latents);
  }

  /// Returns what the model reads of the captions of all rows.
  tensor::Batch told_rows(train::Engine& engine, const tensor::Batch& batch) const {
    if (pipeline_.captions.empty()) return {};
    std::vector<tensor::Batch> rows;
    for (int64_t i = 0; i < batch.rows(); ++i) {
      std::vector<tensor::Batch> parts;
      for (size_t k = 0; k < pipeline_.captions.size(); ++k) {
        distributed::DistributedModel& encoder = engine.model(models::caption_part_name(kTextEncoderPart, k));
        const auto on_device = [&](const at::Tensor& x) {
          return x.defined() ? x.narrow(0, i, 1).to(encoder.parameters().options().device) : x;
        };
        const at::Tensor ids = on_device(batch.at(models::caption_part_name(run::kIds, k))),
                         mask = on_device(batch.find(run::kTextMask));
        tensor::Batch read;
        encoder.at_end(
            [&](const auto&) {
              read = models::read_caption(pipeline_.sizes.captions[k], encoder.decoding_model(), ids, mask);
              return ids;  // not read
            },
            {});
        parts.push_back(std::move(read));
      }
      rows.push_back(models::joined_captions(pipeline_.sizes, parts));
      if (is_empty(batch, i))
        rows.back() = rows.back().map([](const tensor::Field& field) { return at::zeros_like(field.tensor); });
    }
    return tensor::joined_rows(rows);
  }

  /// Returns true if the model reads zeros for the row, because its caption is empty.
  bool is_empty(const tensor::Batch& batch, int64_t row) const {
    for (size_t k = 0; k < empty_.size(); ++k)
      if (!batch.at(models::caption_part_name(run::kIds, k)).narrow(0, row, 1).to(at::kCPU).equal(empty_[k]))
        return false;
    return !empty_.empty();
  }

  run::PipelineSource pipeline_;
  std::vector<at::Tensor> empty_;  // ids of the empty caption for each encoder; none = it is read as others are
};

}  // namespace

std::unique_ptr<train::StepRule> make_encoding_rule(train::Engine& engine, const run::Config&, const run::OwnTables&) {
  const std::vector<std::string> names = engine.model_names();
  const auto has = [&](const char* name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  if (!has(run::kVae) && !has(kTextEncoderPart)) return std::make_unique<train::OneUpdate>();
  run::PipelineSource pipeline = dynamic_cast<const run::DiffusionObjective&>(engine.objective()).pipeline();
  if (!has(kTextEncoderPart)) pipeline.captions.clear();
  return std::make_unique<EncodingRule>(std::move(pipeline));
}

}  // namespace colossal::diffusion
