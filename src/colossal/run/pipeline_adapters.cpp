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
#include "colossal/checkpoint/peft/pipeline_file.h"
#include "colossal/models/clip_text_within.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"

namespace colossal::run {
namespace {

using checkpoint::PeftLayer;

constexpr const char *kTextPart = models::kOfTextEncoder, *kTextModel = "text_model.";

bool is_text(const std::string& name) {
  return name.starts_with(kTextPart) || name.starts_with(checkpoint::kKohyaText);
}

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

/// The modules of a model by each name that files have for them.
std::map<std::string, size_t> modules_by_name(const AdapterModules& modules, const models::ModelShape& shape) {
  std::map<std::string, size_t> names;
  const bool draws = shape.part<models::DenoiserSizes>().channels > 0;
  for (size_t i = 0; i < modules.linear().size(); ++i) {
    std::string module = modules.linear()[i].name;
    const bool is_within = module.starts_with(kTextPart);  // a denoiser
    if (is_within) module.erase(0, std::string(kTextPart).size());
    if (draws && !is_within) {
      names[module] = names[concat(shape.architecture->diffusers.part, ".", module)] = i;
      names[checkpoint::kKohyaModel + with_underscores(module)] = i;
      continue;
    }
    names[kTextPart + module] = names[checkpoint::kKohyaText + with_underscores(module)] = i;
    // folders of some versions lack this word
    if (module.starts_with(kTextModel)) names[kTextPart + module.substr(std::string(kTextModel).size())] = i;
  }
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
  const std::map<std::string, size_t> names = modules_by_name(modules, shape);
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
    adapters.push_back({found->second, fitted(layer, name, modules.linear()[found->second]), layer.scale * root});
  }
  if (unknown.empty()) return adapters;
  std::vector<std::string> known;
  for (const auto& [name, index] : names) known.push_back(name);
  throw Error("adapter", concat("adapters must be of layers of the model: got ", join(unknown), " without one",
                                did_you_mean(unknown.front(), known), "; they belong to another base"));
}

}  // namespace colossal::run
