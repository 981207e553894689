// Samples of noised pictures or clips: what a diffusion model reads, and what it shall predict.
//
//   const auto shapes = std::make_shared<data::ShapeSamples>(data::ShapeOptions{.count = 10000, .width = 16, ...});
//   run::NoisedSamples samples(shapes, {.keys = keys, .channels = 3, .height = 16, .width = 16, .null_class = 10});
//
// Fields, B rows:
//   noised    fp32 [B, C, h, w]: the noised picture, scaled as the model reads it
//   times     fp32 [B]: the noise level, as the model's time embedding reads it
//   classes   int64 [B]: the class, or the null class where it was dropped; of a model that is told one
//   text      fp32 [B, T, F]: the states of the caption, or of the empty one where it was dropped; of a model that
//             reads text
//   ids       int64 [B, T]: the tokens of that caption in place of its states; of a model with its text encoder within
//   pooled    fp32 [B, F]: the pooled state of that caption; of a model that reads one
//   targets   fp32 [B, C, h, w]: what the model shall predict
//   weights   fp32 [B]: the weight of the row's squared error
//   levels    fp32 [B]: the noise level as a share of all, in [0, 1), by which evaluations sort rows; -1 = the row does
//             not count, because it only fills up the last batch of an evaluation
//   pictures  fp32 [B, C, h, w]: the picture, if the model also predicts a variance
//
// Clips are fp32 [B, C, T, h, w] in place of [B, C, h, w]. Models of clips may have further fields (models/denoiser.h):
//   given      int64 [B, T]: 1 = the frame is not noised and leaves the loss; with [diffusion] given_frames
//   shown      fp32 [B, C, T, h, w]: the given frames as they are, the others 0; of a model for which given frames are
//              noised, too (models::DenoiserSizes::noises_given)
//   text_mask  int64 [B, tokens]: 1 = a token of the caption, 0 = a pad
//   untold     int64 [B]: 1 = the caption was dropped; the text is then still that of the caption
//
// Each of NoisedOptions::conditions is a further field in fp32 (models/conditions.h). The embedding of a picture for an
// IP-adapter is dropped, too: it is then zeros, in half of the rows without their caption and in 1/18 of the others.
// With drop_label = 0.1 these are 5 % each without the picture, without the caption and without both (2308.06721).
//
// Rows that a step encodes (NoisedOptions::unencoded) have the noise alone as noised and targets, no text, and besides:
//   pixels        fp32 [B, 3, H, W] or [B, 3, frames, H, W]: the picture or clip in [-1, 1]
//   sample_noise  fp32 [B, C, h, w]: of which the latent is drawn (drawn_latent()); 0 = its mean
//   signals       fp64 [B, 2]: the factors of the latent in noised and in targets
//
// Rows whose captions a step encodes (these, and with NoisedOptions::encodes_captions others) have no text, but:
//   ids           int64 [B, T]: the tokens of the caption, or of the empty one where it was dropped; those of a second
//                 and third text encoder are ids_2 and ids_3
// with_latents() completes both.
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "colossal/data/batches.h"
#include "colossal/models/conditions.h"
#include "colossal/noise/noise_levels.h"
#include "colossal/noise/target.h"
#include "colossal/run/objectives/diffusion/diffusion_keys.h"

