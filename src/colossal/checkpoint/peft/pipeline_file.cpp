#include "colossal/checkpoint/peft/pipeline_file.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/base/pipeline_parts.h"
#include "colossal/checkpoint/safetensors.h"

namespace colossal::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr char kOfPipeline[] = "adapter", kMetadata[] = "lora_adapter_metadata", kTextModel[] = "text_model.",
               kTensorFile[] = ".safetensors";

/// A tensor of a layer: 'a', 'b', 'm' or the alpha, 's'.
struct Ending {
  const char* text;
  char matrix;
};
constexpr Ending kEndings[] = {{".lora_A.weight", 'a'},
                               {".lora_B.weight", 'b'},
                               {".lora_down.weight", 'a'},
                               {".lora_up.weight", 'b'},
                               {".lora.down.weight", 'a'},
                               {".lora.up.weight", 'b'},
                               {"_lora.down.weight", 'a'},
                               {"_lora.up.weight", 'b'},
                               {".alpha", 's'},
                               {".lora_magnitude_vector", 'm'},
                               {".lora_magnitude_vector.weight", 'm'}};

/// Parts of names of other kinds of adapters.
constexpr const char* kOthers[] = {"dora_scale", "hada_", "lokr_", "oft_",
                                   "lora_mid",   ".diff", "glora", "lora_embedding"};

void refuse_others(const std::string& name, const std::string& file) {
  for (const char* other : kOthers)
    require(name.find(other) == std::string::npos, kOfPipeline, file, " must have low-rank adapters (LoRA) alone: got ",
            printable(name), ", which is of another kind (", other,
            "); merge it into the model with the program that made it");
}

/// Returns the module of a name of diffusers' processors: "attn1.processor.to_out" is "attn1.to_out.0".
std::string module_of_processor(std::string name) {
  const std::string between = ".processor.";
  const size_t at = name.find(between);
  if (at == std::string::npos) return name;
  name.replace(at, between.size(), ".");
  return name.ends_with(".to_out") ? name + ".0" : name;
}

struct Named {
  std::string module;
  char matrix;
};

std::optional<Named> parse_name(const std::string& name) {
  for (const Ending& ending : kEndings)
    if (name.ends_with(ending.text))
      return Named{module_of_processor(name.substr(0, name.size() - std::string_view(ending.text).size())),
                   ending.matrix};
  return {};
}

/// The configs of the header by part: "unet".
std::map<std::string, PeftConfig> configs_of(const SafetensorsReader& reader, const std::string& file) {
  const auto found = reader.metadata().find(kMetadata);
  std::map<std::string, PeftConfig> configs;
  if (found == reader.metadata().end()) return configs;
  const std::string where = concat(file, ": ", kMetadata);
  const ordered_json object = parse_ordered_json(found->second, where, "peft");
  require(object.is_object(), "peft", where, " must be a JSON object");
  std::map<std::string, ordered_json> parts;
  for (const auto& [key, value] : object.items()) {
    const size_t dot = key.find('.');
    if (dot != std::string::npos) parts[key.substr(0, dot)][key.substr(dot + 1)] = value;
  }
  for (auto& [part, own] : parts) {
    own["peft_type"] = "LORA";  // diffusers does not say it in each version
    configs.emplace(part, PeftConfig::of(own, concat(where, ", ", part)));
  }
  return configs;
}

/// Checks a layer of a file and sets its rank.
void check_layer(const std::string& name, PeftLayer& layer, const std::string& file) {
  const std::string shown = printable(name);
  require(layer.a.defined() && layer.b.defined(), kOfPipeline, file, ": ", shown,
          " must have both matrices, down (A) and up (B): got ",
          layer.a.defined()   ? "the one down alone"
          : layer.b.defined() ? "the one up alone"
                              : "neither");
  const bool is_pointwise = layer.b.dim() == 4 && layer.b.size(2) == 1 && layer.b.size(3) == 1;
  if (is_pointwise) layer.b = layer.b.flatten(1);
  require((layer.a.dim() == 2 || layer.a.dim() == 4) && layer.b.dim() == 2 && layer.a.size(0) == layer.b.size(1),
          kOfPipeline, file, ": A of ", shown, " must be [r, in] or [r, in, rows, columns], and B [out, r]: got ",
          layer.a.sizes(), " and ", layer.b.sizes());
  layer.rank = layer.a.size(0);
}

