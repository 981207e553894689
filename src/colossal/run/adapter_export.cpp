#include "colossal/run/adapter_export.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/pipeline_parts.h"
#include "colossal/checkpoint/hugging_face/external_part.h"
#include "colossal/comm/agreement.h"
#include "colossal/models/caption_parts.h"
#include "colossal/models/clip_text_within.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/run/adapter_modules.h"
#include "colossal/run/adapter_weights.h"
#include "colossal/run/external_names.h"

namespace colossal::run {
namespace {

using checkpoint::ExternalPart;

/// Returns the name of a module or tensor in the whole model of transformers, which has the prefix everywhere but in
/// the head.
std::string name_in_model(const std::string& name, const std::string& parameter, const std::string& prefix) {
  return name.starts_with(prefix) || parameter.starts_with("head.") ? name : prefix + name;
}

/// Returns the names of targets in the config: short ones if these select no other modules, else those of the folder.
std::vector<std::string> target_names(const AdapterModules& modules, const std::vector<size_t>& indices,
                                      const std::string& prefix) {
  std::vector<std::string> names = modules.short_names(indices);
  for (std::string& name : names)
    for (const size_t index : indices)
      if (modules.linear()[index].name == name) name = name_in_model(name, modules.linear()[index].weight, prefix);
  return names;
}

/// Returns the modules of the tensors of a folder.
std::vector<std::string> modules_of_tensors(const std::map<std::string, at::Tensor>& tensors) {
  std::set<std::string> names;
  for (const auto& [tensor, value] : tensors) names.insert(tensor.substr(0, tensor.rfind('.')));
  return {names.begin(), names.end()};
}

/// Collects the tensors of the modules that were trained whole on rank 0, as the folder has them.
std::map<std::string, at::Tensor> trained_tensors(const nn::Parameters& parameters, const models::ModelShape& shape,
                                                  const std::set<std::string>& trained, comm::Group& world) {
  std::map<std::string, checkpoint::Parts> parts;
  const std::vector<ExternalPart> all = checkpoint::external_parts(parameters, external_names(shape).names);
  for (const ExternalPart& part : all)
    if (trained.contains(part.parameter->name)) parts[part.name].push_back(&part);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, own] : parts) {
    const at::Tensor whole = checkpoint::gather(own, parameters, world);
    if (whole.defined())
      tensors[name_in_model(name, own.front()->parameter->name, shape.architecture->hugging_face.prefix)] =
          own.front()->to_theirs(whole).contiguous();
  }
  return tensors;
}

bool is_transposed(const models::ModelShape& shape, const std::string& weight) {
  const std::vector<nn::ExternalName> names = folder_names(shape);
  return std::any_of(names.begin(), names.end(),
                     [&](const nn::ExternalName& name) { return name.ours == weight && name.transposed; });
}

/// Checks that adapters of a model can be written in that form.
void check_form(const models::ModelShape& shape, bool draws, checkpoint::PipelineForm form) {
  const models::Architecture& architecture = *shape.architecture;
  require(architecture.hugging_face.names || (draws && architecture.diffusers.names), "export",
          "adapters must be of an architecture that Hugging Face folders have: got ", architecture.name);
  require(draws || form == checkpoint::PipelineForm::Peft, "export",
          "only adapters of models that draw have kohya's form: got a ", architecture.name,
          "; leave out --adapter-form");
}

/// Returns what the file says of all adapters.
checkpoint::PeftConfig peft_config_of(const LowRankKeys& keys, const models::ModelShape& shape,
                                      const std::string& base) {
  checkpoint::PeftConfig config{.rank = keys.rank,
                                .alpha = keys.alpha,
                                .dropout = keys.dropout,
                                .root_scale = keys.scale == "root",
                                .magnitudes = keys.kind == "dora",
                                .base = base};
  if (!shape.task().continues()) config.task = shape.outputs() > 0 ? "SEQ_CLS" : "";
  return config;
}

/// Adds an adapter to those that are written. `name`: that of its module there.
void add_layer(const AdapterLayer& layer, const std::string& name, const LowRankKeys& keys, at::ScalarType dtype,
               const std::map<std::string, at::Tensor>& norms, checkpoint::PipelineLayers& to) {
  const LinearModule& module = layer.module;
  const int64_t rank = keys.rank_of(module.name);
  const double alpha = keys.alpha_of(module.name);
  if (rank != keys.rank) to.config.ranks.emplace_back(name, rank);
  if (alpha != keys.alpha) to.config.alphas.emplace_back(name, alpha);
  checkpoint::PeftLayer& own = to.layers[name];
  own = {.a = layer.a.to(dtype), .b = module.theirs(layer.b.to(dtype)), .rank = rank};
  if (layer.magnitude.defined())
    own.magnitude = module.theirs(
        (norms.at(module.weight).narrow(0, module.part.first, module.part.count) + layer.magnitude.to(at::kDouble))
            .to(dtype));
}

