// The folder of a pipeline of diffusers (0.42): model_index.json, which names the class of each part, and a folder for
// each part.
//
//   const PipelineFolder pipeline = read_pipeline("stable-diffusion-v1-5");
//   pipeline.at("unet").folder;                                    // "stable-diffusion-v1-5/unet"
//   if (const PipelinePart* vae = pipeline.find("vae")) ...
//   for (const std::string& notice : pipeline.notices) ...         // "... safety_checker ... is not read ..."
//
// And back:
//
//   write_file("out/model_index.json", index_of(pipeline).dump(2) + "\n");
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace colossal::run {

/// A part of a pipeline that is read.
struct PipelinePart {
  /// "unet", "transformer", "vae", "text_encoder", "tokenizer" or "scheduler"; of further text encoders
  /// "text_encoder_2", "tokenizer_2" and so on
  std::string name{};
  std::string library{};     ///< "diffusers" or "transformers"
  std::string class_name{};  ///< such as "UNet2DConditionModel"
  std::string folder{};      ///< its folder, with the path of the pipeline
};

struct PipelineFolder {
  std::string path{};
  std::string class_name{};                ///< such as "StableDiffusionPipeline"
  std::vector<PipelinePart> parts{};       ///< without the parts that are null in model_index.json
  std::vector<std::string> class_names{};  ///< of a DiTPipeline with id2label: the name of each class, in order
  std::vector<std::string> notices{};      ///< a line for the user about each part that is not read
  bool zeros_for_empty = false;            ///< of SDXL: force_zeros_for_empty_prompt

  /// Returns the part of that name; null = the pipeline has none.
  const PipelinePart* find(const std::string& name) const;
  /// Returns the part of that name. Errors ("pipeline"): the pipeline has none.
  const PipelinePart& at(const std::string& name) const;
  /// Returns the part that denoises, a unet or a transformer. Errors ("pipeline"): the pipeline has none.
  const PipelinePart& denoiser() const;
};

/// Returns the classes of pipelines that are read: text to picture, from a picture and inpainting of Stable Diffusion
/// 1, 2 and XL, text to picture of Stable Diffusion 3 and FLUX, and DiT's.
std::vector<std::string> pipeline_names();

/// Reads model_index.json of a pipeline, or finds the parts of a makers' single file (checkpoint/ldm/file.h), beside
/// which the folder `tokenizer`, and for further encoders in it `tokenizer_2` and `tokenizer_3`, must be, because the
/// file has none. In a folder it checks
/// that the folder of each part is there. No other file is read. The class of a scheduler is not checked
/// (diffusion/scheduler_config.h). A safety checker and what belongs to it, and the image encoder of IP adapters, are
/// left out with a notice: they change no picture of a prompt. `replaced`: parts that another folder gives, such as
/// "vae", or "text_encoder" for all of them with their tokenizers; they are left out if their folders are missing.
/// Errors ("pipeline"): no model_index.json; a class of pipeline or part that is not known, with the nearest; a part
/// that pipelines of this class do not have; a part whose folder is missing; names of classes that do not count from 0;
/// a model that is told a score of beauty (the refiner of SDXL).
PipelineFolder read_pipeline(const std::string& path, const std::vector<std::string>& replaced = {});

/// Returns the usual class of a part in pipelines of a class: class_of_part("FluxPipeline", "text_encoder_2") is
/// "T5EncoderModel". Errors ("pipeline"): an unknown class of pipelines; a part that they do not have.
std::string class_of_part(const std::string& pipeline, const std::string& part);

/// Returns the model_index.json of a pipeline. Parts that pipelines of its class have, and that `pipeline` lacks, are
/// null. Errors ("pipeline"): an unknown class, with the nearest.
nlohmann::json index_of(const PipelineFolder& pipeline);

}  // namespace colossal::run
