#include "colossal/run/objectives/diffusion/pipeline_folder.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/base/pipeline_parts.h"
#include "colossal/base/suggest.h"
#include "colossal/checkpoint/ldm/file.h"

namespace colossal::run {
namespace {

using nlohmann::json;
using Names = std::vector<std::string>;

constexpr char kPipeline[] = "pipeline", kIndexFile[] = "model_index.json", kLabels[] = "id2label";

/// A class of pipelines, with the names of its parts.
struct PipelineRow {
  const char* class_name;
  Names parts;
  Names unread;  // parts that are not read
  Names keys;    // further keys of model_index.json
};

const std::vector<PipelineRow>& pipeline_rows() {
  static const Names parts{"unet", "vae", kTextEncoderPart, "tokenizer", "scheduler"},
      unread{"safety_checker", "feature_extractor", "image_encoder"}, keys{"requires_safety_checker"};
  static const std::vector<PipelineRow> rows{{"StableDiffusionPipeline", parts, unread, keys},
                                             {"StableDiffusionImg2ImgPipeline", parts, unread, keys},
                                             {"StableDiffusionInpaintPipeline", parts, unread, keys},
                                             {"DiTPipeline", {"transformer", "vae", "scheduler"}, {}, {kLabels}}};
  return rows;
}

/// The classes that a part may have; a scheduler may have any.
struct PartRow {
  const char* name;
  const char* library;
  Names classes;
};

const PartRow& part_row(const std::string& name) {
  static const std::vector<PartRow> rows{{"unet", "diffusers", {"UNet2DConditionModel"}},
                                         {"transformer", "diffusers", {"DiTTransformer2DModel"}},
                                         {"vae", "diffusers", {"AutoencoderKL"}},
                                         {kTextEncoderPart, "transformers", {"CLIPTextModel"}},
                                         {"tokenizer", "transformers", {"CLIPTokenizer", "CLIPTokenizerFast"}},
                                         {"scheduler", "diffusers", {}}};
  return *std::find_if(rows.begin(), rows.end(), [&](const PartRow& row) { return name == row.name; });
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

void check_part(const PipelinePart& part, const std::string& path) {
  const PartRow& row = part_row(part.name);
  const std::string where = concat(path, "/", kIndexFile, ": ", part.name);
  require(row.classes.empty() || has_name(row.classes, part.class_name), kPipeline, where, " must be of the class ",
          join(row.classes, " or "), ": got ", printable(part.class_name), did_you_mean(part.class_name, row.classes));
  require(part.library == row.library, kPipeline, where, " must be of the library ", row.library, ": got ",
          printable(part.library), "; code that a folder brings is not run");
  std::error_code ignored;
  require(std::filesystem::is_directory(part.folder, ignored), kPipeline, path, " must have the folder ", part.name,
          ", because its ", kIndexFile, " names that part: got none; download the folder completely");
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

/// Returns the parts of a makers' single file.
PipelineFolder parts_of_file(const std::string& path) {
  PipelineFolder pipeline{.path = path, .class_name = "StableDiffusionPipeline"};
  const int64_t inputs = checkpoint::ldm_config({path, "unet"}).at("in_channels");
  if (inputs == 9) pipeline.class_name = "StableDiffusionInpaintPipeline";  // with a mask and the masked picture
  for (const char* name : {"unet", "vae", kTextEncoderPart}) {
    const PartRow& row = part_row(name);
    if (checkpoint::has_ldm_part({path, name}))
      pipeline.parts.push_back({name, row.library, row.classes.front(), concat(path, "/", name)});
  }
  const auto scheduler = checkpoint::ldm_config({path, "scheduler"}).at("_class_name").get<std::string>();
  pipeline.parts.push_back({"scheduler", "diffusers", scheduler, path + "/scheduler"});
  const std::filesystem::path tokenizer = std::filesystem::path(path).parent_path() / "tokenizer";
  std::error_code ignored;
  require(!pipeline.find(kTextEncoderPart) || std::filesystem::is_directory(tokenizer, ignored), kPipeline, path,
          " has no tokenizer, so there must be a folder ", tokenizer.string(),
          " with that of its text encoder: got none; copy it from a folder of Stable Diffusion of the same version");
  if (pipeline.find(kTextEncoderPart))
    pipeline.parts.push_back({"tokenizer", "transformers", "CLIPTokenizer", tokenizer.string()});
  return pipeline;
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

const PipelinePart& PipelineFolder::denoiser() const {
  return at(has_name(pipeline_row(class_name, path).parts, "unet") ? "unet" : "transformer");
}

std::vector<std::string> pipeline_names() {
  Names names;
  for (const PipelineRow& row : pipeline_rows()) names.emplace_back(row.class_name);
  return names;
}

PipelineFolder read_pipeline(const std::string& path) {
  if (checkpoint::is_ldm_file(path)) return parts_of_file(path);
  const std::string file = concat(path, "/", kIndexFile);
  const json index = read_json_object(file, kPipeline, {.bytes = 16 << 20});
  const auto named = index.find("_class_name");
  require(named != index.end() && named->is_string(), kPipeline, file, " must have a _class_name, one of ",
          join(pipeline_names()));
  const PipelineRow& row = pipeline_row(named->get<std::string>(), file);
  PipelineFolder pipeline{.path = path, .class_name = row.class_name};
  for (const auto& [key, value] : index.items()) {
    if (key.starts_with('_') || has_name(row.keys, key)) continue;
    Names known = row.parts;
    known.insert(known.end(), row.unread.begin(), row.unread.end());
    PipelinePart part = has_name(known, key) ? read_part(path, key, value) : PipelinePart{};
    require(!part.name.empty() || value == json::array({nullptr, nullptr}), kPipeline, file, ": a ", row.class_name,
            " has the parts ", join(known), ": got ", printable(key), did_you_mean(key, known));
    if (part.class_name.empty()) continue;
    if (has_name(row.unread, key)) {
      pipeline.notices.push_back(notice_of_unread(part, path));
      continue;
    }
    check_part(part, path);
    pipeline.parts.push_back(std::move(part));
  }
  if (has_name(row.keys, kLabels) && index.contains(kLabels))
    pipeline.class_names = class_names_in(index[kLabels], file);
  return pipeline;
}

json index_of(const PipelineFolder& pipeline) {
  const PipelineRow& row = pipeline_row(pipeline.class_name, kIndexFile);
  json index{{"_class_name", pipeline.class_name}, {"_diffusers_version", "0.42.1"}};
  for (const Names* names : {&row.parts, &row.unread})
    for (const std::string& name : *names) {
      const PipelinePart* part = pipeline.find(name);
      index[name] = part ? json::array({part->library, part->class_name}) : json::array({nullptr, nullptr});
    }
  if (has_name(row.keys, "requires_safety_checker")) index["requires_safety_checker"] = false;
  for (size_t i = 0; i < pipeline.class_names.size(); ++i) index[kLabels][std::to_string(i)] = pipeline.class_names[i];
  return index;
}

}  // namespace colossal::run