/// Returns the adapters by part of a pipeline, with the names that their modules have in it.
std::map<std::string, checkpoint::PipelineLayers> by_part(const checkpoint::PipelineLayers& all,
                                                          const std::string& denoiser) {
  using Patterns = checkpoint::PeftConfig::Patterns;
  std::map<std::string, checkpoint::PipelineLayers> parts;
  for (const auto& [whole, layer] : all.layers) {
    const int64_t encoder = models::text_encoder_of_name(whole);
    const std::string name = encoder < 0 ? whole : whole.substr(models::names_of_text_encoder(encoder).size()),
                      part = encoder < 0 ? denoiser : models::caption_part_name(kTextEncoderPart, encoder);
    const auto [own, is_new] = parts.try_emplace(part);
    if (is_new) {
      own->second.config = all.config;
      own->second.config.ranks.clear(), own->second.config.alphas.clear();
    }
    own->second.layers[name] = layer;
    const auto add = [&, whole = whole](const Patterns& from, Patterns& to) {
      for (const auto& [pattern, value] : from)
        if (pattern == whole) to.emplace_back(name, value);
    };
    add(all.config.ranks, own->second.config.ranks);
    add(all.config.alphas, own->second.config.alphas);
  }
  return parts;
}

}  // namespace

void export_adapters(const std::string& to, const SavedModel& saved, const AdapterSource& source, comm::Mesh& mesh,
                     checkpoint::PipelineForm form) {
  const nn::Parameters& parameters = saved.model->parameters();
  const models::ModelShape shape = shape_in_training(source, saved.model->model().shape);
  const models::HuggingFace& folder = shape.architecture->hugging_face;
  const bool draws = shape.part<models::DenoiserSizes>().channels > 0;
  check_form(shape, draws, form);
  const AdapterWeights adapters = read_adapters(source, shape, mesh);
  std::vector<checkpoint::NamedTensor> tensors;
  for (const nn::Parameter& p : parameters.declared())
    if (p.value.defined()) tensors.push_back({p.name, p.value.detach(), p.spec});
  const std::map<std::string, at::Tensor> norms = row_norms(adapters, parameters, tensors, mesh);
  const LowRankKeys keys = keys_of(source, shape);
  checkpoint::PipelineLayers all{.config = peft_config_of(keys, shape, saved.source)};
  checkpoint::PeftConfig& config = all.config;
  comm::Group& world = mesh.all();
  const AdapterModules modules(shape);
  const std::set<std::string> trained = modules.parameters_of("adapter.trained", keys.trained);
  require(!draws || trained.empty(), "export",
          "adapters of a pipeline must have no modules that were trained whole: got adapter.trained; write the whole "
          "model without --adapter-only");
  std::vector<size_t> matrices, stacks;
  for (const size_t index : modules.selected("adapter.targets", keys.targets, trained)) {
    const LinearModule& module = modules.linear()[index];
    (module.is_stack() ? stacks : matrices).push_back(index);
    config.fan_in_fan_out = config.fan_in_fan_out || is_transposed(shape, module.weight);
  }
  for (const AdapterLayer& layer : adapters.layers)
    add_layer(layer, name_in_model(layer.module.name, layer.module.weight, folder.prefix), keys,
              parameters.options().dtype, norms, all);
  config.targets = target_names(modules, matrices, folder.prefix);
  config.parameters = target_names(modules, stacks, folder.prefix);
  std::map<std::string, at::Tensor> whole;
  if (!draws) whole = trained_tensors(parameters, shape, trained, world);
  comm::agree(world, at::kCPU, [&] {
    if (world.rank() != 0) return;
    config.trained = modules_of_tensors(whole);
    config.keeps_ties = shape.tied && trained.contains("embedding.weight");
    create_folder(to);
    if (draws) return write_pipeline_file(to, by_part(all, shape.architecture->diffusers.part), form);
    checkpoint::PeftFolder(config, std::move(all.layers), std::move(whole)).write(to);
  });
}

}  // namespace colossal::run
