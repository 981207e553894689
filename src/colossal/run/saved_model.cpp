#include "colossal/run/saved_model.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/run_folder.h"
#include "colossal/base/seed.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/newest.h"
#include "colossal/comm/agreement.h"
#include "colossal/models/registry.h"
#include "colossal/run/external_names.h"
#include "colossal/run/model_source.h"
#include "colossal/run/resolve_shape.h"
#include "colossal/run/stored_config.h"
#include "colossal/text/end_tokens.h"

namespace colossal::run {
namespace {

/// Returns the shape of a folder's model with the head that begins with a pooler.
models::ModelShape with_pooler(const std::string& folder, const models::Registry& registry) {
  const models::ModelShape shape = registry.shape_of(checkpoint::read_config(folder));
  const std::vector<std::string>& keys = shape.architecture->hugging_face.pooler;
  require(!keys.empty(), "run", "only a bert has a pooler: ", folder, " holds a ", shape.architecture->name);
  models::ModelConfig config;
  config.from = folder;
  config.own = models::own_keys(keys);
  return registry.resolve(config);
}

/// `steps`: the checkpoints of the folder, if it is a run.
ModelSource describe(const std::string& folder, const checkpoint::StepFolders& steps, const Loading& loading,
                     const Program& program, std::vector<std::string>& notices) {
  if (is_run(folder)) return source_of_run(folder, steps, program, loading.model);
  require(loading.model.empty(), "run", folder, " must be a run folder to have a model ", loading.model,
          ": got one with a single model; leave --model out");
  check_is_model(folder);
  ModelSource source{.path = folder, .tokenizer = folder};
  if (loading.pooler) {
    source.shape = with_pooler(folder, program.models);
    return source;
  }
  nlohmann::json config = checkpoint::read_config(folder);
  if (auto notice = drop_missing_layers(folder, config, program.models)) notices.push_back(std::move(*notice));
  source.shape = program.models.shape_of(config);
  return source;
}

/// Returns the names of the head's parameters that a folder may lack.
std::vector<std::string> head_of(const nn::Parameters& parameters, bool pooler) {
  std::vector<std::string> names;
  for (const nn::Parameter& p : parameters.declared())
    if (p.name.starts_with("head.") && !(pooler && p.name.starts_with("head.pooler."))) names.push_back(p.name);
  return names;
}

/// Allocates all parameters of a model without memory, and returns their tensors for filling. Weights that are packed
/// get memory only while they are filled.
std::vector<checkpoint::NamedTensor> tensors_in_memory(nn::Parameters& parameters, nn::PackedWeights* packed) {
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

/// Describes the folder and checks it for the caller's purpose. After that, it sets the tokenizer and end ids of
/// `saved`. It does not communicate.
ModelSource open_folder(const std::string& folder, const checkpoint::StepFolders& steps,
                        const distributed::ParallelConfig& layout, const Loading& loading, const Program& program,
                        SavedModel& saved) {
  const char* component = loading.headless ? "embed" : "generate";
  const std::string& tokenizer = loading.tokenizer;
  ModelSource about = describe(folder, steps, loading, program, saved.notices);
  parallel::check_sizes(layout.tensor, about.shape.hidden, 0);
  const models::Task task = about.shape.task();
  require(loading.headless ? task.reads_text() : tokenizer == "none" || task.generates(), component, folder,
          " holds a ", about.shape.architecture->name, ", which ", task.purpose(),
          loading.headless ? ": it reads no text" : ": it has no text to continue");
  saved.files = about.files;
  // of a run over bytes: the tokenizer.json of their ids, beside the run's template
  saved.tokenizer_source = !about.files.empty() && text::has_tokenizer(about.files) ? about.files : about.tokenizer;
  saved.source = about.checkpoint.empty() ? folder : about.from;
  if (tokenizer == "none") return about;
  require(!tokenizer.empty() || about.tokenizer != folder || text::has_tokenizer(folder), component, folder,
          " holds no tokenizer; name one with --tokenizer: bytes, or a tokenizer.json");
  saved.tokenizer = text::make_tokenizer(tokenizer.empty() ? about.tokenizer : tokenizer);
  // end ids of the tokenizer's vocabulary
  saved.end_ids = text::end_ids(tokenizer == "bytes" ? "" : folder, *saved.tokenizer);
  return about;
}

/// Returns the parameter with this name if rows of it are looked up; null = it is another one, or a matrix of a stack.
nn::Parameter* table_of(nn::Parameters& parameters, const std::string& name) {
  for (nn::Parameter& parameter : parameters)
    if (parameter.name == name) return parameter.looked_up ? &parameter : nullptr;
  return nullptr;
}

/// Reads the weights of a Hugging Face folder into `tensors`; `packs_later`: packed weights at their first use. It does
/// not communicate.
void import_folder(const std::string& folder, const ModelSource& about, const Loading& loading, SavedModel& saved,
                   std::vector<checkpoint::NamedTensor>& tensors, bool packs_later = false) {
  nn::Parameters& parameters = saved.model->parameters();
  checkpoint::TakeCodes take;
  checkpoint::TakeRows take_rows;
  checkpoint::TakeLater take_later;
  if (saved.packed) {
    take = [&packed = *saved.packed](const std::string& name, const checkpoint::ReadCodes& read) {
      if (!packed.takes_codes(name)) return false;
      const auto codes = read();
      return codes && packed.take(name, *codes);
    };
    take_rows = [&packed = *saved.packed, &parameters, packs_later](const std::string& name,
                                                                    const checkpoint::ReadRows& read) {
      nn::Parameter* table = packs_later ? table_of(parameters, name) : nullptr;
      if (table ? read.dtype != table->value.scalar_type() : !packed.takes_rows(name)) return false;
      const auto rows = read();
      return rows && (table ? packed.view(*table, *rows) : packed.take(name, *rows));
    };
    if (packs_later)
      take_later = [&packed = *saved.packed](const std::string& name, const std::function<void()>& load) {
        return packed.take_later(name, load);
      };
  }
  const std::vector<std::string> may_lack =
      loading.headless ? head_of(parameters, loading.pooler) : std::vector<std::string>{};
  checkpoint::import_weights(folder, parameters, tensors, external_names(about.shape, may_lack), take, take_rows,
                             take_later);
}

/// Writes the values of parameters that the checkpoint leaves out into `tensors`, as training started with them, unless
/// they are those of another run (ModelSource::base). It does not communicate.
void restore_unsaved(const ModelSource& about, const Loading& loading, SavedModel& saved,
                     std::vector<checkpoint::NamedTensor>& tensors) {
  if (tensors.empty() || about.base) return;
  check_base(about);
  if (!about.from.empty()) return import_folder(about.from, about, loading, saved, tensors);
  nn::Parameters& parameters = saved.model->parameters();
  tensor::Held held;
  for (const checkpoint::NamedTensor& tensor : tensors) {
    const nn::Parameter& parameter = parameters.at(tensor.name);
    // in the dtype in which training drew it, because rounding would change its values
    const at::Tensor whole = at::empty(parameter.spec.local_shape(parameters.coordinates()), at::dtype(about.drawn_as));
    parameters.draw(parameter, whole);
    tensor.value.write_into(held);
    held.value.copy_(tensor.part ? whole.flatten().narrow(0, tensor.part->first, tensor.part->size) : whole);
  }
}

/// Moves the parameters that checkpoints leave out from `tensors` into the result.
std::vector<checkpoint::NamedTensor> take_unsaved(const nn::Parameters& parameters,
                                                  std::vector<checkpoint::NamedTensor>& tensors) {
  std::set<std::string> unsaved;
  for (const nn::Parameter& p : parameters.declared())
    if (!p.treatment.saved) unsaved.insert(p.name);
  const auto first = std::stable_partition(tensors.begin(), tensors.end(),
                                           [&](const auto& tensor) { return !unsaved.contains(tensor.name); });
  std::vector<checkpoint::NamedTensor> taken(std::make_move_iterator(first), std::make_move_iterator(tensors.end()));
  tensors.erase(first, tensors.end());
  return taken;
}

/// Reads the weights of a checkpoint into `tensors`, each under the name that it has in training.
void read_checkpoint(const ModelSource& about, std::vector<checkpoint::NamedTensor> tensors, comm::Mesh& mesh) {
  const std::string saved_as = about.model.empty() ? "model." : about.model + ".";
  checkpoint::TrainingState state;
  for (checkpoint::NamedTensor& tensor : tensors) {
    tensor.name = saved_as + tensor.name;
    state.tensors.push_back(std::move(tensor));
  }
  checkpoint::load(about.checkpoint, state, mesh.all(), mesh.coordinates(), saved_as);
}

}  // namespace

models::Task task_of(const std::string& folder, const Program& program, const std::string& model) {
  const RunFolder run(folder);
  if (!model.empty())
    return source_of_run(folder, checkpoint::step_folders(run.checkpoints()), program, model).shape.task();
  if (is_run(folder)) return resolve_shape(stored_config(folder).model, program).task();
  check_is_model(folder);
  return program.models.shape_of(checkpoint::read_config(folder)).task();
}

SavedModel load_model(const std::string& folder, comm::Mesh& mesh, const distributed::ParallelConfig& layout,
                      at::Device device, const Loading& loading, const Program& program) {
  comm::Group& everyone = mesh.all();
  const auto busy = mesh.world().busy("reading " + folder);
  SavedModel saved;
  ModelSource about;
  // one rank reads the folder, all others use its result
  const checkpoint::StepFolders steps = checkpoint::agreed_steps(RunFolder(folder).checkpoints(), everyone);
  comm::agree(everyone, at::kCPU, [&] { about = open_folder(folder, steps, layout, loading, program, saved); });
  nn::Parameters::Options options{.dtype = loading.dtype.value_or(about.dtype), .device = device};
  options.without_memory = true;  // values that a file has are not drawn
  options.seed = derive_seed(about.seed, "parameters");
  options.treatment = about.adapter.treatment;
  if (loading.packing && !loading.memory.has_tiers()) {
    saved.packed = std::make_unique<nn::PackedWeights>(*loading.packing);
    options.products = {
        [packed = saved.packed.get()](std::shared_ptr<const nn::Product> product, const nn::Parameter& weight,
                                      nn::Parameters&) { return packed->wrap(std::move(product), weight); }};
  }
  if (about.adapter.product) options.products.push_back(about.adapter.product);
  saved.model = std::make_unique<distributed::DistributedModel>(mesh, layout, about.shape, options,
                                                                distributed::DistributedModel::Workload{});
  nn::Parameters& parameters = saved.model->parameters();
  if (loading.memory.has_tiers()) saved.weights = std::make_unique<StreamedWeights>(*saved.model, mesh, loading.memory);
  std::vector<checkpoint::NamedTensor> tensors =
      saved.weights ? saved.weights->tensors() : tensors_in_memory(parameters, saved.packed.get());
  add_buffers(parameters, tensors);
  if (about.checkpoint.empty()) {
    const bool packs_later = loading.packs_later && everyone.size() == 1;  // ranks must fail together
    comm::agree(everyone, at::kCPU, [&] { import_folder(folder, about, loading, saved, tensors, packs_later); });
  } else {
    std::vector<checkpoint::NamedTensor> unsaved = take_unsaved(parameters, tensors);
    comm::agree(everyone, at::kCPU, [&] { restore_unsaved(about, loading, saved, unsaved); });
    if (about.base) read_source(*about.base, parameters, std::move(unsaved), mesh, "");
    read_checkpoint(about, std::move(tensors), mesh);
  }
  if (saved.weights) saved.weights->loaded();
  if (saved.packed) comm::agree(everyone, at::kCPU, [&] { saved.packed->finish(); });
  return saved;
}

}  // namespace colossal::run
