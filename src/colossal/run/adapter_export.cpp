#include "colossal/run/adapter_export.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/checkpoint/hugging_face/external_part.h"
#include "colossal/comm/agreement.h"
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

/// Collects a parameter on rank 0; undefined on other ranks.
at::Tensor whole_parameter(const nn::Parameters& parameters, const std::string& name, comm::Group& world) {
  for (const nn::Parameter& p : parameters.declared()) {
    if (p.name != name) continue;
    const std::vector<int64_t>& sizes = p.spec.shape;
    const ExternalPart whole{.parameter = &p,
                             .name = name,
                             .box = {std::vector<int64_t>(sizes.size(), 0), sizes},
                             .transposed = false,
                             .rows = sizes.front()};
    return checkpoint::gather({&whole}, parameters, world);
  }
  throw Error("export", concat("the model must have adapters apart from its weights: got no ", name));
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

}  // namespace

void export_adapters(const std::string& to, const SavedModel& saved, const AdapterSource& source, comm::Mesh& mesh,
                     checkpoint::PipelineForm form) {
  const nn::Parameters& parameters = saved.model->parameters();
  const models::ModelShape& shape = saved.model->model().shape;
  const models::HuggingFace& folder = shape.architecture->hugging_face;
  const bool draws = shape.part<models::DenoiserSizes>().channels > 0;
  check_form(shape, draws, form);
  const AdapterWeights adapters = read_adapters(source, shape, mesh);
  std::vector<checkpoint::NamedTensor> tensors;
  for (const nn::Parameter& p : parameters.declared())
    if (p.value.defined()) tensors.push_back({p.name, p.value.detach(), p.spec});
  const std::map<std::string, at::Tensor> norms = row_norms(adapters, parameters, tensors, mesh);
  const LowRankKeys keys = keys_of(source, shape);
  checkpoint::PeftConfig config = peft_config_of(keys, shape, saved.source);
  comm::Group& world = mesh.all();
  std::map<std::string, checkpoint::PeftLayer> layers;
  const AdapterModules modules(shape);
  const std::set<std::string> trained = modules.parameters_of("adapter.trained", keys.trained);
  const std::vector<size_t> indices = modules.selected("adapter.targets", keys.targets, trained);
  std::vector<size_t> matrices, stacks;
  for (const size_t index : indices) {
    const LinearModule& module = modules.linear()[index];
    const std::string name = name_in_model(module.name, module.weight, folder.prefix);
    (module.is_stack() ? stacks : matrices).push_back(index);
    config.fan_in_fan_out = config.fan_in_fan_out || is_transposed(shape, module.weight);
    const int64_t rank = keys.rank_of(module.name);
    const double alpha = keys.alpha_of(module.name);
    if (rank != keys.rank) config.ranks.emplace_back(name, rank);
    if (alpha != keys.alpha) config.alphas.emplace_back(name, alpha);
    checkpoint::PeftLayer layer{.a = whole_parameter(parameters, matrix_name(module, 'a'), world),
                                .b = whole_parameter(parameters, matrix_name(module, 'b'), world),
                                .rank = rank};
    if (config.magnitudes) {
      const at::Tensor change = whole_parameter(parameters, matrix_name(module, 'm'), world);
      if (change.defined())
        layer.magnitude = module.theirs(
            (norms.at(module.weight).narrow(0, module.part.first, module.part.count) + change.to(at::kDouble))
                .to(change.scalar_type()));
    }
    layer.b = module.theirs(layer.b);
    layers[name] = layer;
  }
  config.targets = target_names(modules, matrices, folder.prefix);
  config.parameters = target_names(modules, stacks, folder.prefix);
  std::map<std::string, at::Tensor> whole = trained_tensors(parameters, shape, trained, world);
  comm::agree(world, at::kCPU, [&] {
    if (world.rank() != 0) return;
    config.trained = modules_of_tensors(whole);
    config.keeps_ties = shape.tied && trained.contains("embedding.weight");
    create_folder(to);
    require(!draws || whole.empty(), "export",
            "adapters of a pipeline must have no modules that were trained whole: got adapter.trained; write the whole "
            "model without --adapter-only");
    if (draws) return write_pipeline_file(to, shape.architecture->diffusers.part, config, layers, form);
    checkpoint::PeftFolder(config, std::move(layers), std::move(whole)).write(to);
  });
}

}  // namespace colossal::run
