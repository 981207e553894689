// The keys of models that predict the noise of pictures. This header needs no LibTorch.
//
//   [diffusion]
//   target = "v"                  # what the model predicts
//   zero_terminal_snr = true
//   [vae]
//   from = "runs/vae-shapes"      # the autoencoder whose latents the model learns
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/noise/flow_times.h"
#include "colossal/noise/noise_levels.h"
#include "colossal/noise/target.h"

namespace colossal::run {

/// Names of the tables.
inline constexpr char kDiffusion[] = "diffusion", kVae[] = "vae", kTextEncoder[] = "text_encoder";

/// Shares of the rows of clips in which some frames are given: they stay clean and leave the loss, so that the model
/// learns to continue clips.
struct GivenFrames {
  double first = 0;   ///< the first frame is given
  double last = 0;    ///< the last one is
  double random = 0;  ///< each frame is given by chance, but one at least is not
  double all() const { return first + last + random; }
  void fields(Fields& f);
  bool operator==(const GivenFrames&) const = default;
};

/// The table [diffusion]. Keys whose text is empty, and a guidance of 0, are those of the model (completed()).
struct DiffusionKeys {
  std::string target, schedule;
  double beta_start = 0, beta_end = 0;  ///< 0 = the schedule's own
  int64_t steps = 1000;                 ///< number of noise levels
  bool zero_terminal_snr = false;
  double min_snr = 0, offset_noise = 0, input_perturbation = 0;
  std::string times = "uniform", shift = "auto";
  double drop_label = 0.1;
  double prior_loss = 1;
  double guidance = 0;
  GivenFrames given_frames;
  void fields(Fields& f);
  bool operator==(const DiffusionKeys&) const = default;

  /// Returns a checksum of the keys, which names those that a run may lack only if they are set: a run that began
  /// before there was such a key can go on.
  std::string fingerprint() const;

  noise::Target noise_target() const { return noise::target_named(target); }
  noise::NoiseOptions levels() const;
  /// Returns the options of a flow; `automatic` = the shift that "auto" stands for.
  noise::FlowOptions flow(double automatic = 1) const;
};

/// The table [vae].
struct VaeKeys {
  std::string from;  ///< a folder, a run or a preset; empty = that of the model; "none" = pixels
  void fields(Fields& f);
  bool operator==(const VaeKeys&) const = default;
};

/// The table [text_encoder].
struct TextEncoderKeys {
  std::string from;  ///< OtherParts::text_encoder; empty = those of the model
  void fields(Fields& f);
  bool operator==(const TextEncoderKeys&) const = default;
};

/// The keys of [data] for pictures that a model learns to draw.
struct DrawnDataKeys {
  std::vector<int64_t> size;  ///< width and height in pixels; empty = those of the model
  int64_t buckets = 64;       ///< sides of buckets are multiples of it; 0 = one bucket, `size`
  std::string latents = "auto";
  bool mirror = false;
  std::string prior;  ///< a folder with pictures of the class; empty = none
  /// Of models of clips: lengths in frames of pixels, ascending; empty = the frames of the model. And for each length
  /// (data::ClipLengths): the probability that a clip which reaches it is used at it, and rows of a global batch
  std::vector<int64_t> frames;
  std::vector<double> keep;
  std::vector<int64_t> batch_sizes;
  double fps = 24;  ///< the rate of their frames
  /// Returns true if each step encodes its pictures and captions.
  bool encodes_in_step() const { return latents == "none"; }
  void fields(Fields& f);
  bool operator==(const DrawnDataKeys&) const = default;
};

/// Shows the keys of clips, which several objectives have in [data].
void show_clip_keys(Fields& f, std::vector<int64_t>& frames, std::vector<double>& keep,
                    std::vector<int64_t>& batch_sizes, double& fps);

/// The rate that a model of clips is told of a clip of one frame, which is a picture: that of Open-Sora 1.2.
inline constexpr double kPictureRate = 120;

/// Returns the keys with those of the model, `defaults`, where the config gives none, after checks of each key and of
/// keys together. Keys of training alone have no default of the model.
/// Errors ("diffusion"): unknown names, with the nearest; epsilon with zero_terminal_snr; keys of a flow without
/// target = "flow"; min_snr, levels or betas that have no effect; shares of given_frames above 1 together.
DiffusionKeys completed(DiffusionKeys keys, const DiffusionKeys& defaults);

}  // namespace colossal::run
