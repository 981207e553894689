// The objective of models that predict the noise of pictures: noised pictures, the squared error of the prediction, and
// evaluations that can be compared.
//
//   const auto* diffusion = dynamic_cast<const run::DiffusionObjective*>(&engine.objective());
//   diffusion->keys().guidance, diffusion->sizes().classes;              // what drawing needs
//
// The loss of a row is the mean of (prediction - target)^2 over its elements, times its min-SNR weight. A model that
// predicts a variance too (DiT) adds the variational bound of that variance, in bits per element, with the mean held
// fixed (arXiv:2102.09672).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/data/videos/clip_lengths.h"
#include "colossal/models/denoiser.h"
#include "colossal/run/image_prompt_source.h"
#include "colossal/run/low_rank_keys.h"
#include "colossal/run/objective.h"
#include "colossal/run/objectives/diffusion/diffusion_keys.h"
#include "colossal/run/objectives/diffusion/drawn_pictures.h"
#include "colossal/run/objectives/diffusion/latent_samples.h"
#include "colossal/run/objectives/diffusion/noised_samples.h"
#include "colossal/run/objectives/diffusion/pipeline_source.h"

namespace colossal::run {

/// The objective. All ranks compute the loss of all rows of a micro-batch.
class DiffusionObjective final : public Objective {
 public:
  static constexpr int kQuarters = 4;

  /// Errors ("objective"): a model that predicts no noise. Errors of pipeline_of_run(), size_of_pictures(),
  /// check_clip_keys() and lengths_of_clips(); ("data") a prior with an odd batch size.
  DiffusionObjective(const Config& config, const OwnTables& tables, const models::ModelShape& shape);

  /// Returns the keys of [diffusion], completed().
  const DiffusionKeys& keys() const { return options_.keys; }
  const models::DenoiserSizes& sizes() const { return pipeline_.sizes; }
  /// Returns the names of the classes; empty = numbers only.
  const std::vector<std::string>& class_names() const { return pipeline_.class_names; }
  /// Returns what the model draws with.
  const PipelineSource& pipeline() const { return pipeline_; }
  /// Returns true if the model has its text encoder within it.
  bool trains_text_encoder() const { return trains_text_encoder_; }
  /// Returns true if the model has a ControlNet within it.
  bool trains_control() const { return control_.has_value(); }
  /// Returns the encoder of pictures of a run that trains an IP-adapter; another run has none.
  const ImageEncoderSource& image_encoder() const { return image_encoder_; }
  /// Returns true if the run learns words.
  bool learns_words() const { return word_rows_ > 0; }
  /// Returns the keys of [data] that only such runs have.
  const DrawnDataKeys& data_keys() const { return data_keys_; }

  /// Errors: those of models::with_text_encoder(), trained_control() and trained_image_prompt().
  models::ModelShape with_parts(models::ModelShape shape) const override;
  OpenedData open(const DataRequest& request) const override;
  /// Clips have the length of the batches with the most frames.
  tensor::Batch example(int64_t rows) const override;
  /// Returns the states of captions, if a step encodes its rows.
  std::vector<std::string> added_fields() const override;
  void check(const tensor::Batch& batch) const override;
  /// Returns the patches of pictures or of all frames of clips, in the size of the batch.
  int64_t tokens(const tensor::Batch& batch, const models::ModelShape& shape) const override;
  /// Returns true if pictures or clips are in buckets.
  bool varies_in_size() const override { return pipeline_.sizes.classes == 0; }
  /// Returns the number of rows that count.
  double weight(const tensor::Batch& batch) const override;
  at::Tensor loss(const models::Model& model, const models::States& end, const nn::ForwardContext& step) const override;
  int64_t sums() const override { return 1 + 2 * kQuarters; }
  at::Tensor evaluate(const models::Model& model, const models::States& end,
                      const nn::ForwardContext& step) const override;
  /// Returns eval_loss, and eval_loss_1 to eval_loss_4: the mean of the rows in each quarter of the noise levels, from
  /// the least noise to the most.
  std::vector<Metric> metrics(const std::vector<double>& sums, double weight) const override;

 private:
  at::Tensor losses(const models::Model& model, const models::States& end, const nn::ForwardContext& step) const;

  /// The pictures or clips of a run, and what is stored of them.
  struct Drawn {
    std::shared_ptr<DrawnPictures> pictures{};
    std::shared_ptr<const LatentCache> cache{};  // null = each step encodes its rows, or there is nothing to encode
    std::function<bool(const DrawnPicture&)> is_known{};
  };
  OpenedData open_pixels(const DataRequest& request) const;
  OpenedData open_drawn(const DataRequest& request) const;
  Drawn open_pictures(const Config& config) const;
  void check_control() const;
  void check_image_prompt() const;
  LatentOptions latent_options(bool has_cache) const;
  NoisedOptions held_out_options() const;
  void take_words(const LowRankKeys& keys);
  void check_words(const DrawnPictures& pictures) const;

  PipelineSource pipeline_;
  bool trains_text_encoder_;
  std::optional<std::string> control_;  // adapter.from of a run that trains a ControlNet
  LowRankKeys image_prompt_{};          // keys of a run that trains an IP-adapter
  ImageEncoderSource image_encoder_{};  // of such a run
  int64_t word_rows_ = 0;               // vectors of the words that a run learns
  DrawnDataKeys data_keys_;
  data::ClipLengths lengths_;  // of clips
  NoisedOptions options_;
};

}  // namespace colossal::run
