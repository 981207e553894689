#include "colossal/run/objectives/diffusion/noised_samples.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "colossal/base/checksum.h"
#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/models/caption_parts.h"
#include "colossal/noise/loss_weight.h"
#include "colossal/run/objectives/sample_noise.h"

namespace colossal::run {
namespace {

using tensor::Dim;

constexpr double kImageWithLabel = 1.0 / 2, kImageAlone = 1.0 / 18;  // shares of rows without their image prompt
constexpr double kGoldenRatio = 0.61803398874989485;                 // the fractions of its multiples are spread evenly

/// Returns the standard normal number with this cumulated probability, in [0, 1).
double normal_quantile(double uniform) {
  const double inside = std::clamp(uniform, 1e-12, 1 - 1e-12);
  return std::sqrt(2.0) * at::erfinv(at::scalar_tensor(2 * inside - 1, at::kDouble)).item<double>();
}

/// Writes a x + b y to a row of a field.
void mix_into(tensor::Batch& batch, const char* field, int64_t row, const noise::Mix& factors, const at::Tensor& x,
              const at::Tensor& y) {
  batch.at(field).select(0, row).copy_(factors.signal * x + factors.noise * y);
}

void set(tensor::Batch& batch, const char* field, int64_t row, double value) {
  batch.at(field).mutable_data_ptr<float>()[row] = static_cast<float>(value);
}

/// Returns the size by which times are shifted.
noise::DrawnSize drawn_size(const at::Tensor& picture, const NoisedOptions& o) {
  const int64_t height = picture.size(-2), width = picture.size(-1);
  const auto patches = [&](int64_t side) { return (side + o.patch - 1) / o.patch; };
  return {.pixels = static_cast<double>(o.factor * height) * static_cast<double>(o.factor * width),
          .frames = picture.dim() == 4 ? picture.size(1) : 1,
          .tokens = patches(height) * patches(width)};
}

/// Returns which frames of a clip are given, int64 [frames], drawn from the seed.
at::Tensor given_frames(const GivenFrames& shares, int64_t frames, uint64_t seed) {
  at::Tensor given = at::zeros({frames}, at::kLong);
  if (frames < 2) return given;
  const double drawn = uniform_of(seed, "given");
  if (drawn < shares.first) {
    given[0] = 1;
  } else if (drawn < shares.first + shares.last) {
    given[frames - 1] = 1;
  } else if (drawn < shares.all()) {
    const double share = 0.1 + 0.8 * uniform_of(seed, "share of given frames");
    for (int64_t i = 0; i < frames; ++i) given[i] = uniform_of(seed, concat("given frame ", i).c_str()) < share ? 1 : 0;
    if (given.all().item<bool>()) given[frames - 1] = 0;
  }
  return given;
}

/// Returns the batch with what follows from the latents of its rows.
tensor::Batch with_signals(const tensor::Batch& batch, const at::Tensor& latents) {
  tensor::Batch complete = batch;
  std::vector<int64_t> of_row(static_cast<size_t>(latents.dim()), 1);
  of_row.front() = -1;
  const at::Tensor given = batch.find(kGiven);
  const bool noises_given = batch.find(kShown).defined();
  const auto is_given = [&] { return given.to(latents.options()).view({given.size(0), 1, -1, 1, 1}); };
  const auto add_signal = [&](const char* name, int64_t which) {
    const tensor::Field& noise = batch.field(name);
    at::Tensor factors = batch.at(kSignals).select(1, which).to(latents.options()).view(of_row);
    if (given.defined() && !noises_given && which == 0)  // given frames are the latent itself
      factors = factors * is_given().eq(0) + is_given();
    const at::Tensor mixed = factors * latents + noise.tensor.to(latents.device());
    complete = complete.with(name, {mixed.to(at::kFloat), noise.dims});
  };
  add_signal(kNoised, 0);
  add_signal(kTargets, 1);
  if (noises_given) complete = complete.with(kShown, {(latents * is_given()).to(at::kFloat), batch.field(kShown).dims});
  if (batch.find(kPictures).defined())
    complete = complete.with(kPictures, {latents.to(at::kFloat), batch.field(kPictures).dims});
  return complete;
}

}  // namespace

tensor::Batch noised_batch(int64_t rows, const NoisedOptions& o, at::Device device) {
  const auto numbers = at::TensorOptions(device).dtype(at::kFloat);
  std::vector<int64_t> sizes{rows, o.channels, o.height, o.width};
  if (o.frames > 0) sizes.insert(sizes.begin() + 2, o.frames);
  std::vector<Dim> dims(sizes.size(), Dim::Other);
  dims.front() = Dim::Row;
  const auto whole = numbers.dtype(at::kLong);
  tensor::Batch batch;
  batch.add(kNoised, {at::zeros(sizes, numbers), dims});
  batch.add(kTimes, {at::zeros({rows}, numbers), {Dim::Row}});
  if (o.gives_frames()) batch.add(kGiven, {at::zeros({rows, o.frames}, whole), {Dim::Row, Dim::Other}});
  if (o.gives_frames() && o.noises_given) batch.add(kShown, {at::zeros(sizes, numbers), dims});
  if (o.text > 0 && o.tells_ids())
    for (size_t i = 0; i < o.id_tokens.size(); ++i)
      batch.add(models::caption_part_name(kIds, i), {at::zeros({rows, o.id_tokens[i]}, whole), {Dim::Row, Dim::Other}});
  if (o.text > 0 && !o.reads_ids)
    batch.add(kText, {at::zeros({rows, o.tokens, o.text}, numbers), {Dim::Row, Dim::Other, Dim::Feature}});
  if (o.pooled > 0) batch.add(kPooled, {at::zeros({rows, o.pooled}, numbers), {Dim::Row, Dim::Other}});
  if (o.masks_text) {
    batch.add(kTextMask, {at::zeros({rows, o.tokens}, whole), {Dim::Row, Dim::Other}});
    batch.add(kUntold, {at::zeros({rows}, whole), {Dim::Row}});
  }
  for (const models::Condition& one : o.conditions)
    batch.add(one.name, one.zeros(rows, {.height = o.height, .width = o.width}, numbers));
  if (o.text == 0) batch.add(kClasses, {at::zeros({rows}, whole), {Dim::Row}});
  batch.add(kTargets, {at::zeros(sizes, numbers), dims});
  batch.add(kWeights, {at::zeros({rows}, numbers), {Dim::Row}});
  batch.add(kLevels, {at::zeros({rows}, numbers), {Dim::Row}, /*ignored=*/-1});
  if (o.has_pictures) batch.add(kPictures, {at::zeros(sizes, numbers), dims});
  if (o.unencoded == 0) return batch;
  std::vector<int64_t> pixels{rows, 3, o.unencoded * o.height, o.unencoded * o.width};
  if (o.frames > 0) pixels.insert(pixels.begin() + 2, o.pixel_frames > 0 ? o.pixel_frames : o.frames);
  batch.add(kPixels, {at::zeros(pixels, numbers), dims});
  batch.add(kSampleNoise, {at::zeros(sizes, numbers), dims});
  batch.add(kSignals, {at::zeros({rows, 2}, numbers.dtype(at::kDouble)), {Dim::Row, Dim::Other}});
  return batch;
}

tensor::Batch with_latents(const tensor::Batch& batch, const at::Tensor& latents, const tensor::Batch& told) {
  tensor::Batch complete = batch;
  if (latents.defined()) complete = with_signals(batch, latents);
  for (const char* name : {kPixels, kSampleNoise, kSignals}) complete = complete.without(name);
  if (told.rows() > 0)
    for (size_t i = 0; batch.find(models::caption_part_name(kIds, i)).defined(); ++i)
      complete = complete.without(models::caption_part_name(kIds, i));
  for (const auto& [name, field] : told.fields())
    complete = complete.with(
        name, {field.tensor.is_floating_point() ? field.tensor.to(at::kFloat) : field.tensor, field.dims});
  return complete;
}

Noiser::Noiser(const NoisedOptions& options)
    : options_(options), target_(options.keys.noise_target()), levels_(options.keys.levels()) {}

uint64_t Noiser::seed_of(int64_t index, uint64_t seed) const {
  return options_.is_held_out ? derive_seed(kHeldOutSeed, static_cast<uint64_t>(index)) : seed;
}

bool Noiser::is_mirrored(uint64_t own_seed) const {
  return !options_.is_held_out && options_.mirror && uniform_of(own_seed, "mirror") < 0.5;
}

Noiser::Drawn Noiser::draw(double uniform, const at::Tensor& picture) const {
  if (target_ == noise::Target::Flow) {
    const double shift = noise::automatic_shift(options_.shift, drawn_size(picture, options_));
    const double t = noise::flow_time(options_.keys.flow(shift), uniform, normal_quantile(uniform));
    return {noise::flow_level(t, levels_.steps()), t};
  }
  if (target_ == noise::Target::Edm)
    return {noise::edm_level(noise::edm_training_sigma(normal_quantile(uniform))), uniform};
  const auto t = static_cast<int64_t>(uniform * static_cast<double>(levels_.steps()));
  return {noise::table_level(levels_, t), static_cast<double>(t) / static_cast<double>(levels_.steps())};
}

Noiser::Dropped Noiser::dropped(uint64_t own_seed) const {
  if (options_.is_held_out) return {};
  Dropped dropped{.label = uniform_of(own_seed, "label") < options_.keys.drop_label};
  dropped.image = uniform_of(own_seed, "image") < (dropped.label ? kImageWithLabel : kImageAlone);
  return dropped;
}

void Noiser::tell(const Told& told, const Dropped& dropped, tensor::Batch& batch, int64_t row) const {
  const auto set_integer = [&](const char* field, int64_t value) {
    batch.at(field).mutable_data_ptr<int64_t>()[row] = value;
  };
  for (const models::Condition& one : options_.conditions) {
    const at::Tensor value = batch.at(one.name).select(0, row);
    if (dropped.image && one.name == models::kImageEmbedding)
      value.zero_();
    else
      value.copy_(told.conditions.at(one.name)[0]);
  }
  if (options_.text == 0) return set_integer(kClasses, dropped.label ? options_.null_class : told.label);
  const bool has_null = options_.masks_text;  // of its own, so the empty caption is not needed
  const tensor::Batch& caption = dropped.label && !has_null ? told.empty : told.caption;
  for (const auto& [name, field] : caption.fields()) batch.at(name).select(0, row).copy_(field.tensor[0]);
  if (has_null) set_integer(kUntold, dropped.label ? 1 : 0);
}

void Noiser::give_frames(const at::Tensor& clip, uint64_t own_seed, tensor::Batch& batch, int64_t row) const {
  const at::Tensor given = given_frames(options_.keys.given_frames, clip.size(1), own_seed);
  batch.at(kGiven).select(0, row).copy_(given);
  const at::Tensor is_given = given.ne(0).view({1, -1, 1, 1}), noised = batch.at(kNoised).select(0, row);
  if (options_.noises_given)
    batch.at(kShown).select(0, row).copy_(clip * is_given);
  else
    noised.copy_(at::where(is_given, clip, noised));
}

void Noiser::fill(const at::Tensor& picture, const Told& told, int64_t index, uint64_t own_seed, tensor::Batch& batch,
                  int64_t row) const {
  const DiffusionKeys& keys = options_.keys;
  const bool is_trained = !options_.is_held_out;
  const double spread = std::fmod((static_cast<double>(index) + 0.5) * kGoldenRatio, 1.0);
  const auto [level, share] = draw(is_trained ? uniform_of(own_seed, "time") : spread, picture);
  at::Tensor noise = normal_of(own_seed, "noise", picture.sizes().vec());
  if (keys.offset_noise > 0) {
    std::vector<int64_t> of_channel(static_cast<size_t>(picture.dim()), 1);
    of_channel.front() = options_.channels;
    noise += keys.offset_noise * normal_of(own_seed, "offset", of_channel);
  }
  const noise::Mix wanted = noise::training_target(target_, level.mix);
  const at::Tensor input = keys.input_perturbation > 0 && is_trained
                               ? noise + keys.input_perturbation * normal_of(own_seed, "input", noise.sizes().vec())
                               : noise;
  const double scale = noise::input_scale(target_, level.mix);
  mix_into(batch, kNoised, row, {scale * level.mix.signal, scale * level.mix.noise}, picture, input);
  mix_into(batch, kTargets, row, wanted, picture, noise);
  if (options_.gives_frames() && is_trained) give_frames(picture, own_seed, batch, row);
  tell(told, dropped(own_seed), batch, row);
  const double snr = std::pow(level.mix.signal / level.mix.noise, 2);
  set(batch, kTimes, row, level.time);
  set(batch, kWeights, row, noise::min_snr_weight(target_, snr, keys.min_snr));
  set(batch, kLevels, row, share);
  if (options_.has_pictures) batch.at(kPictures).select(0, row).copy_(picture);
  if (options_.unencoded == 0) return;
  double* signals = batch.at(kSignals).mutable_data_ptr<double>() + 2 * row;
  signals[0] = scale * level.mix.signal;
  signals[1] = wanted.signal;
}

void NoisedSamples::fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const {
  const NoisedOptions& o = noiser_.options();
  tensor::Batch source = pictures_->make(1);
  pictures_->fill(index, seed, source, 0);
  at::Tensor picture = source.at("images")[0];
  require(picture.sizes() == at::IntArrayRef({o.channels, o.height, o.width}), "data",
          "pictures must have the sizes of the model, ", o.channels, " x ", o.height, " x ", o.width, ": got ",
          picture.sizes());
  const uint64_t own = noiser_.seed_of(index, seed);
  if (noiser_.is_mirrored(own)) picture = picture.flip({2});
  noiser_.fill(picture, {.label = source.at("labels").item<int64_t>()}, index, own, batch, row);
}

nlohmann::json NoisedSamples::traits() const {
  nlohmann::json traits = pictures_->traits();
  traits["diffusion"] = noiser_.options().keys.fingerprint();
  traits["mirror"] = noiser_.options().mirror;
  return traits;
}

}  // namespace colossal::run
