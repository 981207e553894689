#include "colossal/diffusion/pipeline_parts.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/pipeline_parts.h"
#include "colossal/distributed/row_group.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/autoencoder_clips.h"
#include "colossal/models/autoencoder_kl_rows.h"
#include "colossal/models/autoencoder_tiles.h"
#include "colossal/models/caption_parts.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/image_encoder.h"
#include "colossal/models/not_finite.h"
#include "colossal/models/text_encoder.h"
#include "colossal/run/adapter_source.h"
#include "colossal/run/learned_words.h"
#include "colossal/run/model_source.h"
#include "colossal/run/objectives/diffusion/prompt_pictures.h"

namespace colossal::diffusion {
namespace {

constexpr size_t kMostEncoders = 3;  // of a pipeline

/// Returns `x` as a model takes it.
at::Tensor for_model(const at::Tensor& x, const OwnModel& model) {
  const nn::Parameters::Options& options = model.parameters().options();
  return x.to(options.device).to(at::promote_types(options.dtype, at::kFloat));
}

at::Tensor on_host(const at::Tensor& x) { return x.to(at::kCPU).to(at::promote_types(x.scalar_type(), at::kFloat)); }

/// Returns the encoder of pictures; null = there is none.
std::unique_ptr<OwnModel> loaded_image_encoder(const run::ImageEncoderSource& source, OwnLoading loading,
                                               comm::World& world, at::Device device, const run::Program& program) {
  if (source.path.empty()) return nullptr;
  loading.seed = source.seed;
  return std::make_unique<OwnModel>(source.path, world, device, loading, program);
}

/// Returns the adapters that are merged into the text encoder of that number: those of its run, and those among
/// `adapters` that have some.
std::vector<run::AdapterChoice> text_adapters_of(const run::PipelineSource& source, size_t encoder,
                                                 std::vector<run::AdapterChoice> adapters) {
  const auto number = static_cast<int64_t>(encoder);
  std::erase_if(adapters, [number](const run::AdapterChoice& choice) {
    return !run::has_text_adapters(run::open_adapters(choice.folder), number);
  });
  for (run::AdapterChoice& choice : adapters) choice.text_encoder = number;
  if (!source.text_adapters.empty())
    adapters.insert(adapters.begin(), {.folder = source.text_adapters, .text_encoder = number});
  return adapters;
}

/// Refuses adapters of text encoders that the pipeline lacks.
void check_text_adapters(const run::PipelineSource& source, const std::vector<run::AdapterChoice>& adapters) {
  for (const run::AdapterChoice& choice : adapters)
    for (size_t i = source.captions.size(); i < kMostEncoders; ++i)
      require(!run::has_text_adapters(run::open_adapters(choice.folder), static_cast<int64_t>(i)), "adapter",
              "adapters must be of text encoders that the pipeline has, ", source.captions.size(), ": got some of ",
              models::caption_part_name(kTextEncoderPart, i), " in ", choice.folder, "; they belong to another base");
}

/// Returns the number of text encoders of CLIP, which come first; at least 1.
int64_t encoders_of_clip(const run::PipelineSource& source, const run::Program& program) {
  int64_t count = 0;
  for (const run::CaptionSource& one : source.captions)
    if (one.encoder.empty() || run::find_source(one.encoder, program).shape.part<models::TextEncoderSizes>().begins)
      ++count;
  return std::max<int64_t>(1, count);
}

}  // namespace

PipelineParts::PipelineParts(const run::PipelineSource& source, comm::World& world, at::Device device,
                             const PartsLoading& loading, const run::Program& program)
    : sizes_(source.sizes),
      zeros_for_empty_(source.zeros_for_empty),
      saves_memory_(loading.saves_memory),
      notices_(source.notices) {
  const auto add_notices_of = [this](const OwnModel& part) {
    notices_.insert(notices_.end(), part.notices().begin(), part.notices().end());
  };
  OwnLoading own = loading, of_text = loading;
  own.words.clear();
  const std::vector<run::LearnedWord> words = run::read_words(source.learned);
  own.seed = of_text.seed = source.seed;
  own.adapters.clear();
  check_text_adapters(source, loading.adapters);
  const int64_t of_clip = encoders_of_clip(source, program);
  std::vector<models::TextEncoderSizes> encoders;
  for (size_t i = 0; i < source.captions.size(); ++i) {
    run::CaptionSource caption = source.captions[i];
    const bool is_within = caption.encoder.empty();
    of_text.words.clear();
    if (!words.empty() && (is_within || static_cast<int64_t>(i) < of_clip))
      of_text.words = run::words_of_encoder(words, static_cast<int64_t>(i), of_clip);
    of_text.adapters = is_within ? std::vector<run::AdapterChoice>() : text_adapters_of(source, i, loading.adapters);
    if (!of_text.words.empty()) caption.words = run::caption_words(of_text.words);
    const int64_t tokens = source.sizes.captions.at(i).tokens;
    if (is_within) {
      encoders_.push_back(
          {text::make_captions(caption.tokenizer, tokens).with_words(caption.words, caption.first_word)});
      continue;
    }
    const auto load = [&world, device, of_text, program, path = caption.encoder] {
      return std::make_unique<OwnModel>(path, world, device, of_text, program);
    };
    auto model = load();
    encoders_.push_back({run::captions_for(caption, source.sizes.captions[i], model->model().shape)});
    encoders.push_back(models::text_encoder_of(model->model().shape));
    add_notices_of(*model);
    if (saves_memory_)  // it was loaded once, so that errors do not wait for a caption
      encoders_.back().load = load;
    else
      encoders_.back().model = std::move(model);
  }
  if (!encoders.empty()) run::check_encoders(source, encoders);
  image_encoder_ = loaded_image_encoder(source.image_encoder, own, world, device, program);
  if (image_encoder_) add_notices_of(*image_encoder_);
  load_vae(source, own, world, device, program);
}

void PipelineParts::load_vae(const run::PipelineSource& source, OwnLoading own, comm::World& world, at::Device device,
                             const run::Program& program) {
  if (source.vae.empty()) return;
  const bool overflows = source.sizes.sizes > 0 && own.dtype == at::kHalf &&
                         run::find_source(source.vae, program).shape.part<models::FloatRange>().exceeds_fp16;
  if (overflows) {
    own.dtype = at::kFloat;
    notices_.push_back(concat("the autoencoder ", source.vae,
                              " computes in fp32, because its numbers overflow in fp16 (force_upcast)"));
  }
  vae_ = std::make_unique<OwnModel>(source.vae, world, device, own, program);
  const models::AutoencoderSizes sizes = models::autoencoder_of(vae_->model().shape);
  require(sizes.channels == source.sizes.channels, "draw", "the autoencoder ", source.vae, " must have latents of ",
          source.sizes.channels, " channels, which the model draws: got ", sizes.channels);
  notices_.insert(notices_.end(), vae_->notices().begin(), vae_->notices().end());
}

at::Tensor PipelineParts::embedding(const std::string& bytes, const std::string& name) const {
  require(image_encoder_ != nullptr, "draw", "an image prompt needs an encoder of pictures: got none");
  const at::NoGradGuard no_grad;
  const int64_t side = models::image_encoder_of(image_encoder_->model().shape).side;
  const at::Tensor pixels = run::pixels_to_encode(bytes, name, side).unsqueeze(0);
  const nn::Parameters::Options& options = image_encoder_->parameters().options();
  return on_host(models::image_embedding(image_encoder_->model(), pixels.to(options.device).to(options.dtype)));
}

tensor::Batch PipelineParts::told(const std::string& caption, int64_t clip_skip) {
  const at::NoGradGuard no_grad;
  std::vector<tensor::Batch> read;
  tensor::Batch within;  // ids for encoders that the model has within it
  for (size_t i = 0; i < encoders_.size(); ++i) {
    const Encoder& one = encoders_[i];
    run::CaptionIds tokens = run::caption_ids(one.captions, caption);
    const bool is_new = std::find(notices_.begin(), notices_.end(), tokens.warning) == notices_.end();
    if (!tokens.warning.empty() && is_new) notices_.push_back(std::move(tokens.warning));  // encoders lose the same
    const std::unique_ptr<OwnModel> loaded = one.load ? one.load() : nullptr;
    const OwnModel* encoder = loaded ? loaded.get() : one.model.get();
    if (!encoder) {
      within.add(models::caption_part_name("ids", i), {tokens.ids, {tensor::Dim::Row, tensor::Dim::Other}});
      continue;
    }
    const at::Device device = encoder->parameters().options().device;
    const tensor::Batch told = models::read_caption(sizes_.captions[i], encoder->model(), tokens.ids.to(device),
                                                    tokens.mask.to(device), clip_skip);
    read.push_back(told.map([](const tensor::Field& field) {
      return field.tensor.is_floating_point() ? on_host(field.tensor) : field.tensor.to(at::kCPU);
    }));
  }
  if (read.empty()) return within;
  tensor::Batch told = models::joined_captions(sizes_, read);
  if (!caption.empty() || !zeros_for_empty_) return told;
  return told.map([](const tensor::Field& field) { return at::zeros_like(field.tensor); });
}

at::Tensor PipelineParts::pixels(const at::Tensor& drawn, bool in_tiles, comm::Group* ranks) const {
  if (!vae_) return drawn;
  const at::NoGradGuard no_grad;
  const models::AutoencoderSizes sizes = models::autoencoder_of(vae_->model().shape);
  std::vector<at::Tensor> pictures;  // one at a time, because the largest tensors have the size of the pictures
  distributed::RowGroup group(ranks ? *ranks : vae_->alone());
  for (const at::Tensor& latent : drawn.split(1)) {
    const at::Tensor sample = for_model(models::sample_of(sizes, latent), *vae_);
    pictures.push_back(on_host(decoded(sample, in_tiles, group)));
    // The search for the layer decodes once more, so it is not an argument of require().
    if (pictures.back().isfinite().all().item<bool>()) continue;
    std::string where = saves_memory_ ? "" : models::not_finite_in_decoder(vae_->model(), sample);
    if (where.empty()) where = "a layer";  // the whole picture, which is not searched by rows, may have finite numbers
    throw Error("draw", concat("the numbers of the autoencoder must be finite: ", where, " gives others",
                               models::finite_remedy(vae_->parameters().options().dtype)));
  }
  return at::cat(pictures);
}

at::Tensor PipelineParts::decoded(const at::Tensor& sample, bool in_tiles, distributed::RowGroup& group) const {
  const models::Model& model = vae_->model();
  const nn::Parameters& parameters = vae_->parameters();
  if (in_tiles) return models::decoded_in_tiles(model, parameters, sample);
  return models::decoded_exactly(model, parameters, sample, &group, saves_memory_);
}

at::Tensor PipelineParts::moments(const at::Tensor& pixels, bool in_tiles, distributed::RowGroup& group) const {
  const models::Model& model = vae_->model();
  const nn::Parameters& parameters = vae_->parameters();
  if (in_tiles) return models::moments_in_tiles(model, parameters, pixels);
  return models::moments_exactly(model, parameters, pixels, &group, saves_memory_);
}

at::Tensor PipelineParts::drawn(const at::Tensor& pixels, bool in_tiles, comm::Group* ranks) const {
  if (!vae_) return pixels;
  const at::NoGradGuard no_grad;
  const models::AutoencoderSizes sizes = models::autoencoder_of(vae_->model().shape);
  const at::Tensor given = for_model(pixels, *vae_);
  distributed::RowGroup group(ranks ? *ranks : vae_->alone());
  const at::Tensor moments = this->moments(given, in_tiles, group);
  return on_host(models::latent_of(sizes, moments.chunk(2, 1)[0]));
}

bool PipelineParts::decodes_clips() const { return vae_ && models::autoencoder_of(vae_->model().shape).frames > 0; }

void PipelineParts::decode_frames(const at::Tensor& clip, int64_t frames,
                                  const std::function<void(const at::Tensor&)>& take) const {
  const at::NoGradGuard no_grad;
  const models::AutoencoderSizes sizes = models::autoencoder_of(vae_->model().shape);
  const auto take_chunk = [&](const at::Tensor& chunk) {
    const at::Tensor pixels = on_host(chunk);
    require(pixels.isfinite().all().item<bool>(), "draw", "the numbers of the autoencoder must be finite: got others",
            models::finite_remedy(vae_->parameters().options().dtype));
    for (const at::Tensor& frame : pixels[0].unbind(1)) take(frame);
  };
  models::decode_in_chunks(vae_->model(), for_model(models::sample_of(sizes, clip), *vae_), take_chunk, frames,
                           {.parameters = &vae_->parameters(), .saves_memory = saves_memory_});
}

at::Tensor PipelineParts::drawn_frame(const at::Tensor& pixels, bool in_tiles, comm::Group* ranks) const {
  if (!decodes_clips()) return drawn(pixels, in_tiles, ranks);
  const at::NoGradGuard no_grad;
  const at::Tensor frame = for_model(pixels, *vae_).unsqueeze(2);
  at::Tensor moments;
  models::encode_in_chunks(
      vae_->model(), 1, [&](int64_t, int64_t) { return frame; }, [&](const at::Tensor& own) { moments = own; },
      {.parameters = &vae_->parameters(), .saves_memory = saves_memory_});
  const models::AutoencoderSizes sizes = models::autoencoder_of(vae_->model().shape);
  return on_host(models::latent_of(sizes, moments.chunk(2, 1)[0])).squeeze(2);
}

std::string PipelineParts::note_of_tiles(const ops::PictureSize& cells) const {
  if (!vae_) return "";
  const models::AutoencoderSizes sizes = models::autoencoder_of(vae_->model().shape);
  if (!models::takes_tiles(sizes, cells)) return "";
  return concat("decoded in tiles of ", sizes.height, " pixels, which is approximate; without tiles it is exact");
}

std::vector<std::string> PipelineParts::take_notices() { return std::exchange(notices_, {}); }

std::vector<train::MemoryNeed> needs_of_parts(const run::PipelineSource& source, const run::Program& program) {
  std::vector<train::MemoryNeed> needs;
  const auto need_of = [&](const std::string& part, const auto& work) {
    const run::ModelSource model = run::find_source(part, program);
    return train::whole_model_need(model.shape, model.dtype, work);
  };
  for (const run::CaptionSource& caption : source.captions) {
    if (caption.encoder.empty()) continue;
    const auto need = need_of(caption.encoder, [](const models::Model&, const nn::Parameters&) {});
    needs.push_back({"text encoder", train::kFrozenParameters, need.weights, "device"});
  }
  if (!source.image_encoder.path.empty()) {
    const auto need = need_of(source.image_encoder.path, [](const models::Model&, const nn::Parameters&) {});
    needs.push_back({"image encoder", train::kFrozenParameters, need.weights, "device"});
  }
  if (!source.has_latents()) return needs;
  const std::vector<int64_t> sizes{1, source.sizes.channels, source.sizes.height, source.sizes.width};
  const auto need = need_of(source.vae, [&](const models::Model& model, const nn::Parameters& parameters) {
    const at::ScalarType dtype = at::promote_types(parameters.options().dtype, at::kFloat);
    const at::Tensor latent = at::empty(sizes, at::TensorOptions(dtype).device(at::kMeta));
    if (models::autoencoder_of(model.shape).frames == 0)
      models::decoded_exactly(model, parameters, latent);
    else
      models::decode_in_chunks(model, latent.unsqueeze(2).expand({-1, -1, source.sizes.frames, -1, -1}),
                               [](const at::Tensor&) {}, 0, {.parameters = &parameters});
  });
  needs.push_back({"autoencoder", train::kFrozenParameters, need.weights, "device"});
  needs.push_back({"", "decoding", need.tensors, "device"});
  return needs;
}

}  // namespace colossal::diffusion
