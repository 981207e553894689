#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_fields.h"
#include "colossal/models/config.h"
#include "colossal/models/families/alphafold2.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/parameter.h"
#include "colossal/nn/serial_layers.h"

namespace colossal::models {
namespace alphafold2 {

constexpr char kModelType[] = "alphafold2";

/// Layers of the structure module, here and in OpenFold.
constexpr std::pair<std::string_view, std::string_view> kStructureNames[] = {
    {"linear.", "evoformer.linear."},
    {"norm_s.", "structure_module.layer_norm_s."},
    {"norm_z.", "structure_module.layer_norm_z."},
    {"in.", "structure_module.linear_in."},
    {"points.head_weights", "structure_module.ipa.head_weights"},
    {"points.q.", "structure_module.ipa.linear_q."},
    {"points.kv.", "structure_module.ipa.linear_kv."},
    {"points.q_points.", "structure_module.ipa.linear_q_points.linear."},
    {"points.kv_points.", "structure_module.ipa.linear_kv_points.linear."},
    {"points.bias.", "structure_module.ipa.linear_b."},
    {"points.out.", "structure_module.ipa.linear_out."},
    {"norm_points.", "structure_module.layer_norm_ipa."},
    {"transition.0.0.", "structure_module.transition.layers.0.linear_1."},
    {"transition.0.1.", "structure_module.transition.layers.0.linear_2."},
    {"transition.0.2.", "structure_module.transition.layers.0.linear_3."},
    {"norm_transition.", "structure_module.transition.layer_norm."},
    {"update.", "structure_module.bb_update.linear."},
    {"angles.in.", "structure_module.angle_resnet.linear_in."},
    {"angles.initial.", "structure_module.angle_resnet.linear_initial."},
    {"angles.blocks.0.up.", "structure_module.angle_resnet.layers.0.linear_1."},
    {"angles.blocks.0.down.", "structure_module.angle_resnet.layers.0.linear_2."},
    {"angles.blocks.1.up.", "structure_module.angle_resnet.layers.1.linear_1."},
    {"angles.blocks.1.down.", "structure_module.angle_resnet.layers.1.linear_2."},
    {"angles.out.", "structure_module.angle_resnet.linear_out."},
};

std::string name_of_structure(const std::string& name) {
  for (const auto& [ours, theirs] : kStructureNames)
    if (name.starts_with(ours)) return std::string(theirs) + name.substr(ours.size());
  throw Error("model", concat("the structure module of AlphaFold 2 has no name in OpenFold for ", name));
}

/// Returns the name of a parameter of a template block in OpenFold. The last block has the norm and the attention.
std::string name_of_template(int64_t block, const std::string& name) {
  const std::string stack = "template_embedder.template_pair_stack.";
  if (name.starts_with("layer_norm.")) return stack + name;
  if (name.starts_with("mha.")) return "template_embedder.template_pointwise_att." + name;
  return concat(stack, "blocks.", block, ".", name);
}

std::string openfold_name_of(const ModelShape& s, const std::string& name) {
  if (name.starts_with("head.")) return "aux_heads." + name.substr(5);
  const std::optional<int64_t> block = block_of(name, s.blocks());
  if (!block) return name;
  const auto own = s.own.as<AlphaFold2Sizes>();
  const int64_t of_templates = own.templates > 0 ? own.template_blocks : 0, before = of_templates + own.extra_blocks;
  const std::string rest = name.substr(concat("blocks.", *block, ".").size());
  if (*block < of_templates) return name_of_template(*block, rest);
  if (*block < before) return concat("extra_msa_stack.blocks.", *block - of_templates, ".", rest);
  if (*block < before + s.layers) return concat("evoformer.blocks.", *block - before, ".", rest);
  return name_of_structure(rest);
}

std::vector<nn::ExternalName> folder_names(const ModelShape& s) {
  nn::Parameters parameters({}, {.device = at::kMeta, .without_memory = true});
  nn::SerialLayers layers(parameters);
  make_model(s, layers);
  std::vector<nn::ExternalName> names;
  for (const nn::Parameter& parameter : parameters.declared())
    if (!parameter.is_added) names.push_back({parameter.name, {openfold_name_of(s, parameter.name)}});
  return names;
}

ModelShape from_json(const nlohmann::json& config) {
  const FolderConfig folder(config, "AlphaFold 2");
  AlphaFold2Sizes own;
  nlohmann::ordered_json given = nlohmann::ordered_json::object();
  for (const KeyHelp& key : describe_own(own))
    if (folder.has(key.key.c_str())) given[key.key] = config.at(key.key);
  read_json(given, own, "model");
  return {.layers = folder.at<int64_t>("layers"), .tied = false, .own = own};
}

nlohmann::json to_json(const ModelShape& s) {
  nlohmann::json config = to_json_object(s.own.as<AlphaFold2Sizes>());
  config["model_type"] = kModelType;
  config["architectures"] = {"AlphaFold2"};
  config["layers"] = s.layers;
  return config;
}

}  // namespace alphafold2

HuggingFace alphafold2_folder() {
  return {.model_type = alphafold2::kModelType,
          .names = alphafold2::folder_names,
          .from_json = alphafold2::from_json,
          .to_json = alphafold2::to_json,
          .own_training = {"alignment_dropout", "pair_dropout", "structure_dropout"}};
}

}  // namespace colossal::models
