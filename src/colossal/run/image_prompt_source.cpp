#include "colossal/run/image_prompt_source.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/base/run_folder.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/manifest.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/checkpoint/weight_source.h"
#include "colossal/comm/agreement.h"
#include "colossal/models/image_encoder.h"
#include "colossal/models/registry.h"
#include "colossal/models/unet_image_prompt.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/run/data.h"
#include "colossal/run/low_rank_adapter.h"
#include "colossal/run/model_source.h"
#include "colossal/run/program.h"
#include "colossal/run/stored_config.h"

namespace colossal::run {
namespace {

namespace fs = std::filesystem;

constexpr const char *kEncoderFolder = "image_encoder", *kFileStem = "ip-adapter", *kFileEnd = ".safetensors";
constexpr int64_t kNewTokens = 4;  // of a new IP-adapter; diffusers reads no other number

constexpr AddedPart kImagePart{
    .kind = kImagePromptKind, .is_of = models::is_of_image_prompt, .origin = models::image_prompt_origin};

/// The sizes of the tensors of an IP-adapter, by their names in its file.
using TensorSizes = std::map<std::string, std::vector<int64_t>>;

bool is_file(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

/// Returns true for an encoder of pictures: its folder, or the name of a preset.
bool is_image_encoder(const std::string& path) {
  std::error_code ignored;
  const bool exists = fs::exists(path, ignored);
  if (exists && (!fs::is_directory(path, ignored) || is_run(path) || !is_file(path + "/config.json"))) return false;
  if (exists && read_json_object(path + "/config.json", "adapter").value("model_type", "") != "clip_vision_model")
    return false;
  return find_source(path, built_in()).shape.part<models::ImageEncoderSizes>().features > 0;
}

/// Returns the file of the weights at a path, or in its folder.
std::string weight_file(const std::string& path) {
  const auto refuse_pickle = [](const std::string& file) {
    const std::string end = fs::path(file).extension().string();
    require(end != ".bin" && end != ".pt" && end != ".pth" && end != ".ckpt", "adapter",
            "an IP-adapter must be a file ", kFileStem, "*", kFileEnd, ": got ", file,
            ", which has Python objects, and those can run code; convert it to safetensors where you trust it");
  };
  std::error_code ignored;
  require(fs::exists(path, ignored), "adapter", "an IP-adapter must be in a file, a folder or a run: there is none at ",
          path);
  if (!fs::is_directory(path, ignored)) {
    refuse_pickle(path);
    require(path.ends_with(kFileEnd), "adapter", "an IP-adapter must be a file ", kFileStem, "*", kFileEnd, ": got ",
            path);
    return path;
  }
  std::vector<std::string> files, pickles;
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kFileStem)) continue;
    (name.ends_with(kFileEnd) ? files : pickles).push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  if (files.empty() && !pickles.empty()) refuse_pickle(pickles.front());
  require(files.size() == 1, "adapter", "the folder of an IP-adapter must have one file ", kFileStem, "*", kFileEnd,
          ": got ", files.empty() ? "none" : join(files), " in ", path,
          files.size() > 1 ? "; name the file" : "; a run must have adapter.kind = \"ip-adapter\"");
  return files.front();
}

/// Returns the name of the kind of projection, if it is not the one linear layer that is read here; "" = it is.
std::string other_projection(const TensorSizes& sizes) {
  const auto has = [&](const char* name) { return sizes.contains(std::string("image_proj.") + name); };
  if (has("proj.weight") && has("norm.weight")) return "";
  if (has("latents")) return "a resampler of all states of the encoder (IP-adapter plus)";
  if (has("proj.3.weight")) return "a projection of all states of the encoder (IP-adapter full)";
  for (const auto& [name, size] : sizes)
    if (name.starts_with("image_proj.")) return "a projection of other features (such as FaceID's)";
  return "none";
}

TensorSizes sizes_in_file(const std::string& path) {
  TensorSizes sizes;
  const checkpoint::SafetensorsReader file(weight_file(path));
  for (const auto& [name, entry] : file.entries()) sizes[name] = entry.shape;
  const std::string other = other_projection(sizes);
  require(other.empty(), "adapter", "the IP-adapter ", path,
          " must project embeddings by one linear layer and a norm: got ", other, "; name another file");
  return sizes;
}

TensorSizes sizes_in_run(const std::string& run, const models::ModelShape& shape) {
  const std::string newest = newest_checkpoint(run, checkpoint::step_folders(RunFolder(run).checkpoints()));
  const auto stored = checkpoint::Manifest::read(newest + "/manifest.json").tensors;
  TensorSizes sizes;
  for (const auto& [name, tensor] : stored) {
    const std::string start = "model.";
    if (!name.starts_with(start) || !models::is_of_image_prompt(name.substr(start.size()))) continue;
    sizes[name.substr(start.size())] = tensor.shape;
  }
  // Under the names of the file, of which keys and values have half of the rows each.
  TensorSizes named;
  for (const nn::ExternalName& one : models::image_prompt_names(shape)) {
    const auto found = sizes.find(one.ours);
    if (found == sizes.end()) continue;
    for (const nn::ExternalRows& rows : one.parts) {
      named[rows.name] = found->second;
      named[rows.name].front() /= static_cast<int64_t>(one.parts.size());
    }
    sizes.erase(found);
  }
  for (const auto& [name, size] : sizes) named[name] = size;  // those that the model does not have
  return named;
}

/// Returns the names of an IP-adapter's tensors in its file.
checkpoint::ExternalNames prompt_file_names(const models::ModelShape& shape) {
  return {.names = models::image_prompt_names(shape), .prefix = "", .stem = kFileStem};
}

/// Checks the layers of an IP-adapter against the model's, one by one.
void check_layers(const std::string& path, const TensorSizes& sizes, const models::ModelShape& shape) {
  nn::Parameters parameters({}, {.without_memory = true});
  nn::SerialLayers layers(parameters);
  models::make_model(shape, layers);
  size_t wanted = 0;
  for (const nn::ExternalName& one : models::image_prompt_names(shape))
    for (const nn::ExternalRows& rows : one.parts) {
      ++wanted;
      std::vector<int64_t> size = parameters.at(one.ours).spec.shape;
      size.front() /= static_cast<int64_t>(one.parts.size());
      const auto found = sizes.find(rows.name);
      require(found != sizes.end() && found->second == size, "adapter", "the IP-adapter ", path, " must have ",
              rows.name, " of the model's sizes, ", at::IntArrayRef(size), ": got ",
              found == sizes.end() ? std::string("none") : concat(at::IntArrayRef(found->second)),
              "; it belongs to another base");
    }
  require(sizes.size() == wanted, "adapter", "the IP-adapter ", path, " must have the ", wanted,
          " tensors of the model: got ", sizes.size(), "; it belongs to another base");
}

}  // namespace

