#include "colossal/run/pipeline_adapters.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/base/suggest.h"
#include "colossal/checkpoint/ldm/module_names.h"
#include "colossal/checkpoint/peft/pipeline_file.h"
#include "colossal/models/clip_text_within.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"

namespace colossal::run {
namespace {

using checkpoint::PeftLayer;

constexpr const char *kTextPart = models::kOfTextEncoder, *kTextModel = "text_model.";

/// Kohya's prefix of the first of several text encoders.
constexpr const char* kKohyaFirstText = "lora_te1_";

/// Returns true for a layer of a text encoder, the first one or a further one.
bool is_text(const std::string& name) {
  const std::vector<const char*> prefixes{kTextPart,       "text_encoder_2.", "text_encoder_3.", checkpoint::kKohyaText,
                                          kKohyaFirstText, "lora_te2_",       "lora_te3_"};
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const char* prefix) { return name.starts_with(prefix); });
}

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

/// A module, and the outputs of a layer of a file that it has.
struct ModulePiece {
  size_t module;
  checkpoint::LdmRows rows{};
};
using ModulePieces = std::map<std::string, std::vector<ModulePiece>>;  // by the name of a layer in a file

/// Adds the names of kohya for the layers of makers' files, of which several modules may have rows.
void add_makers_names(const AdapterModules& modules, ModulePieces& names) {
  std::vector<std::string> all;
  std::map<std::string, size_t> indices;
  for (const LinearModule& module : modules.linear()) {
    indices.emplace(module.name, all.size());
    all.push_back(module.name);
  }
  for (const auto& [module, places] : checkpoint::ldm_modules(all)) {
    std::vector<ModulePiece>& pieces = names[checkpoint::kKohyaModel + with_underscores(module)];
    if (!pieces.empty()) continue;  // both programs call it so
    for (const checkpoint::LdmPlace& place : places) pieces.push_back({indices.at(place.name), place.rows});
  }
}

/// Returns the adapter of some outputs of a layer. Their A is the same.
PeftLayer piece_of(PeftLayer layer, const checkpoint::LdmRows& rows, const std::string& name) {
  if (rows == checkpoint::LdmRows{}) return layer;
  const int64_t all = layer.b.size(0), parts = rows.swapped ? 2 : rows.of;
  require(all % parts == 0 && !layer.magnitude.defined(), "adapter", "the adapter of ", printable(name),
          " must have outputs of ", parts, " equal parts and no magnitudes: got ", all,
          layer.magnitude.defined() ? " with magnitudes" : "", "; it belongs to another base");
  layer.b =
      rows.swapped ? layer.b.roll(all / 2, 0) : layer.b.narrow(0, all / parts * rows.first, all / parts * rows.count);
  return layer;
}

/// The modules of a model by each name that files have for them.
ModulePieces modules_by_name(const AdapterModules& modules, const models::ModelShape& shape) {
  ModulePieces names;
  const bool draws = shape.part<models::DenoiserSizes>().channels > 0;
  for (size_t i = 0; i < modules.linear().size(); ++i) {
    std::string module = modules.linear()[i].name;
    const bool is_within = module.starts_with(kTextPart);  // a denoiser
    if (is_within) module.erase(0, std::string(kTextPart).size());
    if (draws && !is_within) {
      for (const std::string& name : {module, concat(shape.architecture->diffusers.part, ".", module),
                                      checkpoint::kKohyaModel + with_underscores(module)})
        names[name] = {{i}};
      continue;
    }
    for (const std::string& name : {kTextPart + module, checkpoint::kKohyaText + with_underscores(module),
                                    kKohyaFirstText + with_underscores(module)})
      names[name] = {{i}};
    // folders of some versions lack this word
    if (module.starts_with(kTextModel)) names[kTextPart + module.substr(std::string(kTextModel).size())] = {{i}};
  }
  if (draws) add_makers_names(modules, names);
  return names;
}

/// Checks the sizes of a layer. A convolution of one pixel may have matrices.
PeftLayer fitted(PeftLayer layer, const std::string& name, const LinearModule& module) {
  const std::vector<int64_t> sizes = module.shape_of_a(layer.rank), out = module.shape_of_b(layer.rank);
  const bool is_pointwise = std::all_of(module.kernel.begin(), module.kernel.end(), [](int64_t k) { return k == 1; });
  if (is_pointwise && layer.a.size(1) == module.in && layer.a.numel() == layer.rank * module.in)
    layer.a = layer.a.reshape(sizes);
  require(layer.a.sizes() == at::IntArrayRef(sizes) && layer.b.sizes() == at::IntArrayRef(out), "adapter",
          "the adapter of ", printable(name), " must have A ", at::IntArrayRef(sizes), " and B ", at::IntArrayRef(out),
          " for this model: got ", layer.a.sizes(), " and ", layer.b.sizes(), "; it belongs to another base");
  require(!layer.magnitude.defined() || !module.is_convolution(), "adapter",
          "adapters of convolutions must have no magnitudes: got some for ", printable(name),
          "; merge them into the model with the program that made them");
  return layer;
}

}  // namespace

bool has_text_adapters(const checkpoint::PeftFolder& folder) {
  return folder.is_of_pipeline() && std::any_of(folder.layers().begin(), folder.layers().end(),
                                                [](const auto& one) { return is_text(one.first); });
}

std::vector<FolderAdapter> adapters_of_part(const checkpoint::PeftFolder& folder, const AdapterModules& modules,
                                            const models::ModelShape& shape) {
  const bool draws = shape.part<models::DenoiserSizes>().channels > 0,
             has_both = models::text_encoder_blocks(shape) > 0;
  const ModulePieces names = modules_by_name(modules, shape);
  std::vector<FolderAdapter> adapters;
  std::vector<std::string> unknown;
  for (const auto& [name, layer] : folder.layers()) {
    if (!has_both && is_text(name) == draws) continue;  // of another part
    const auto found = names.find(name);
    if (found == names.end()) {
      unknown.push_back(printable(name));
      continue;
    }
    const double root =
        folder.config().root_scale ? std::sqrt(static_cast<double>(layer.rank)) : static_cast<double>(layer.rank);
    for (const auto& [module, rows] : found->second)
      adapters.push_back(
          {module, fitted(piece_of(layer, rows, name), name, modules.linear()[module]), layer.scale * root});
  }
  if (unknown.empty()) return adapters;
  std::vector<std::string> known;
  for (const auto& [name, pieces] : names) known.push_back(name);
  throw Error("adapter", concat("adapters must be of layers of the model: got ", join(unknown), " without one",
                                did_you_mean(unknown.front(), known), "; they belong to another base"));
}

}  // namespace colossal::run
