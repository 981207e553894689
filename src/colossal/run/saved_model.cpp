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
#include "colossal/run/external_names.h"
#include "colossal/run/replaced_run.h"
#include "colossal/text/end_tokens.h"

namespace colossal::run {
namespace {

/// What a folder says about its model before any weight is read.
struct Description {
  models::ModelShape shape;
  std::string tokenizer;
  std::string checkpoint;  ///< empty: a Hugging Face folder, or a GGUF file
  at::ScalarType dtype = at::kFloat;
};

/// Of a folder's model with the head that begins with a pooler.
models::ModelShape with_pooler(const std::string& folder, const models::Registry& registry) {
  const models::ModelShape shape = registry.shape_of(checkpoint::read_config(folder));
  require(shape.architecture->name == "bert", "run", "only a bert has a pooler: ", folder, " holds a ",
          shape.architecture->name);
  models::ModelConfig config;
  config.from = folder;
  config.own = models::own_keys({"objective=class"});
  return registry.resolve(config);
}

/// `steps`: those of its checkpoints, if it is a run.
Description describe(const std::string& folder, const checkpoint::StepFolders& steps, bool pooler,
                     const models::Registry& registry) {
  const RunFolder run(folder);
  if (std::filesystem::exists(run.config())) {
    const auto config = read_config<Config>(run.config());
    const std::string skipped = steps.skipped_after(steps.newest());
    const bool is_set_aside = steps.complete.empty() && checkpoint_set_aside(run);
    require(!is_set_aside, "run", "the run that overwrites the one in ", folder,
            " has no complete checkpoint yet; wait for its first one, or restore the earlier run with `colossal train "
            "--resume`");
    require(!steps.complete.empty(), "run", "the folder ", folder, " holds no complete checkpoint; ",
            skipped.empty() ? "train first" : "incomplete: " + skipped);
    require(skipped.empty(), "run", "the newest checkpoint of ", folder, " must be complete: ", skipped,
            "; restore it, or move it away to use the one of step ", steps.newest());
    return {resolve_model(config, registry).shape, config.tokenizer(),
            checkpoint::step_path(run.checkpoints(), steps.newest()),
            config.precision.has_masters() ? at::kFloat : config.precision.dtype()};
  }
  require(std::filesystem::exists(folder), "run", "there is no file or folder ", folder,
          "; name a run folder, a Hugging Face folder or a GGUF file");
  require(is_gguf(folder) || std::filesystem::exists(folder + "/config.json"), "run", folder,
          " must be a run folder (with config.toml), a Hugging Face folder (with config.json) or a GGUF file");
  return {pooler ? with_pooler(folder, registry) : registry.shape_of(checkpoint::read_config(folder)), folder, "",
          at::kFloat};
}

/// What of the head a folder may lack, as names of parameters.
std::vector<std::string> head_of(const nn::Parameters& parameters, bool pooler) {
  std::vector<std::string> names;
  for (const nn::Parameter& p : parameters.declared())
    if (p.name.starts_with("head.") && !(pooler && p.name.starts_with("head.pooler."))) names.push_back(p.name);
  return names;
}

/// Of a model without memory: gives all parameters some, to be filled, those that are packed while they are.
std::vector<checkpoint::NamedTensor> tensors_in_memory(nn::Parameters& parameters, nn::PrepackedLayers* packed) {
  std::vector<checkpoint::NamedTensor> tensors;
  for (nn::Parameter& p : parameters) {
    if (packed) {
      tensors.push_back({p.name, packed->loaded(p), p.spec});
      continue;
    }
    p.value.set_data(at::empty(p.value.sizes(), p.value.options()));
    tensors.push_back({p.name, p.value.detach(), p.spec});
  }
  return tensors;
}

void add_buffers(const nn::Parameters& parameters, std::vector<checkpoint::NamedTensor>& tensors) {
  for (const nn::Buffer& buffer : parameters.buffers())
    if (buffer.value.defined() && buffer.use == nn::BufferUse::Model)
      tensors.push_back({buffer.name, buffer.value, buffer.spec});
}

/// What the folder holds, checked for what the caller wants to do with it; then its tokenizer and end ids go into
/// `saved`. It does not communicate.
Description open_folder(const std::string& folder, const checkpoint::StepFolders& steps,
                        const distributed::ParallelConfig& layout, const Loading& loading,
                        const models::Registry& registry, SavedModel& saved) {
  const char* component = loading.headless ? "embed" : "generate";
  const std::string& tokenizer = loading.tokenizer;
  Description about = describe(folder, steps, loading.pooler, registry);
  parallel::check_sizes(layout.tensor, about.shape.hidden, 0);
  const models::Task task = about.shape.task();
  require(loading.headless ? task.reads == models::Reads::Tokens : tokenizer == "none" || task.generates(), component,
          folder, " holds a ", about.shape.architecture->name, ", which ", task.purpose(),
          loading.headless ? ": it reads no text" : ": it has no text to continue");
  saved.tokenizer_source = about.tokenizer;
  if (tokenizer == "none") return about;
  require(!tokenizer.empty() || about.tokenizer != folder || text::has_tokenizer(folder), component, folder,
          " holds no tokenizer; name one with --tokenizer: bytes, or a tokenizer.json");
  saved.tokenizer = text::make_tokenizer(tokenizer.empty() ? about.tokenizer : tokenizer);
  saved.end_ids = text::end_ids(tokenizer == "bytes" ? "" : folder, *saved.tokenizer);  // ids of its vocabulary
  return about;
}

/// The weights of a Hugging Face folder go into `tensors`. It does not communicate.
void import_folder(const std::string& folder, const Description& about, const Loading& loading, SavedModel& saved,
                   std::vector<checkpoint::NamedTensor>& tensors) {
  nn::Parameters& parameters = saved.model->parameters();
  checkpoint::TakeCodes take;
  if (saved.packed)
    take = [&](const std::string& name, const ops::GroupCodes& codes) {
      return saved.packed->take(parameters.at(name), codes);
    };
  const std::vector<std::string> may_lack =
      loading.headless ? head_of(parameters, loading.pooler) : std::vector<std::string>{};
  checkpoint::import_weights(folder, parameters, tensors, external_names(about.shape, may_lack), take);
}

/// The weights of a checkpoint go into `tensors`, each under the name that training gives it.
void read_checkpoint(const std::string& checkpoint, std::vector<checkpoint::NamedTensor> tensors, comm::Mesh& mesh) {
  checkpoint::TrainingState state;
  for (checkpoint::NamedTensor& tensor : tensors) {
    tensor.name = "model." + tensor.name;
    state.tensors.push_back(std::move(tensor));
  }
  checkpoint::load(checkpoint, state, mesh.all(), mesh.place(), "model.");
}

}  // namespace

SavedModel load_model(const std::string& folder, comm::Mesh& mesh, const distributed::ParallelConfig& layout,
                      at::Device device, const Loading& loading, const models::Registry& registry) {
  comm::Group& everyone = mesh.all();
  const auto busy = mesh.world().busy("reading " + folder);
  SavedModel saved;
  Description about;
  // one looks, all follow
  const checkpoint::StepFolders steps = checkpoint::agreed_steps(RunFolder(folder).checkpoints(), everyone);
  comm::agree(everyone, at::kCPU, [&] { about = open_folder(folder, steps, layout, loading, registry, saved); });
  nn::Parameters::Options options{.dtype = loading.dtype.value_or(about.dtype), .device = device};
  options.without_memory = true;  // nobody draws values that a file has
  if (loading.packing && !loading.memory.has_tiers()) {
    saved.packed = std::make_unique<nn::PrepackedLayers>(*loading.packing);
    options.products = {
        [packed = saved.packed.get()](std::shared_ptr<const nn::Product> product, const nn::Parameter& weight,
                                      nn::Parameters&) { return packed->wrap(std::move(product), weight); }};
  }
  saved.model = std::make_unique<distributed::DistributedModel>(mesh, layout, about.shape, options,
                                                                distributed::DistributedModel::Workload{});
  nn::Parameters& parameters = saved.model->parameters();
  if (loading.memory.has_tiers()) saved.weights = std::make_unique<StreamedWeights>(parameters, mesh, loading.memory);
  std::vector<checkpoint::NamedTensor> tensors =
      saved.weights ? saved.weights->tensors() : tensors_in_memory(parameters, saved.packed.get());
  add_buffers(parameters, tensors);
  if (about.checkpoint.empty())
    comm::agree(everyone, at::kCPU, [&] { import_folder(folder, about, loading, saved, tensors); });
  else
    read_checkpoint(about.checkpoint, std::move(tensors), mesh);
  if (saved.weights) saved.weights->end_pass();
  if (saved.packed) comm::agree(everyone, at::kCPU, [&] { saved.packed->finish(); });
  return saved;
}

}  // namespace colossal::run