namespace colossal::run {

/// Names of the fields. The ids for further text encoders are models::caption_part_name(kIds, i).
inline constexpr char kNoised[] = "noised", kTimes[] = "times", kClasses[] = "classes", kText[] = "text",
                      kTargets[] = "targets", kWeights[] = "weights", kLevels[] = "levels", kPictures[] = "pictures",
                      kPixels[] = "pixels", kIds[] = "ids", kSampleNoise[] = "sample_noise", kSignals[] = "signals",
                      kGiven[] = "given", kTextMask[] = "text_mask", kUntold[] = "untold", kPooled[] = "pooled",
                      kShown[] = "shown";

/// Options of NoisedSamples.
struct NoisedOptions {
  DiffusionKeys keys;  ///< completed()
  int64_t channels = 0, height = 0, width = 0;
  int64_t null_class = 0;         ///< index of the class that stands for no class
  int64_t text = 0;               ///< features of text states; 0 = the model is told a class
  bool reads_ids = false;         ///< true = the model is told tokens of captions in place of their states
  bool has_pictures = false;      ///< true = the field "pictures"
  bool mirror = false;            ///< true = every second picture on average is mirrored left to right
  int64_t unencoded = 0;          ///< pixels of a side of a cell, of rows that a step encodes; 0 = the rows are encoded
  bool encodes_captions = false;  ///< true = a step finds the states of captions
  bool is_held_out = false;       ///< true = noise, time and label of a sample depend on its index alone
  int64_t tokens = 77;            ///< of a caption, with pads
  int64_t frames = 0;             ///< of a clip, as the model reads it; 0 = pictures
  int64_t pixel_frames = 0;       ///< of a clip of pixels that a step encodes; 0 = as `frames`
  bool masks_text = false;        ///< true = the fields "text_mask" and "untold"
  bool noises_given = false;      ///< true = given frames are noised, too, and the field "shown" has them as they are
  int64_t pooled = 0;             ///< features of the pooled state of a caption; 0 = none
  std::vector<models::Condition> conditions{};  ///< what else rows are told (models::conditions_of())
  /// Tokens of a caption for each text encoder, of rows that are told ids
  std::vector<int64_t> id_tokens{77};
  std::string shift{};  ///< rule of the automatic shift (noise::automatic_shift())
  int64_t factor = 1;   ///< pixels of a side of a cell, for that rule
  int64_t patch = 1;    ///< cells of a side of a patch, for that rule
  /// Returns true if rows are told tokens, for the model or for the step.
  bool tells_ids() const { return reads_ids || unencoded > 0 || encodes_captions; }
  /// Returns true if some rows may have given frames.
  bool gives_frames() const { return frames > 0 && keys.given_frames.all() > 0; }
};

/// Returns a batch of those fields, zeros. `device` may be meta.
tensor::Batch noised_batch(int64_t rows, const NoisedOptions& options, at::Device device = at::kCPU);

/// Completes a batch of rows that a step encodes, in fp32 on the device of the results: `latents` [B, C, h, w] or
/// [B, C, T, h, w] as the model reads them, undefined for rows that have no pixels to encode, and what it reads of the
/// captions of its ids (models::joined_captions()), or no fields for a model that reads none.
/// In one process on a CPU the fields are, bit for bit, those that Noiser::fill() writes for the same results.
tensor::Batch with_latents(const tensor::Batch& batch, const at::Tensor& latents, const tensor::Batch& told);

/// What a row is told.
struct Told {
  int64_t label = 0;  ///< its class, of a model without captions
  /// The fields of its caption and of the empty one, with one row: states, or ids of rows that are told ids. With
  /// NoisedOptions::masks_text `empty` is not read, because the model has a null text of its own
  tensor::Batch caption{}, empty{};
  tensor::Batch conditions{};  ///< the field of each of NoisedOptions::conditions, with one row
};

/// Noises one picture or clip into a row of a batch. Noise, time, given frames and dropped label are pure functions of
/// the seed, or with `is_held_out` of the index of the sample alone: its time is the fraction of the index times the
/// golden ratio, so the times of any first samples are spread evenly, no label is dropped and no frame is given.
/// Evaluations can then be compared.
class Noiser {
 public:
  explicit Noiser(const NoisedOptions& options);
  const NoisedOptions& options() const { return options_; }
  /// Returns the seed of everything that a row draws.
  uint64_t seed_of(int64_t index, uint64_t seed) const;
  /// Returns true if the picture is shown mirrored.
  bool is_mirrored(uint64_t own_seed) const;
  /// Fills row `row` of noised_batch() with a picture [C, h, w] or a clip [C, T, h, w]; with zeros, if a step encodes
  /// the row.
  void fill(const at::Tensor& picture, const Told& told, int64_t index, uint64_t own_seed, tensor::Batch& batch,
            int64_t row) const;

 private:
  /// A noise level, and the share of levels below it.
  struct Drawn {
    noise::Level level;
    double share = 0;
  };
  /// Returns the level for a picture or clip of the sizes of `picture`.
  Drawn draw(double uniform, const at::Tensor& picture) const;
  /// What a row is not told.
  struct Dropped {
    bool label = false, image = false;
  };
  Dropped dropped(uint64_t own_seed) const;
  /// Writes what the row is told.
  void tell(const Told& told, const Dropped& dropped, tensor::Batch& batch, int64_t row) const;
  /// Writes which frames are given in this row, and puts them in place of the noised ones, or into the field "shown".
  void give_frames(const at::Tensor& clip, uint64_t own_seed, tensor::Batch& batch, int64_t row) const;

  NoisedOptions options_;
  noise::Target target_;
  noise::NoiseLevels levels_;
};

/// Noises pictures: samples with the fields "images" [B, C, h, w], whose pixels are in [-1, 1], and "labels" [B, 1].
///
/// Noise, time, dropped label and mirror image are pure functions of (seed, epoch, sample), as Noiser draws them.
class NoisedSamples final : public data::Samples {
 public:
  NoisedSamples(std::shared_ptr<const data::Samples> pictures, const NoisedOptions& options)
      : pictures_(std::move(pictures)), noiser_(options) {}
  int64_t count() const override { return pictures_->count(); }
  tensor::Batch make(int64_t rows) const override { return noised_batch(rows, noiser_.options()); }
  void fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const override;
  nlohmann::json traits() const override;
  std::vector<std::string> take_notices() const override { return pictures_->take_notices(); }

 private:
  std::shared_ptr<const data::Samples> pictures_;
  Noiser noiser_;
};

}  // namespace colossal::run
