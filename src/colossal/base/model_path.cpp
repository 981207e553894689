#include "colossal/base/model_path.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "colossal/base/error.h"

namespace colossal {
namespace {

/// Returns true for the names that Hugging Face gives to owners and models.
bool is_hub_name(const std::string& name) {
  return !name.empty() && name.front() != '.' && name.front() != '-' &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return c < 128 && (std::isalnum(c) || c == '-' || c == '_' || c == '.'); });
}

}  // namespace

std::string download_advice(const std::string& path, const std::string& otherwise) {
  const size_t slash = path.find('/');
  if (slash == std::string::npos) return otherwise;
  const std::string owner = path.substr(0, slash), name = path.substr(slash + 1);
  std::error_code ignored;
  if (!is_hub_name(owner) || !is_hub_name(name) || std::filesystem::exists(owner, ignored)) return otherwise;
  return concat("; download the model of that name with `hf download ", path, " --local-dir ", name,
                "`, then name the folder ", name);
}

void require_model_path(const std::string& path, const char* component) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) return;
  throw Error(component, concat("there is no file or folder ", path,
                                download_advice(path, "; name a run folder, a Hugging Face folder or a GGUF file")));
}

bool is_pipeline(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path + "/model_index.json", ignored) &&
         !std::filesystem::exists(path + "/config.json", ignored);
}

std::string model_folder(const std::string& path) {
  if (!is_pipeline(path)) return path;
  std::error_code ignored;
  for (const char* part : {"/unet", "/transformer"})
    if (std::filesystem::exists(concat(path, part, "/config.json"), ignored)) return path + part;
  throw Error("model", concat(path,
                              ": the model_index.json of a pipeline needs the folder unet or transformer, with "
                              "the config.json of the model that denoises: got neither; download the folder "
                              "completely"));
}

}  // namespace colossal