bool is_image_prompt_run(const std::string& path) { return is_run_of(kImagePart, path); }

ImageEncoderSource image_encoder_of(const std::string& path) {
  if (is_image_prompt_run(path)) {
    const Config config = stored_config(path);
    return trained_image_encoder(adapter_keys(config), static_cast<uint64_t>(config.training.seed));
  }
  sizes_in_file(path);  // a file of another kind has no use for an encoder
  const std::string folder = (fs::path(weight_file(path)).parent_path() / kEncoderFolder).string();
  std::error_code ignored;
  require(fs::is_directory(folder, ignored), "adapter", "the encoder of the IP-adapter ", path, " must be in ", folder,
          ": there is none; copy the folder image_encoder there");
  return {.path = folder};
}

models::OwnImagePrompt image_prompt_of(const std::string& path, const models::ModelShape& shape) {
  models::OwnImagePrompt own{.features = 1};
  const models::ModelShape unet =
      models::without_image_prompt(models::with_image_prompt(models::without_image_prompt(shape), own));
  const TensorSizes sizes = is_image_prompt_run(path) ? sizes_in_run(path, unet) : sizes_in_file(path);
  const char* first = "image_proj.proj.weight";
  const auto found = sizes.find(first);
  const int64_t text = unet.own.as<models::UnetSizes>().text;
  require(found != sizes.end() && found->second.size() == 2 && found->second[1] > 0, "adapter", "the IP-adapter ", path,
          " must have the matrix ", first, ": got none");
  require(found->second[0] > 0 && found->second[0] % text == 0, "adapter", "the IP-adapter ", path,
          " must make tokens of the features of the model's text, ", text, ": got ", found->second[0],
          " rows, which these do not divide; it belongs to another base");
  own = {.features = found->second[1], .tokens = found->second[0] / text};
  check_layers(path, sizes, models::with_image_prompt(unet, own));
  const ImageEncoderSource encoder = image_encoder_of(path);
  const int64_t features = models::image_encoder_of(find_source(encoder.path, built_in()).shape).features;
  require(features == own.features, "adapter", "the encoder of the IP-adapter ", path, ", ", encoder.path,
          ", must give embeddings of ", own.features, " features: got ", features);
  return own;
}

