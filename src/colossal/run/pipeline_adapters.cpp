#include "colossal/run/pipeline_adapters.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <iterator>
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

/// The prefixes of the text encoders of a pipeline: in diffusers, and in the programs of kohya.
constexpr const char* kOfEncoders[][2] = {
    {kTextPart, checkpoint::kKohyaFirstText}, {"text_encoder_2.", "lora_te2_"}, {"text_encoder_3.", "lora_te3_"}};

/// Returns the number of the text encoder to which a layer belongs; -1 = to none.
int64_t encoder_of(const std::string& name) {
  if (name.starts_with(checkpoint::kKohyaText)) return 0;
  for (size_t i = 0; i < std::size(kOfEncoders); ++i)
    for (const char* prefix : kOfEncoders[i])
      if (name.starts_with(prefix)) return static_cast<int64_t>(i);
  return -1;
}

bool is_text(const std::string& name) { return encoder_of(name) >= 0; }

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
    const int64_t within = models::text_encoder_of_name(module);  // a denoiser
    if (within >= 0) module.erase(0, models::names_of_text_encoder(within).size());
    if (draws && within < 0) {
      for (const std::string& name : {module, concat(shape.architecture->diffusers.part, ".", module),
                                      checkpoint::kKohyaModel + with_underscores(module)})
        names[name] = {{i}};
      continue;
    }
    const char* const* prefixes = kOfEncoders[std::max<int64_t>(within, 0)];
    std::vector<std::string> own{prefixes[0] + module, prefixes[1] + with_underscores(module)};
    if (within <= 0) own.push_back(checkpoint::kKohyaText + with_underscores(module));
    // folders of some versions lack this word
    if (module.starts_with(kTextModel)) own.push_back(prefixes[0] + module.substr(std::string(kTextModel).size()));
    for (const std::string& name : own) names[name] = {{i}};
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

bool has_text_adapters(const checkpoint::PeftFolder& folder, int64_t encoder) {
  const auto fits = [encoder](const auto& one) {
    return encoder < 0 ? is_text(one.first) : encoder_of(one.first) == encoder;
  };
  return folder.is_of_pipeline() && std::any_of(folder.layers().begin(), folder.layers().end(), fits);
}

checkpoint::PeftFolder adapters_of_encoder(const checkpoint::PeftFolder& folder, int64_t encoder) {
  std::map<std::string, PeftLayer> layers;
  for (const auto& [name, layer] : folder.layers()) {
    if (encoder_of(name) != encoder) continue;
    std::string first = name;
    for (size_t form = 0; form < std::size(kOfEncoders[0]); ++form)
      if (const std::string own = kOfEncoders[encoder][form]; name.starts_with(own))
        first = kOfEncoders[0][form] + name.substr(own.size());
    layers.emplace(first, layer);
  }
  return checkpoint::PeftFolder::of_pipeline(folder.config(), std::move(layers));
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
