// Finds out early that the folder of a model is missing, and says how to get it.
//
//   require_model_path("qwen", "chat");            // passes if there is such a file or folder
//   require_model_path("Qwen/Qwen2.5-0.5B", "chat");   // "...; download it with `hf download Qwen/Qwen2.5-0.5B ..."
//
// And finds the model in the folder of a pipeline:
//
//   model_folder("stable-diffusion-v1-5");         // "stable-diffusion-v1-5/unet"
#pragma once
#include <string>

namespace colossal {

/// Returns the rest of a message about a path at which there is nothing, from "; " on. If the path has the form of a
/// model's name at Hugging Face, `owner/name`, and no folder is called like its owner, the rest has the command that
/// downloads the model. Otherwise it is `otherwise`.
std::string download_advice(const std::string& path, const std::string& otherwise);

/// Checks that there is a file or folder. Errors (`component`): there is none, with the rest of download_advice().
void require_model_path(const std::string& path, const char* component);

/// Returns true for the folder of a pipeline of diffusers: it has a model_index.json, and no config.json of its own.
bool is_pipeline(const std::string& path);

/// Returns the folder with config.json and weights of the model that `path` stands for. Of a pipeline it is the part
/// that denoises, `unet` or `transformer`; any other path is returned as it is.
/// Errors ("model"): a pipeline without such a part.
std::string model_folder(const std::string& path);

}  // namespace colossal
