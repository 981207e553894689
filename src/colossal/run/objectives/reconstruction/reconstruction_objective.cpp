#include "colossal/run/objectives/reconstruction/reconstruction_objective.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/data/pictures/shapes.h"
#include "colossal/run/objectives/built_in.h"
#include "colossal/run/objectives/class_pictures.h"
#include "colossal/run/objectives/diffusion/drawn_clips.h"
#include "colossal/run/objectives/reconstruction/adversarial.h"
#include "colossal/run/objectives/text_data.h"
#include "colossal/run/unused_keys.h"

namespace colossal::run {
namespace {

/// Sets the sides to those of data.size, if it is given.
void set_sides(const std::vector<int64_t>& size, LatentNoiseOptions& options) {
  if (size.empty()) return;
  require(size.size() == 2, "data", "size must be a width and a height: got ", size.size(), " numbers");
  options.width = size[0], options.height = size[1];
  const auto nearest = [&](int64_t side) {
    return std::max<int64_t>(1, (side + options.factor / 2) / options.factor) * options.factor;
  };
  require(size[0] % options.factor == 0 && size[1] % options.factor == 0, "data", "size must be divisible by ",
          options.factor, ", the pixels of a side for a cell of the latent: got [", size[0], ", ", size[1],
          "]; nearest: [", nearest(size[0]), ", ", nearest(size[1]), "]");
}

/// Returns the pictures of the batch as the model reconstructs them, [B, pixels, channels].
at::Tensor wanted_pixels(const at::Tensor& like, const nn::ForwardContext& step) {
  return pixels_of(step.batch->at("images"), like);
}

ops::PictureSize size_of_pictures(const nn::ForwardContext& step) {
  const at::Tensor& images = step.batch->at("images");
  return {images.size(-2), images.size(-1)};
}

/// Returns pixels [B, T H W, channels] of clips by frame, [B, T, H W, channels].
at::Tensor by_frame(const at::Tensor& pixels, const nn::ForwardContext& step) {
  return pixels.unflatten(1, {frames_of(*step.batch), -1});
}

/// Refuses keys that have no effect, or lack others.
void check_terms(const ReconstructionKeys& keys, const DiscriminatorKeys& discriminator) {
  require(keys.l1 > 0 || keys.kl > 0 || keys.lpips > 0, kReconstruction,
          "l1, kl or lpips must be above 0: got 0 for all; set l1 = 1");
  require(keys.lpips == 0 || !keys.lpips_from.empty(), kReconstruction, "lpips = ", keys.lpips,
          " needs lpips_from, a folder with its weights: got none; set reconstruction.lpips_from, or lpips = 0");
  refuse_unused_keys(kReconstruction, describe_config(keys), describe_config(ReconstructionKeys()),
                     {{"lpips_from", keys.lpips > 0, "reconstruction.lpips above 0"},
                      {"gan_start", keys.gan > 0, "reconstruction.gan above 0"}});
  require(keys.gan > 0 || discriminator == DiscriminatorKeys(), kDiscriminator,
          "the table needs reconstruction.gan above 0, without which it has no effect: got 0; leave [", kDiscriminator,
          "] out, or set reconstruction.gan");
}

/// Refuses axes that would divide the discriminator, or the pictures that it judges.
void check_axes(const distributed::ParallelConfig& parallel) {
  for (const auto& [name, size] : {std::pair{"tensor", parallel.tensor.size},
                                   {"sequence", parallel.sequence.size},
                                   {"pipeline", parallel.pipeline.size},
                                   {"expert", parallel.expert.size}})
    require(size == 1, kReconstruction, "gan needs parallel.", name, ".size = 1, because a discriminator judges whole ",
            "pictures of one stage: got ", size, "; use data, zero and the tiers of memory, or set gan = 0");
}

}  // namespace

ReconstructionObjective::ReconstructionObjective(const Config& config, const OwnTables& tables,
                                                 const models::ModelShape& shape)
    : keys_(tables.as<ReconstructionKeys>(kReconstruction)) {
  const models::AutoencoderSizes sizes = models::autoencoder_of(shape);
  const auto data = tables.data<ReconstructionDataKeys>();
  options_ = {.channels = sizes.pixel_channels,
              .height = sizes.height,
              .width = sizes.width,
              .latent_channels = sizes.channels,
              .factor = sizes.factor,
              .mirror = data.mirror};
  set_sides(data.size, options_);
  if (sizes.frames == 0) {
    refuse_clip_keys(drawn_keys(data), "open-sora-vae-1.2");
  } else {
    clips_.emplace(config, data, sizes);
    options_ = clips_->with_frames(options_, clips_->largest_frames());
  }
  check_terms(keys_, tables.as<DiscriminatorKeys>(kDiscriminator));
  if (keys_.gan > 0) check_axes(config.parallel);
  if (keys_.lpips == 0) return;
  require(std::min(options_.width, options_.height) >= kLeastSideOfLpips && options_.channels == 3, kReconstruction,
          "lpips needs pictures of at least ", kLeastSideOfLpips, " x ", kLeastSideOfLpips,
          " pixels in 3 channels: got ", options_.width, " x ", options_.height, " in ", options_.channels,
          "; set data.size, or lpips = 0");
  lpips_.emplace(keys_.lpips_from);
}

OpenedData ReconstructionObjective::open(const DataRequest& request) const {
  const Config& config = request.config;
  if (lpips_) lpips_->check();
  check_unused_data_keys(config.data, {.images = true});
  return clips_ ? clips_->open(request, options_) : open_pictures(config);
}

OpenedData ReconstructionObjective::open_pictures(const Config& config) const {
  const bool are_there = data::parse_builtin_shapes(config.data.path) || data::PictureFolder::is_one(config.data.path);
  require(are_there, "data", "path must be \"builtin-shapes\", or a folder with pictures in folders: got ",
          config.data.path);
  // Pixels of [0, 1] become those of [-1, 1].
  OpenedData data = open_class_pictures(config, {.count = 0, .channels = options_.channels},
                                        {.width = options_.width,
                                         .height = options_.height,
                                         .mean = std::vector<double>(3, 0.5),
                                         .deviation = std::vector<double>(3, 0.5),
                                         .middle = 1,
                                         .on_error = on_error_of(config.data)});
  LatentNoiseOptions held_out = options_;
  held_out.is_held_out = true;
  data.training = std::make_shared<LatentNoiseSamples>(std::move(data.training), options_);
  if (data.held_out) data.held_out = std::make_shared<LatentNoiseSamples>(std::move(data.held_out), held_out);
  data.class_names.clear();  // the model has no classes
  data.threads = static_cast<int>(config.data.threads);
  return data;
}

tensor::Batch ReconstructionObjective::example(int64_t rows) const {
  return with_added(latent_noise_batch(rows, options_, at::kMeta));
}

tensor::Batch ReconstructionObjective::with_added(tensor::Batch example) const {
  return keys_.gan > 0 ? not_judged(example) : example;
}

std::vector<std::string> ReconstructionObjective::added_fields() const {
  if (keys_.gan == 0) return {};
  return {kAdversarialLosses, kAdversarialGradient};
}

void ReconstructionObjective::check(const tensor::Batch& batch) const {
  const at::Tensor &images = batch.at("images"), &noise = batch.at("noise");
  const bool are_clips = clips_.has_value();
  require(images.dim() == (are_clips ? 5 : 4) && images.size(1) == options_.channels &&
              images.size(-2) % options_.factor == 0 && images.size(-1) % options_.factor == 0,
          "data", "images must be [B, ", options_.channels, are_clips ? ", T" : "", ", H, W] with sides that ",
          options_.factor, " divides: got ", images.sizes());
  const int64_t latents = are_clips ? clips_->with_frames(options_, frames_of(batch)).latent_frames : 0;
  require(noise.dim() == images.dim() && noise.size(1) == options_.latent_channels &&
              (!are_clips || noise.size(2) == latents) && noise.size(-2) * options_.factor == images.size(-2) &&
              noise.size(-1) * options_.factor == images.size(-1),
          "data", "noise must be [B, ", options_.latent_channels, are_clips ? concat(", ", latents) : "", ", H / ",
          options_.factor, ", W / ", options_.factor, "] of images of ", images.sizes(), ": got ", noise.sizes());
  require(batch.at(kCounts).dim() == 1, "data", "counts must be [B]: got ", batch.at(kCounts).sizes());
}

int64_t ReconstructionObjective::tokens(const tensor::Batch& batch, const models::ModelShape&) const {
  const at::Tensor& images = batch.at("images");
  return images.numel() / images.size(1);
}

double ReconstructionObjective::weight(const tensor::Batch& batch) const {
  const at::Tensor& counts = batch.at(kCounts);
  return counts.is_meta() ? static_cast<double>(batch.rows()) : counts.sum().item<double>();
}

ReconstructionObjective::Terms ReconstructionObjective::terms(const models::States& end,
                                                              const nn::ForwardContext& step) const {
  const at::Tensor& pixels = end.at(models::AutoencoderStates::hidden);
  const at::Tensor wanted = wanted_pixels(pixels, step), apart = pixels - wanted;
  const std::vector<at::Tensor> moments = end.at(models::AutoencoderStates::moments).chunk(2, -1);
  const at::Tensor &mean = moments[0], &log_variance = moments[1];
  const at::Tensor divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum({1, 2}) / 2;
  const at::Tensor counts = counts_of(pixels, step);
  Terms terms{.l1 = (apart * apart.detach().sign()).mean({1, 2}) * counts,  // in C++, abs cannot run on sizes alone
              .kl = divergence / static_cast<double>(pixels.size(1) * pixels.size(2)) * counts};
  if (lpips_) {
    const auto frames = [&](const at::Tensor& x) { return by_frame(x, step).flatten(0, 1); };
    const at::Tensor distances = lpips_->distance(frames(pixels), frames(wanted), size_of_pictures(step));
    terms.lpips = distances.view({pixels.size(0), -1}).mean(1) * counts;
  }
  return terms;
}

at::Tensor ReconstructionObjective::losses(const Terms& terms) const {
  const at::Tensor sum = keys_.l1 * terms.l1 + keys_.kl * terms.kl;
  return lpips_ ? sum + keys_.lpips * terms.lpips : sum;
}

at::Tensor ReconstructionObjective::loss(const models::Model&, const models::States& end,
                                         const nn::ForwardContext& step) const {
  const at::Tensor sum = losses(terms(end, step)).sum();
  if (keys_.gan == 0) return sum;
  const at::Tensor& pixels = end.at(models::AutoencoderStates::hidden);
  return sum + keys_.gan * (adversarial_losses(pixels, step) * counts_of(pixels, step)).sum();
}

at::Tensor ReconstructionObjective::evaluate(const models::Model&, const models::States& end,
                                             const nn::ForwardContext& step) const {
  const Terms of_rows = terms(end, step);
  const at::Tensor& pixels = end.at(models::AutoencoderStates::hidden);
  const at::Tensor squares = (pixels.clamp(-1, 1) - wanted_pixels(pixels, step)).square();
  const at::Tensor errors = by_frame(squares, step).mean({2, 3});  // of each frame
  const at::Tensor decibels =
      ((errors.clamp_min(1e-12) / 4).log10() * -10).mean(1) * counts_of(pixels, step);  // of pixels whose range is 2
  std::vector<at::Tensor> sums{losses(of_rows).sum(), of_rows.l1.sum(), of_rows.kl.sum(), decibels.sum()};
  if (lpips_) sums.push_back(of_rows.lpips.sum());
  return at::stack(sums);
}

std::vector<Metric> ReconstructionObjective::metrics(const std::vector<double>& sums, double weight) const {
  std::vector<Metric> rows = Objective::metrics(sums, weight);
  const char* const plot = "Held-out reconstruction";
  rows.push_back(
      {.name = "eval_l1", .value = mean_of(sums.at(1), weight), .plot = plot, .legend = "distance of pixels"});
  rows.push_back({.name = "eval_kl", .value = mean_of(sums.at(2), weight), .plot = plot, .legend = "divergence"});
  rows.push_back({.name = "eval_psnr",
                  .value = mean_of(sums.at(3), weight),
                  .unit = "dB",
                  .plot = "Held-out signal-to-noise ratio"});
  if (lpips_)
    rows.push_back({.name = "eval_lpips", .value = mean_of(sums.at(4), weight), .plot = plot, .legend = "LPIPS"});
  return rows;
}

void complete_reconstruction(Config& config, const OwnTables& tables, std::vector<std::string>&) {
  complete_clip_batches(config, drawn_keys(tables.data<ReconstructionDataKeys>()));
}

std::vector<FurtherModel> reconstruction_models(const Config&, const OwnTables& tables, const models::ModelShape&) {
  if (tables.as<ReconstructionKeys>(kReconstruction).gan == 0) return {};
  return {{.name = kDiscriminator, .use = ModelUse::Trained}};
}

std::unique_ptr<Objective> make_reconstruction(const Config& config, const OwnTables& tables,
                                               const models::ModelShape& shape) {
  return std::make_unique<ReconstructionObjective>(config, tables, shape);
}

}  // namespace colossal::run
