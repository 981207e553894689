// What pictures are drawn with: the model, what it was trained for, and the parts beside it. Known before a weight is
// read.
//
//   const PipelineSource source = pipeline_in_folder("stable-diffusion-v1-5", models::built_in());
//   const noise::SamplerPlan plan = plan_of(source, {.sampler = "ddpm", .steps = 100});
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "colossal/models/registry.h"
#include "colossal/models/shape.h"
#include "colossal/models/shape_parts.h"
#include "colossal/noise/sampler.h"
#include "colossal/ops/convolution.h"
#include "colossal/run/adapter_choice.h"
#include "colossal/run/config.h"
#include "colossal/run/image_encoder_source.h"
#include "colossal/run/objectives/diffusion/diffusion_keys.h"
#include "colossal/run/own_tables.h"
#include "colossal/text/captions.h"

namespace colossal::run {

/// A text encoder of a pipeline, with its tokenizer.
struct CaptionSource {
  std::string encoder{};                   ///< folder, run or preset; empty = the model has it within it
  std::string tokenizer{};                 ///< folder of its tokenizer, or "bytes"
  std::vector<text::CaptionWord> words{};  ///< words of captions that a run learns
  int64_t first_word = 0;                  ///< id of the first of them: the vocabulary of the encoder
  bool operator==(const CaptionSource&) const = default;
};

/// A model that draws, with the parts that it needs besides. A part is a folder of weights, a run, or the name of a
/// preset, whose weights are drawn from `seed`.
struct PipelineSource {
  std::string model{};                    ///< for load_model(); empty = a run that trains it
  std::vector<CaptionSource> captions{};  ///< one for each of DenoiserSizes::captions; empty = it is told a class
  bool zeros_for_empty = false;           ///< the model reads zeros in place of the states of an empty caption
  std::string text_adapters{};            ///< run whose adapters are merged into the text encoder; empty = none
  std::string vae{};                      ///< the autoencoder; empty = the model draws pixels
  uint64_t seed = 1;                      ///< of the weights of presets
  models::DenoiserSizes sizes{};          ///< of the model
  bool has_two_axes = false;              ///< its blocks attend over one of two axes (models::AttentionAxes)
  int64_t factor = 1;                     ///< pixels of a side for each cell that the model draws
  DiffusionKeys keys{};                   ///< completed()
  noise::SamplerOptions sampler{};        ///< sampler that draws if a user names none, and options of all samplers
  std::vector<std::string> class_names{};
  std::vector<std::string> notices{};      ///< lines for the user
  std::vector<std::string> learned{};      ///< files and runs with words for the text encoder (run/learned_words.h)
  std::optional<AdapterChoice> control{};  ///< ControlNet that the model gets within it (Loading::control)
  std::optional<AdapterChoice> image_prompt{};  ///< IP-adapter that it gets (Loading::image_prompt)
  ImageEncoderSource image_encoder{};           ///< of that IP-adapter, or of the one that a run trains

