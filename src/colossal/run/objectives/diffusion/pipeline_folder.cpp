#include "colossal/run/objectives/diffusion/pipeline_folder.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/base/pipeline_parts.h"
#include "colossal/base/suggest.h"
#include "colossal/checkpoint/ldm/file.h"
#include "colossal/models/caption_parts.h"

namespace colossal::run {
namespace {

using nlohmann::json;
using Names = std::vector<std::string>;

constexpr char kPipeline[] = "pipeline", kIndexFile[] = "model_index.json", kLabels[] = "id2label";

/// A class of pipelines, with the names of its parts.
struct PipelineRow {
  const char* class_name;
  const char* denoiser;  // class of the part that denoises
  Names encoders;        // classes of the text encoders
  Names unread;          // parts that are not read
  Names keys;            // further keys of model_index.json
};

constexpr char kClip[] = "CLIPTextModel", kProjectedClip[] = "CLIPTextModelWithProjection", kT5[] = "T5EncoderModel",
               kUnet[] = "UNet2DConditionModel", kZeros[] = "force_zeros_for_empty_prompt",
               kAesthetics[] = "requires_aesthetics_score";

const std::vector<PipelineRow>& pipeline_rows() {
  static const Names unread{"safety_checker", "feature_extractor", "image_encoder"}, keys{"requires_safety_checker"},
      of_image{"feature_extractor", "image_encoder"}, of_xl{kZeros}, with_score{kZeros, kAesthetics},
      xl{kClip, kProjectedClip};
  static const std::vector<PipelineRow> rows{
      {"StableDiffusionPipeline", kUnet, {kClip}, unread, keys},
      {"StableDiffusionImg2ImgPipeline", kUnet, {kClip}, unread, keys},
      {"StableDiffusionInpaintPipeline", kUnet, {kClip}, unread, keys},
      {"StableDiffusionXLPipeline", kUnet, xl, of_image, of_xl},
      {"StableDiffusionXLImg2ImgPipeline", kUnet, xl, of_image, with_score},
      {"StableDiffusionXLInpaintPipeline", kUnet, xl, of_image, with_score},
      {"StableDiffusion3Pipeline", "SD3Transformer2DModel", {kProjectedClip, kProjectedClip, kT5}, of_image, {}},
      {"FluxPipeline", "FluxTransformer2DModel", {kClip, kT5}, of_image, {}},
      {"DiTPipeline", "DiTTransformer2DModel", {}, {}, {kLabels}}};
  return rows;
}

std::string denoiser_name(const PipelineRow& row) {
  return row.denoiser == std::string_view(kUnet) ? kUnetPart : kTransformerPart;
}

/// The library of a part and the classes that it may have, the usual one first; a scheduler may have any.
struct PartClasses {
  const char* library;
  Names classes;
};

/// Returns those of each part, by its name.
std::map<std::string, PartClasses> part_classes(const PipelineRow& row) {
  std::map<std::string, PartClasses> parts{{denoiser_name(row), {"diffusers", {row.denoiser}}},
                                           {kVaePart, {"diffusers", {"AutoencoderKL"}}},
                                           {kSchedulerPart, {"diffusers", {}}}};
  for (size_t i = 0; i < row.encoders.size(); ++i) {
    parts[models::caption_part_name(kTextEncoderPart, i)] = {"transformers", {row.encoders[i]}};
    const std::string kind = row.encoders[i] == kT5 ? "T5Tokenizer" : "CLIPTokenizer";
    const std::string other = kind + "Fast";
    parts[models::caption_part_name("tokenizer", i)] = {
        "transformers", row.encoders[i] == kT5 ? Names{other, kind} : Names{kind, other}};
  }
  return parts;
}

bool has_name(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

const PipelineRow& pipeline_row(const std::string& class_name, const std::string& where) {
  for (const PipelineRow& row : pipeline_rows())
    if (class_name == row.class_name) return row;
  throw Error(kPipeline, concat(where, ": _class_name must be one of ", join(pipeline_names()), ": got ",
                                printable(class_name), did_you_mean(class_name, pipeline_names())));
}

/// Reads the value of a part, [library, class]; a class of null is an absent part, whose class is "".
PipelinePart read_part(const std::string& path, const std::string& name, const json& value) {
  const bool is_pair = value.is_array() && value.size() == 2;
  const auto is_text = [](const json& one) { return one.is_string(); };
  const auto is_null = [](const json& one) { return one.is_null(); };
  const bool is_absent = value.is_null() || (is_pair && std::all_of(value.begin(), value.end(), is_null));
  require(is_absent || (is_pair && std::all_of(value.begin(), value.end(), is_text)), kPipeline, path, "/", kIndexFile,
          ": ", name, " must be a pair [library, class]: got ", printable(value.dump()));
  if (is_absent) return {.name = name};
  return {.name = name, .library = value[0], .class_name = value[1], .folder = concat(path, "/", name)};
}

/// Returns true for a part that another folder gives.
bool is_replaced(const std::string& part, const Names& replaced) {
  const std::string other = part.starts_with("tokenizer") ? kTextEncoderPart : part;
  return std::any_of(replaced.begin(), replaced.end(),
                     [&](const std::string& stem) { return other == stem || other.starts_with(stem + "_"); });
}

bool has_folder(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

void check_part(const PipelinePart& part, const PartClasses& row, const std::string& path) {
  const std::string where = concat(path, "/", kIndexFile, ": ", part.name);
  require(row.classes.empty() || has_name(row.classes, part.class_name), kPipeline, where, " must be of the class ",
          join(row.classes, " or "), ": got ", printable(part.class_name), did_you_mean(part.class_name, row.classes));
  require(part.library == row.library, kPipeline, where, " must be of the library ", row.library, ": got ",
          printable(part.library), "; code that a folder brings is not run");
  require(has_folder(part.folder), kPipeline, path, " must have the folder ", part.name, ", because its ", kIndexFile,
          " names that part: got none; download the folder completely");
}

/// Returns the names of the classes, which `labels` has by number.
Names class_names_in(const json& labels, const std::string& where) {
  require(labels.is_object(), kPipeline, where, ": ", kLabels, " must be an object: got ", printable(labels.dump()));
  Names names(labels.size());
  for (size_t i = 0; i < names.size(); ++i) {
    const auto found = labels.find(std::to_string(i));
    require(found != labels.end() && found->is_string(), kPipeline, where, ": ", kLabels,
            " must have a name for each class from 0 to ", names.size() - 1, ": got none for ", i);
    names[i] = found->get<std::string>();
  }
  return names;
}

std::string notice_of_unread(const PipelinePart& part, const std::string& path) {
  if (part.name == "image_encoder") return concat(path, ": image_encoder is not read, because only IP adapters use it");
  return concat(path, ": ", part.name, " is not read: no safety checker looks at the pictures");
}

/// Returns the class of the pipeline that a makers' single file has.
std::string class_of_file(const std::string& path) {
  if (checkpoint::has_ldm_part({path, kTransformerPart})) {
    const std::string of_model = checkpoint::ldm_config({path, kTransformerPart}).value("_class_name", "");
    for (const PipelineRow& row : pipeline_rows())
      if (of_model == row.denoiser) return row.class_name;
  }
  const json unet = checkpoint::ldm_config({path, kUnetPart});
  const bool is_xl = unet.contains("addition_embed_type");
  const int64_t inputs = unet.at("in_channels");
  const bool paints = inputs == 9;  // with a mask and the masked picture
  return concat("StableDiffusion", is_xl ? "XL" : "", paints ? "Inpaint" : "", "Pipeline");
}

/// Returns the parts of a makers' single file.
PipelineFolder parts_of_file(const std::string& path, const Names& replaced) {
  PipelineFolder pipeline{.path = path, .class_name = class_of_file(path)};
  const PipelineRow& row = pipeline_row(pipeline.class_name, path);
  pipeline.zeros_for_empty = has_name(row.keys, kZeros);
  const std::map<std::string, PartClasses> parts = part_classes(row);
  for (const auto& [name, classes] : parts)
    if (!classes.classes.empty() && !name.starts_with("tokenizer") && checkpoint::has_ldm_part({path, name}))
      pipeline.parts.push_back({name, classes.library, classes.classes.front(), concat(path, "/", name)});
  const auto scheduler = checkpoint::ldm_config({path, kSchedulerPart}).at("_class_name").get<std::string>();
  pipeline.parts.push_back({kSchedulerPart, "diffusers", scheduler, concat(path, "/", kSchedulerPart)});
  for (size_t i = 0; i < row.encoders.size(); ++i) {
    if (!pipeline.find(models::caption_part_name(kTextEncoderPart, i))) continue;
    const std::string name = models::caption_part_name("tokenizer", i);
    const std::string tokenizer = (std::filesystem::path(path).parent_path() / name).string();
    if (is_replaced(name, replaced) && !has_folder(tokenizer)) continue;
    require(has_folder(tokenizer), kPipeline, path, " has no tokenizer, so there must be a folder ", tokenizer,
            " with that of its text encoder: got none; copy it from a folder of Stable Diffusion of the same version");
    pipeline.parts.push_back({name, "transformers", parts.at(name).classes.front(), tokenizer});
  }
  return pipeline;
}

/// Reads the keys about the pipeline itself.
void read_keys(const json& index, const PipelineRow& row, const std::string& file, PipelineFolder& pipeline) {
  if (has_name(row.keys, kLabels) && index.contains(kLabels))
    pipeline.class_names = class_names_in(index[kLabels], file);
  const auto flag = [&](const char* key, bool otherwise) {
    if (!has_name(row.keys, key) || !index.contains(key)) return otherwise;
    require(index[key].is_boolean(), kPipeline, file, ": ", key, " must be true or false: got ",
            printable(index[key].dump()));
    return index[key].get<bool>();
  };
  pipeline.zeros_for_empty = flag(kZeros, has_name(row.keys, kZeros));
  require(!flag(kAesthetics, false), kPipeline, file, ": ", kAesthetics,
          " must be false: got true, of a model that is told a score of beauty, which is not known here");
}

}  // namespace

const PipelinePart* PipelineFolder::find(const std::string& name) const {
  for (const PipelinePart& part : parts)
    if (part.name == name) return &part;
  return nullptr;
}

const PipelinePart& PipelineFolder::at(const std::string& name) const {
  const PipelinePart* found = find(name);
  require(found != nullptr, kPipeline, path, ": a ", class_name, " must have the part ", name,
          " for this: got none; name a folder that has it");
  return *found;
}

const PipelinePart& PipelineFolder::denoiser() const { return at(denoiser_name(pipeline_row(class_name, path))); }

std::vector<std::string> pipeline_names() {
  Names names;
  for (const PipelineRow& row : pipeline_rows()) names.emplace_back(row.class_name);
  return names;
}

PipelineFolder read_pipeline(const std::string& path, const std::vector<std::string>& replaced) {
  if (checkpoint::is_ldm_file(path)) return parts_of_file(path, replaced);
  const std::string file = concat(path, "/", kIndexFile);
  const json index = read_json_object(file, kPipeline, {.bytes = 16 << 20});
  const auto named = index.find("_class_name");
  require(named != index.end() && named->is_string(), kPipeline, file, " must have a _class_name, one of ",
          join(pipeline_names()));
  const PipelineRow& row = pipeline_row(named->get<std::string>(), file);
  PipelineFolder pipeline{.path = path, .class_name = row.class_name};
  const std::map<std::string, PartClasses> parts = part_classes(row);
  Names known;
  for (const auto& [name, classes] : parts) known.push_back(name);
  known.insert(known.end(), row.unread.begin(), row.unread.end());
  for (const auto& [key, value] : index.items()) {
    if (key.starts_with('_') || has_name(row.keys, key)) continue;
    PipelinePart part = has_name(known, key) ? read_part(path, key, value) : PipelinePart{};
    require(!part.name.empty() || value == json::array({nullptr, nullptr}), kPipeline, file, ": a ", row.class_name,
            " has the parts ", join(known), ": got ", printable(key), did_you_mean(key, known));
    if (part.class_name.empty()) continue;
    if (has_name(row.unread, key)) {
      pipeline.notices.push_back(notice_of_unread(part, path));
      continue;
    }
    if (is_replaced(key, replaced) && !has_folder(part.folder)) continue;
    check_part(part, parts.at(key), path);
    pipeline.parts.push_back(std::move(part));
  }
  read_keys(index, row, file, pipeline);
  return pipeline;
}

std::string class_of_part(const std::string& pipeline, const std::string& part) {
  const std::map<std::string, PartClasses> parts = part_classes(pipeline_row(pipeline, kIndexFile));
  const auto found = parts.find(part);
  require(found != parts.end() && !found->second.classes.empty(), kPipeline, "a ", pipeline, " must have the part ",
          part, ", of one class: got none");
  return found->second.classes.front();
}

json index_of(const PipelineFolder& pipeline) {
  const PipelineRow& row = pipeline_row(pipeline.class_name, kIndexFile);
  json index{{"_class_name", pipeline.class_name}, {"_diffusers_version", "0.42.1"}};
  Names names = row.unread;
  for (const auto& [name, classes] : part_classes(row)) names.push_back(name);
  for (const std::string& name : names) {
    const PipelinePart* part = pipeline.find(name);
    index[name] = part ? json::array({part->library, part->class_name}) : json::array({nullptr, nullptr});
  }
  if (has_name(row.keys, kZeros)) index[kZeros] = pipeline.zeros_for_empty;
  if (has_name(row.keys, "requires_safety_checker")) index["requires_safety_checker"] = false;
  for (size_t i = 0; i < pipeline.class_names.size(); ++i) index[kLabels][std::to_string(i)] = pipeline.class_names[i];
  return index;
}

}  // namespace colossal::run