bool continues_image_prompt(const LowRankKeys& keys) { return !keys.from.empty() && !is_image_encoder(keys.from); }

models::ModelShape with_image_prompt(models::ModelShape shape, const AdapterChoice& choice) {
  models::OwnImagePrompt prompt = image_prompt_of(choice.folder, shape);
  prompt.scale = choice.scale;
  return models::with_image_prompt(std::move(shape), prompt);
}

ImageEncoderSource trained_image_encoder(const LowRankKeys& keys, uint64_t seed) {
  require(
      !keys.from.empty(), "adapter",
      "adapter.from must name the encoder of pictures of a new IP-adapter, or an IP-adapter: got none; name a folder "
      "with a CLIPVisionModelWithProjection, or clip-vision-tiny");
  if (continues_image_prompt(keys)) return image_encoder_of(keys.from);
  return {.path = keys.from, .seed = seed};
}

models::OwnImagePrompt trained_image_prompt(const LowRankKeys& keys, const models::ModelShape& shape) {
  const ImageEncoderSource encoder = trained_image_encoder(keys, 1);
  if (continues_image_prompt(keys)) return image_prompt_of(keys.from, shape);
  return {.features = models::image_encoder_of(find_source(encoder.path, built_in()).shape).features,
          .tokens = kNewTokens};
}

AdapterKind image_prompt_kind() {
  const auto check = [](const models::ModelShape& shape) {
    require(models::has_image_prompt(shape), "adapter",
            "adapter.kind = \"ip-adapter\" needs a unet that learns to draw what captions say: got another model; set "
            "adapter.kind = \"lora\", or name another model");
  };
  return {.name = kImagePromptKind, .keys = {"from"}, .check = check, .is_own = models::is_of_image_prompt};
}

PartTensors take_image_prompt(const nn::Parameters& parameters, PartTensors& tensors) {
  return take_part(kImagePart, parameters, tensors);
}

void fill_image_prompt(const std::string& path, const models::ModelShape& shape, const nn::Parameters& parameters,
                       PartTensors tensors, comm::Mesh& mesh, bool uses_average, const ModelSource* base) {
  fill_part(kImagePart, path, parameters, std::move(tensors), mesh, uses_average, base,
            [&](const nn::Parameters& alone, const PartTensors& own) {
              const std::string name = weight_file(path);
              const checkpoint::SafetensorsReader file(name);
              std::map<std::string, at::Tensor> found;
              for (const auto& [tensor, entry] : file.entries()) found[tensor] = file.tensor(tensor);
              checkpoint::import_weights(*checkpoint::weights_in_memory(found), name, alone, own,
                                         prompt_file_names(shape));
            });
}

void copy_into_image_prompt(const ModelSource& base, const nn::Parameters& parameters, const PartTensors& tensors,
                            comm::Mesh& mesh) {
  copy_into_part(kImagePart, base, parameters, tensors, mesh);
}

void export_image_prompt(const std::string& to, const SavedModel& saved, const std::string& run, comm::Mesh& mesh,
                         bool uses_average) {
  models::ModelShape shape;
  comm::agree(mesh.all(), at::kCPU, [&] {
    const models::ModelShape& base = saved.model->model().shape;
    shape = models::with_image_prompt(base, image_prompt_of(run, base));
  });
  nn::Parameters parameters(mesh.coordinates(), {.dtype = saved.model->parameters().options().dtype});
  nn::SerialLayers layers(parameters);
  models::make_model(shape, layers);
  PartTensors tensors;
  for (const nn::Parameter& p : parameters) tensors.push_back({p.name, p.value.detach(), p.spec});
  const PartTensors own = take_image_prompt(parameters, tensors);
  fill_image_prompt(run, shape, parameters, own, mesh, uses_average);
  const auto prompt = shape.part<models::OwnImagePrompt>();
  const nlohmann::json config{
      {"_class_name", "IPAdapter"}, {"image_features", prompt.features}, {"image_tokens", prompt.tokens}};
  checkpoint::export_weights(to, *part_alone(kImagePart, parameters, &own), prompt_file_names(shape), config,
                             mesh.all());
}

}  // namespace colossal::run
