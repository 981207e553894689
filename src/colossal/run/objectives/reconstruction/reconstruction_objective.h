// The objective of models that encode pictures or clips as latents and decode them (models/autoencoder.h), that of
// Rombach et al. 2021 (arXiv:2112.10752).
//
//   const run::ReconstructionObjective objective(config, tables, shape);
//
// The loss of a row is l1 D + kl K + lpips P + gan G. D is the mean of |x - y| over the elements of the picture x and
// its reconstruction y, pixels in [-1, 1]. K is the divergence of N(mean, exp(logvar)) from standard normal numbers,
// summed over the latent and divided by the elements of the picture: (mean^2 + exp(logvar) - 1 - logvar) / 2. The paper
// sums the terms over the picture and the latent, so this is its loss, with its weight of 1e-6, for each element of a
// picture. P is the distance of LPIPS (lpips.h). G is the loss of judged() batches (adversarial.h), with a fixed weight
// where the paper adapts it to the gradients.
//
// A clip is one row. D and K are those of all its frames together; P and G are means over its frames, each of which is
// judged as a picture.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/models/autoencoder.h"
#include "colossal/run/objective.h"
#include "colossal/run/objectives/reconstruction/latent_noise_samples.h"
#include "colossal/run/objectives/reconstruction/lpips.h"
#include "colossal/run/objectives/reconstruction/reconstruction_clips.h"
#include "colossal/run/objectives/reconstruction/reconstruction_keys.h"

namespace colossal::run {

/// The objective. Its pictures have data.size or, without that key, the height and width of the model. An autoencoder
/// of clips learns from clips of the lengths data.frames or, without that key, of the frames of the model.
class ReconstructionObjective final : public Objective {
 public:
  /// Errors ("objective"): a model that does not encode pictures. ("data"): a size off the grid of its cells; the
  /// message names the nearest; keys of clips for a model of pictures. ("reconstruction"): no term with a weight above
  /// 0. Those of ReconstructionClips().
  ReconstructionObjective(const Config& config, const OwnTables& tables, const models::ModelShape& shape);

  /// Errors: also those of Lpips::check().
  OpenedData open(const DataRequest& request) const override;
  /// Clips have the length of the batches with the most frames.
  tensor::Batch example(int64_t rows) const override;
  /// Returns the fields of judged() with gan above 0.
  std::vector<std::string> added_fields() const override;
  void check(const tensor::Batch& batch) const override;
  /// Returns true if clips have several lengths.
  bool varies_in_size() const override { return clips_ && clips_->varies(); }
  tensor::Batch with_added(tensor::Batch example) const override;
  /// Returns the pixels of the pictures, or of all frames of the clips.
  int64_t tokens(const tensor::Batch& batch, const models::ModelShape& shape) const override;
  /// Returns the number of rows that count.
  double weight(const tensor::Batch& batch) const override;
  /// Errors ("reconstruction"): with gan, a batch that is not one of judged() or not_judged().
  at::Tensor loss(const models::Model& model, const models::States& end, const nn::ForwardContext& step) const override;
  int64_t sums() const override { return lpips_ ? 5 : 4; }
  /// Evaluates without the discriminator.
  at::Tensor evaluate(const models::Model& model, const models::States& end,
                      const nn::ForwardContext& step) const override;
  /// Returns eval_loss, eval_l1 and eval_kl, which are D and K, and eval_psnr in dB: the mean of the pictures' peak
  /// signal-to-noise ratios, of pixels cut to [-1, 1]; of a clip that of its frames. With lpips also eval_lpips, P.
  /// Held-out pictures keep their noise.
  std::vector<Metric> metrics(const std::vector<double>& sums, double weight) const override;

 private:
  /// The terms of each row, [B]; 0 in rows that do not count.
  struct Terms {
    at::Tensor l1, kl, lpips;  // lpips: undefined without that weight
  };
  Terms terms(const models::States& end, const nn::ForwardContext& step) const;
  at::Tensor losses(const Terms& terms) const;
  OpenedData open_pictures(const Config& config) const;

  ReconstructionKeys keys_;
  LatentNoiseOptions options_;
  std::optional<Lpips> lpips_;
  std::optional<ReconstructionClips> clips_;  // of an autoencoder of clips
};

}  // namespace colossal::run
