#include "colossal/run/saved_model.h"

#include <ATen/ATen.h>

#include <filesystem>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/gguf_file.h"
#include "colossal/base/run_folder.h"
#include "colossal/checkpoint/hugging_face.h"
#include "colossal/checkpoint/newest.h"
#include "colossal/comm/agreement.h"
#include "colossal/models/registry.h"
#include "colossal/run/config.h"
#include "colossal/run/data.h"
#include "colossal/run/replaced_run.h"

namespace colossal::run {
namespace {

/// What a folder says about its model before any weight is read.
struct Description {
  models::ModelShape shape;
  std::string tokenizer;
  std::string checkpoint;  ///< empty: a Hugging Face folder, or a GGUF file
  at::ScalarType dtype = at::kFloat;
};

/// `steps`: of its checkpoints, if it is a run.
Description describe(const std::string& folder, const std::vector<int64_t>& steps, const models::Registry& registry) {
  const RunFolder run(folder);
  if (std::filesystem::exists(run.config())) {
    const auto config = read_config<Config>(run.config());
    const bool is_set_aside = steps.empty() && checkpoint_set_aside(run);
    require(!is_set_aside, "run", "the run that was to overwrite the one in ", folder,
            " has no complete checkpoint yet; wait for its first one, or bring the earlier run back with `colossal "
            "train --resume`");
    require(!steps.empty(), "run", "the folder ", folder, " holds no complete checkpoint; train first");
    return {resolve_model(config, registry).shape, config.tokenizer(),
            checkpoint::step_path(run.checkpoints(), steps.back()),
            config.precision.has_masters() ? at::kFloat : config.precision.dtype()};
  }
  require(is_gguf(folder) || std::filesystem::exists(folder + "/config.json"), "run", "the folder ", folder,
          " is neither a run (config.toml) nor a Hugging Face model (config.json) nor a GGUF file");
  return {registry.shape_of(checkpoint::read_config(folder)), folder, "", at::kFloat};
}

/// Of a model without memory: gives all parameters some, to be filled.
std::vector<checkpoint::NamedTensor> tensors_in_memory(nn::Parameters& parameters) {
  std::vector<checkpoint::NamedTensor> tensors;
  for (nn::Parameter& p : parameters) {
    p.value.set_data(at::empty(p.value.sizes(), p.value.options()));
    tensors.push_back({p.name, p.value.detach(), p.spec});
  }
  return tensors;
}

}  // namespace

SavedModel load_model(const std::string& folder, comm::Mesh& mesh, const distributed::ParallelConfig& layout,
                      at::Device device, const Loading& loading, const models::Registry& registry) {
  const std::string& tokenizer = loading.tokenizer;
  comm::Group& everyone = mesh.all();
  const auto busy = mesh.world().busy("reading " + folder);
  SavedModel saved;
  Description about;
  // one looks, all follow
  const std::vector<int64_t> steps = checkpoint::agreed_steps(RunFolder(folder).checkpoints(), everyone);
  comm::agree(everyone, at::kCPU, [&] {
    about = describe(folder, steps, registry);
    parallel::check_sizes(layout.tensor, about.shape.hidden, 0);
    const models::Task task = about.shape.task();
    require(tokenizer == "none" || task.generates(), "generate", folder, " holds a ", about.shape.architecture->name,
            ", which ", task.purpose(), ": it has no text to continue");
    saved.tokenizer_source = about.tokenizer;
    if (tokenizer == "none") return;
    require(!tokenizer.empty() || about.tokenizer != folder || text::has_tokenizer(folder), "generate", folder,
            " holds no tokenizer; name one with --tokenizer: bytes, or a tokenizer.json");
    saved.tokenizer = text::make_tokenizer(tokenizer.empty() ? about.tokenizer : tokenizer);
  });
  nn::Parameters::Options options{.dtype = loading.dtype.value_or(about.dtype), .device = device};
  options.without_memory = true;  // nobody draws values that a file has
  saved.model = std::make_unique<distributed::DistributedModel>(mesh, layout, about.shape, options,
                                                                distributed::DistributedModel::Workload{});
  nn::Parameters& parameters = saved.model->parameters();
  if (loading.memory.has_tiers()) saved.weights = std::make_unique<StreamedWeights>(parameters, mesh, loading.memory);
  std::vector<checkpoint::NamedTensor> tensors =
      saved.weights ? saved.weights->tensors() : tensors_in_memory(parameters);
  if (about.checkpoint.empty()) {
    const models::HuggingFace& names = about.shape.architecture->hugging_face;
    comm::agree(everyone, at::kCPU, [&] {
      checkpoint::import_weights(folder, parameters, tensors,
                                 {names.names(about.shape), names.prefix, names.ignored, {}, names.old_endings});
    });
    if (saved.weights) saved.weights->end_pass();
    return saved;
  }
  checkpoint::TrainingState state;
  for (checkpoint::NamedTensor& tensor : tensors) {
    tensor.name = "model." + tensor.name;
    state.tensors.push_back(std::move(tensor));
  }
  checkpoint::load(about.checkpoint, state, everyone, mesh.place(), "model.");
  if (saved.weights) saved.weights->end_pass();
  return saved;
}

}  // namespace colossal::run