/// Returns the value that most layers have.
double most_common(const std::map<std::string, double>& values) {
  std::map<double, int64_t> counts;
  for (const auto& [name, value] : values) ++counts[value];
  return std::max_element(counts.begin(), counts.end(),
                          [](const auto& x, const auto& y) { return x.second < y.second; })
      ->first;
}

/// Sets the scale of each layer, and returns the config that has their ranks and alphas.
PeftConfig with_scales(std::map<std::string, PeftLayer>& layers, const std::map<std::string, double>& alphas,
                       const std::map<std::string, PeftConfig>& configs, const std::string& file) {
  std::map<std::string, double> ranks, of_layers;
  std::set<bool> roots, magnitudes;
  for (auto& [name, layer] : layers) {
    const size_t dot = name.find('.');
    const auto config = configs.find(name.substr(0, dot));
    const auto own = alphas.find(name);
    const bool has_config = config != configs.end() && own == alphas.end();
    const double alpha = own != alphas.end() ? own->second
                         : has_config        ? config->second.alpha_of(name.substr(dot + 1))
                                             : static_cast<double>(layer.rank);
    const bool is_root = has_config && config->second.root_scale;
    const auto rank = static_cast<double>(layer.rank);
    layer.scale = alpha / (is_root ? std::sqrt(rank) : rank);
    ranks[name] = rank, of_layers[name] = alpha;
    roots.insert(is_root), magnitudes.insert(layer.magnitude.defined());
  }
  require(roots.size() == 1 && magnitudes.size() == 1, kOfPipeline, file,
          " must have adapters of one kind: got some with magnitudes or use_rslora, and others without");
  PeftConfig whole{.rank = static_cast<int64_t>(most_common(ranks)),
                   .alpha = most_common(of_layers),
                   .root_scale = *roots.begin(),
                   .magnitudes = *magnitudes.begin()};
  for (const auto& [name, alpha] : of_layers)
    if (alpha != whole.alpha) whole.alphas.emplace_back(name, alpha);
  return whole;
}

}  // namespace

std::string find_pipeline_file(const std::string& path) {
  std::error_code ignored;
  if (path.ends_with(kTensorFile) && fs::is_regular_file(path, ignored)) return path;
  if (!fs::is_directory(path, ignored)) return "";
  if (const fs::path named = fs::path(path) / kPipelineFile; fs::is_regular_file(named, ignored)) return named.string();
  if (fs::exists(fs::path(path) / "config.json", ignored)) return "";  // the folder of a model
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, ignored))
    if (entry.path().extension() == kTensorFile) files.push_back(entry.path().string());
  return files.size() == 1 ? files.front() : "";
}

PeftFolder read_pipeline_file(const std::string& file) {
  const SafetensorsReader reader(file);
  std::map<std::string, PeftLayer> layers;
  std::map<std::string, double> alphas;
  std::vector<std::string> unknown;
  for (const auto& [name, entry] : reader.entries()) {
    refuse_others(name, file);
    const std::optional<Named> named = parse_name(name);
    if (!named) {
      unknown.push_back(printable(name));
      continue;
    }
    const at::Tensor value = reader.tensor(name);
    if (named->matrix == 's') {
      require(value.numel() == 1, kOfPipeline, file, ": ", printable(name), " must be one number: got ", value.sizes());
      alphas[named->module] = value.to(at::kDouble).item<double>();
      continue;
    }
    PeftLayer& layer = layers[named->module];
    at::Tensor& matrix = named->matrix == 'a' ? layer.a : named->matrix == 'b' ? layer.b : layer.magnitude;
    require(!matrix.defined(), kOfPipeline, file, ": ", printable(name),
            " must be there once: got two spellings of it");
    matrix = named->matrix == 'm' ? value.flatten() : value;
  }
  for (const auto& [name, alpha] : alphas)
    if (!layers.contains(name)) unknown.push_back(printable(name) + ".alpha");
  require(unknown.empty(), kOfPipeline, file,
          " must have matrices of adapters alone (lora_A and lora_B, lora_down and ", "lora_up): got ", join(unknown),
          ", which would have no effect");
  require(!layers.empty(), kOfPipeline, file, " must have adapters: got none");
  for (auto& [name, layer] : layers) check_layer(name, layer, file);
  PeftConfig config = with_scales(layers, alphas, configs_of(reader, file), file);
  return PeftFolder::of_pipeline(std::move(config), std::move(layers));
}