  bool reads_text() const { return sizes.text > 0; }
  bool has_latents() const { return !vae.empty(); }
};

/// Parts that replace those of a pipeline; empty = they stay.
struct OtherParts {
  std::string vae{};  ///< as [vae] from: a folder, a makers' file, a run, a preset or a pipeline, or "none" = pixels
  /// As [text_encoder] from: a pipeline, whose encoders replace all; or a folder, a run or a preset, which takes the
  /// place of the only encoder of its kind (CLIP or T5), or of the only one that is missing. A name says which one,
  /// "text_encoder_3=t5-v1_1-xxl", and commas divide several.
  std::string text_encoder{};
};

/// Returns true for the folder of a pipeline of diffusers, for a makers' single file of one, and for a folder of a
/// model of clips with its parts (PipelineIndex).
bool has_pipeline(const std::string& path);

/// Returns the pipeline of a model that draws but is none itself, such as the folder of a transformer or its makers'
/// file. It has no parts beside it but those of replace_parts(). Errors: those of find_source(); ("model") captions
/// without a text encoder.
PipelineSource pipeline_of_model(const std::string& path, const std::string& vae, const std::string& text_encoder);

/// Returns the pipeline of such a folder or file, with `other` parts in place of its own, which it then may lack.
/// `sampler`: that of the user, which lets the folder have a scheduler of an unknown class; empty = none.
/// Errors: those of read_pipeline(), read_pipeline_index(), open_scheduler(), Registry::shape_of() and replace_parts();
/// ("model") a pipeline whose parts do not fit each other; parts that neither the folder nor `other` has.
PipelineSource pipeline_in_folder(const std::string& folder, const models::Registry& registry,
                                  const std::string& sampler = "", const OtherParts& other = {});

/// Replaces parts of a pipeline. `vae` and `text_encoder`: as in OtherParts. No weight is read.
/// Errors: those of find_source(); ("vae") an autoencoder of other latents than the model draws; pixels for a model of
/// another number of channels than 3; ("text encoder") a model that reads no captions, or several encoders, of which it
/// is not clear which one is meant; no text encoder; a folder without a tokenizer; those of check_encoders().
void replace_parts(PipelineSource& source, const std::string& vae, const std::string& text_encoder);

/// Returns the pipeline that a run trains: its parts are those of model.from, a pipeline or a run, or the presets that
/// its model names, and [vae] from and [text_encoder] from replace some (replace_parts()). No weight is read.
/// Errors: those of completed(), pipeline_in_folder(), replace_parts() and find_source(); ("model") a width of captions
/// that no text encoder has; ("diffusion") guidance for a model that has learned to draw without it.
PipelineSource pipeline_of_run(const Config& config, const OwnTables& tables, const models::ModelShape& shape);

/// Sets the autoencoder of a pipeline, and the sizes that follow from it. `from`: a folder, a run, a preset or a
/// pipeline; empty = the one that it has, "none" = pixels. Errors: as pipeline_of_run().
void set_autoencoder(PipelineSource& source, const std::string& from);

/// The options of a sampler that a user gives; those left out are the pipeline's.
struct GivenSampler {
  std::string sampler{}, spacing{};  ///< empty = left out
  int64_t steps = 25;
  bool karras = false;
  double eta = 0;
  double strength = 1;
  ops::PictureSize cells{};  ///< of the pictures, by which diffusion.shift = "auto" moves times; zeros = the model's
  int64_t frames = 1;        ///< of the clips, for the same
};

/// Returns true if a drawing with the weight `guidance` has a second pass in each step. A model that is told the weight
/// (DenoiserSizes::told_guidance) has one pass.
bool has_second_pass(const PipelineSource& source, double guidance);

/// Checks the weight of guidance. Errors (`component`): another weight than 1 for a model that has learned to draw
/// without guidance, and has no input for it (FLUX schnell).
void check_guidance(const PipelineSource& source, double guidance, const char* component);

/// Returns the options of the sampler for the pipeline. ddpm uses the variance of a model that predicts one.
noise::SamplerOptions options_of(const PipelineSource& source, const GivenSampler& given);

/// Returns its plan. Errors: those of noise::plan_sampler().
noise::SamplerPlan plan_of(const PipelineSource& source, const GivenSampler& given);

/// Checks that text encoders, one for each of PipelineSource::captions, give what the model reads. Errors: those of
/// models::joined_captions().
void check_encoders(const PipelineSource& source, const std::vector<models::TextEncoderSizes>& encoders);

/// Returns the converter of captions for a text encoder of a pipeline, into `part.tokens` ids. Errors: those of
/// text::make_captions(); ("text encoder") a tokenizer with more tokens than the encoder.
text::Captions captions_for(const CaptionSource& source, const models::CaptionPart& part,
                            const models::ModelShape& encoder);

/// The ids of a caption for one text encoder.
struct CaptionIds {
  at::Tensor ids, mask;   ///< int64 [1, tokens]; the mask is 1 for a token of the caption, and 0 for a pad
  std::string warning{};  ///< what the encoder does not read of the caption; empty = it reads all
};

/// Returns the ids of a caption.
CaptionIds caption_ids(const text::Captions& captions, const std::string& caption);

}  // namespace colossal::run
