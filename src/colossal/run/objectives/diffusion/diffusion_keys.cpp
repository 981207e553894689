#include "colossal/run/objectives/diffusion/diffusion_keys.h"

#include <cstdlib>

#include "colossal/base/checksum.h"
#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/noise/loss_weight.h"
#include "colossal/run/unused_keys.h"

namespace colossal::run {

void GivenFrames::fields(Fields& f) {
  f.number("first", first, "of the rows", "share of clips whose first frame is given", 0, 1);
  f.number("last", last, "of the rows", "share of clips whose last frame is given", 0, 1);
  f.number("random", random, "of the rows", "share of clips of which each frame is given by chance", 0, 1);
}

namespace {

/// Visits the keys that runs have had from the beginning.
void show_first_keys(DiffusionKeys& keys, Fields& f) {
  auto& [target, schedule, beta_start, beta_end, steps, zero_terminal_snr, min_snr, offset_noise, input_perturbation,
         times, shift, drop_label, prior_loss, guidance, given_frames] = keys;
  f.text("target", target,
         "what the model predicts: epsilon (the noise), v, sample (the picture), flow or edm; empty = that of the "
         "model");
  f.text("schedule", schedule,
         "how the noise levels rise: scaled-linear (Stable Diffusion), linear (DiT) or cosine; empty = that of the "
         "model");
  f.number("beta_start", beta_start, "", "variance that the first noise level adds; 0 = the schedule's", 0, 1);
  f.number("beta_end", beta_end, "", "variance that the last noise level adds; 0 = the schedule's", 0, 1);
  f.integer("steps", steps, "levels", "number of noise levels", 1, 1 << 20);
  f.flag("zero_terminal_snr", zero_terminal_snr,
         "the last noise level is noise alone (2305.08891); needs target v, sample, flow or edm");
  f.number("min_snr", min_snr, "", "gamma of min-SNR weights of the loss (2303.09556), usually 5; 0 = off", 0);
  f.number(
      "offset_noise", offset_noise, "",
      "share of noise that is the same for a whole channel, so that a model learns dark and light pictures; 0.1 is "
      "usual",
      0);
  f.number("input_perturbation", input_perturbation, "",
           "further noise of the input that the model need not predict (2301.11706); 0.1 is usual", 0);
  f.text("times", times, "target flow: distribution of training times: uniform, logit-normal or mode");
  f.number_or_word(
      "shift", shift, {"auto"},
      "target flow: factor by which times move to more noise; auto = that of the model's family, by the size of the "
      "picture or clip",
      0);
  f.number("drop_label", drop_label, "of the rows", "share of rows that see no class, for guidance", 0, 1);
  f.number("prior_loss", prior_loss, "", "with data.prior: weight of its loss beside that of the pictures", 0);
  f.number("guidance", guidance, "",
           "weight of classifier-free guidance for pictures that are drawn; 1 = none, 0 = that of the model", 0);
}

/// The keys but for those that later versions brought.
struct FirstKeys {
  DiffusionKeys keys;
  void fields(Fields& f) { show_first_keys(keys, f); }
};

}  // namespace

void DiffusionKeys::fields(Fields& f) {
  show_first_keys(*this, f);
  f.section("given_frames", given_frames,
            "target flow, models of clips: clips in which some frames stay clean and leave the loss");
}

std::string DiffusionKeys::fingerprint() const {
  const bool has_new = given_frames != GivenFrames();
  return checksum(has_new ? to_toml(*this) : to_toml(FirstKeys{*this}));
}

void VaeKeys::fields(Fields& f) {
  f.text("from", from,
         "autoencoder whose latents the model learns: a folder of diffusers, a makers' file or a run; none: the model "
         "works on pixels in [-1, 1]; empty = that of model.from or of the preset");
}

void TextEncoderKeys::fields(Fields& f) {
  f.text("from", from,
         "text encoder that reads captions, for models whose folder holds none: a folder of transformers with its "
         "tokenizer, which replaces the one of its kind, or with a name that one: text_encoder_3=FOLDER, several "
         "divided by commas; or a pipeline, whose text encoders all are taken; empty = those of model.from or of the "
         "preset");
}

void DrawnDataKeys::fields(Fields& f) {
  f.integers("size", size, "pixels", "width and height of pictures; empty = those of the model", 1, 65535);
  f.integer("buckets", buckets, "pixels",
            "models of captions: sides of the buckets into which pictures are sorted by their shape are multiples of "
            "this; 0 = all are cropped to size",
            0, 65535);
  f.text("latents", latents,
         "models of latents: folder for the stored latents and states of captions; auto = latents in the run folder; "
         "none = each step encodes its rows");
  f.flag("mirror", mirror, "show every second picture mirrored, on average");
  f.text("prior", prior,
         "models of latents: pictures of the class that half of each batch shows, so that it is not forgotten "
         "(DreamBooth, 2208.12242); empty = none");
  show_clip_keys(f, frames, keep, batch_sizes, fps);
}

void show_clip_keys(Fields& f, std::vector<int64_t>& frames, std::vector<double>& keep,
                    std::vector<int64_t>& batch_sizes, double& fps) {
  f.integers("frames", frames, "frames",
             "models of clips: lengths of clips, ascending; 1 = a picture; empty = that of the model", 1, 1 << 20);
  f.numbers("keep", keep, "",
            "models of clips: for each length the probability that a clip which reaches it is used at it, and not at a "
            "shorter one; empty = 1",
            0, 1);
  f.integers("batch_sizes", batch_sizes, "rows",
             "models of clips: for each length the rows of a global batch; empty = training.batch_size, else it is set "
             "to the rows of the batches with the most frames",
             1);
  f.number("fps", fps, "per second", "models of clips: frames are taken at this rate, by their time stamps", 0.01,
           1000);
}

noise::NoiseOptions DiffusionKeys::levels() const {
  return {.schedule = schedule,
          .beta_start = beta_start,
          .beta_end = beta_end,
          .steps = steps,
          .zero_terminal_snr = zero_terminal_snr};
}

noise::FlowOptions DiffusionKeys::flow(double automatic) const {
  return {.times = times, .shift = shift == "auto" ? automatic : std::strtod(shift.c_str(), nullptr)};
}

DiffusionKeys completed(DiffusionKeys keys, const DiffusionKeys& defaults) {
  const DiffusionKeys given = keys;
  if (keys.target.empty()) keys.target = defaults.target;
  if (keys.schedule.empty()) {  // the betas belong to their schedule
    keys.schedule = defaults.schedule;
    if (keys.beta_start == 0) keys.beta_start = defaults.beta_start;
    if (keys.beta_end == 0) keys.beta_end = defaults.beta_end;
  }
  if (keys.steps == DiffusionKeys().steps) keys.steps = defaults.steps;
  if (keys.shift == DiffusionKeys().shift) keys.shift = defaults.shift;
  if (keys.guidance == 0) keys.guidance = defaults.guidance;
  keys.zero_terminal_snr |= defaults.zero_terminal_snr;
  const noise::Target target = keys.noise_target();
  const noise::NoiseLevels levels(keys.levels());
  noise::check_target(target, levels.options());
  noise::check_flow_options(keys.flow(), target);
  noise::min_snr_weight(target, 1, keys.min_snr);
  const double shares = keys.given_frames.all();
  constexpr double kRounding = 1e-9;  // .33 + .56 + .11 is more than 1 in fp64
  require(shares <= 1 + kRounding, "diffusion", "the shares of given_frames must be 1 or less together: got ", shares,
          "; lower one of first, last and random");
  require(shares == 0 || target == noise::Target::Flow, "diffusion", "given_frames needs target = \"flow\": got ",
          keys.target, "; remove given_frames, or set the target");
  const bool has_table = target != noise::Target::Flow && target != noise::Target::Edm;
  const std::string needs_table = "target epsilon, v or sample";
  refuse_unused_keys(kDiffusion, describe_config(given), describe_config(DiffusionKeys()),
                     {{"schedule", has_table, needs_table},
                      {"beta_start", has_table, needs_table},
                      {"beta_end", has_table, needs_table},
                      {"zero_terminal_snr", has_table, needs_table}});
  return keys;
}

}  // namespace colossal::run