PipelineForm pipeline_form(std::string_view name) {
  require(name == "peft" || name == "kohya", "export", "the form of adapters must be peft or kohya: got ", name);
  return name == "kohya" ? PipelineForm::Kohya : PipelineForm::Peft;
}

namespace {

/// Returns the end of a module's name that it has in every version of transformers: later ones lack the first word in
/// text encoders. peft finds modules by the ends of their names.
std::string end_of_name(const std::string& name) {
  return name.starts_with(kTextModel) ? name.substr(std::string_view(kTextModel).size()) : name;
}

/// Adds what diffusers writes into the header of a file: the keys of peft's config, each with the part.
void add_to_header(const std::string& part, const PipelineLayers& own, nlohmann::json& header) {
  PeftConfig config = own.config;
  config.targets.clear();
  for (const auto& [name, layer] : own.layers) config.targets.push_back(end_of_name(name));
  for (PeftConfig::Patterns* patterns : {&config.ranks, &config.alphas})
    for (auto& [name, value] : *patterns) name = end_of_name(name);
  const nlohmann::json all = config.to_json();
  for (const char* key : {"r", "lora_alpha", "lora_dropout", "rank_pattern", "alpha_pattern", "use_dora", "use_rslora",
                          "bias", "init_lora_weights", "peft_type", "target_modules"})
    header[concat(part, ".", key)] = all.at(key);
}

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

/// Returns B as a convolution of one pixel, if A is a convolution.
at::Tensor as_pointwise(const PeftLayer& layer) {
  return layer.a.dim() == 4 ? layer.b.unsqueeze(-1).unsqueeze(-1) : layer.b;
}

/// Returns kohya's prefix of a part. Of several text encoders the first one has a number, too.
std::string kohya_prefix(const std::string& part, bool has_second) {
  if (part == kSecondTextEncoderPart) return kKohyaSecondText;
  if (part == kTextEncoderPart) return has_second ? kKohyaFirstText : kKohyaText;
  return kKohyaModel;
}

/// Adds the tensors of a part. `prefix`: what names begin with.
void add_tensors(const std::string& prefix, const PipelineLayers& own, bool is_kohya,
                 std::map<std::string, at::Tensor>& tensors) {
  require(!is_kohya || !own.config.magnitudes, "export",
          "adapters of kohya's form must have no magnitudes: got adapter.kind = \"dora\"; leave out --adapter-form");
  for (const auto& [name, layer] : own.layers) {
    const std::string whole = prefix + (is_kohya ? with_underscores(name) : name);
    tensors[concat(whole, is_kohya ? ".lora_down.weight" : ".lora_A.weight")] = layer.a.contiguous();
    tensors[concat(whole, is_kohya ? ".lora_up.weight" : ".lora_B.weight")] = as_pointwise(layer).contiguous();
    if (layer.magnitude.defined()) tensors[concat(whole, ".lora_magnitude_vector")] = layer.magnitude;
    // s B A has the factor alpha / r there, also for rsLoRA
    if (is_kohya)
      tensors[concat(whole, ".alpha")] =
          at::scalar_tensor(own.config.scale_of(name) * static_cast<double>(layer.rank), layer.a.options());
  }
}

}  // namespace

void write_pipeline_file(const std::string& folder, const std::map<std::string, PipelineLayers>& parts,
                         PipelineForm form) {
  const bool is_kohya = form == PipelineForm::Kohya;
  std::map<std::string, at::Tensor> tensors;
  nlohmann::json header = nlohmann::json::object();
  for (const auto& [part, own] : parts) {
    add_tensors(is_kohya ? kohya_prefix(part, parts.contains(kSecondTextEncoderPart)) : part + ".", own, is_kohya,
                tensors);
    add_to_header(part, own, header);
  }
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  if (!is_kohya) metadata[kMetadata] = header.dump(2);
  write_safetensors((fs::path(folder) / kPipelineFile).string(), tensors, metadata);
}

}  // namespace colossal::checkpoint
