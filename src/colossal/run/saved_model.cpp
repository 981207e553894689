#include "colossal/run/saved_model.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "colossal/base/article.h"
#include "colossal/base/error.h"
#include "colossal/base/run_folder.h"
#include "colossal/base/seed.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/newest.h"
#include "colossal/comm/agreement.h"
#include "colossal/models/decoder.h"
#include "colossal/models/folder_names.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/run/adapter_end_ids.h"
#include "colossal/run/adapter_source.h"
#include "colossal/run/adapter_weights.h"
#include "colossal/run/average_weights.h"
#include "colossal/run/external_names.h"
#include "colossal/run/low_rank_adapter.h"
#include "colossal/run/model_source.h"
#include "colossal/run/named_adapters.h"
#include "colossal/run/parts_within.h"
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

void add_notice_of_average(const std::string& checkpoint, const Loading& loading, std::vector<std::string>& notices) {
  if (!loading.uses_average || checkpoint.empty()) return;
  if (const double decay = average_decay_of(checkpoint); decay > 0) notices.push_back(notice_of_average(decay));
}

/// `steps`: the checkpoints of the folder, if it is a run.
ModelSource describe(const std::string& folder, const checkpoint::StepFolders& steps, const Loading& loading,
                     const Program& program, std::vector<std::string>& notices) {
  if (is_run(folder)) {
    ModelSource source = source_of_run(folder, steps, program, loading.model, loading.base);
    source.uses_average = loading.uses_average;
    add_notice_of_average(source.checkpoint, loading, notices);
    return source;
  }
  require(loading.base.empty(), "run", "--base must be for a run with adapters, whose base has moved: got ", folder,
          "; leave it out");
  require(loading.model.empty(), "run", folder, " must be a run folder to have a model ", loading.model,
          ": got one with a single model; leave --model out");
  check_is_model(folder);
  ModelSource source{.path = folder, .tokenizer = folder, .uses_average = loading.uses_average};
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

/// The model of a source, and the adapters that are put onto it.
struct Opened {
  ModelSource about{};
  std::optional<AdapterSource> adapters{};
  std::vector<AdapterSource> further{};    ///< merged in addition to `adapters`
  bool merges = false;                     ///< the adapters are merged into weights
  nn::Adapter adapter{};                   ///< changes to the model
  std::vector<nn::ExternalCopy> untied{};  ///< tensors that stand for the head that the adapters give the model
  AdapterWeights weights{};
  bool has_parts_alone = false;  ///< a run whose checkpoints have such parts, and no other weights (parts_within.h)
};

/// Opens an adapter for the model. It does not communicate.
AdapterSource open_choice(const AdapterChoice& choice, const ModelSource& about, const Loading& loading, bool is_first,
                          std::vector<std::string>& notices) {
  AdapterSource source = open_adapters(choice.folder);
  if (choice.text_encoder >= 0) source = text_adapters_of(std::move(source), choice.text_encoder);
  source.scale = choice.scale;
  source.uses_average = loading.uses_average;
  add_notice_of_average(source.checkpoint, loading, notices);
  if (is_first && !source.peft) check_same_base(source, about);
  return source;
}

/// Opens Loading::further_adapters. It does not communicate.
void open_further(Opened& opened, const Loading& loading, bool is_first, std::vector<std::string>& notices) {
  if (loading.further_adapters.empty()) return;
  require(opened.merges, "adapter",
          "several adapters must be merged into weights that are numbers: got a model that keeps codes; leave out "
          "--quantize");
  for (const AdapterChoice& choice : loading.further_adapters)
    opened.further.push_back(open_choice(choice, opened.about, loading, is_first, notices));
  std::vector<const AdapterSource*> all{&*opened.adapters};
  for (const AdapterSource& source : opened.further) all.push_back(&source);
  for (const AdapterSource* source : all) {
    const LowRankKeys keys = keys_of(*source, opened.about.shape);
    require(keys.kind == "lora" && keys.trained.empty(), "adapter",
            "several adapters must be low-rank changes alone, which add up: got magnitudes (DoRA) or modules that were "
            "trained whole in ",
            source->path, "; give this adapter alone");
  }
}

/// Opens the adapters of a model, if there are some. It does not communicate.
void open_adapters_of(Opened& opened, const std::string& folder, const Loading& loading, bool is_first,
                      std::vector<std::string>& notices) {
  ModelSource& about = opened.about;
  opened.adapter = about.adapter;
  require(!loading.adapter || loading.named_adapters.empty(), "adapter",
          "adapters must be merged or chosen by requests: got some for both");
  if (about.low_rank) {
    require(!loading.adapter, "adapter", "--adapter must be for a model without adapters: got ", folder,
            ", whose adapters are not merged; write its merged model with `colossal export --from ", folder,
            " --to FOLDER`, and name that");
    opened.adapters = AdapterSource{.path = about.path,
                                    .checkpoint = about.checkpoint,
                                    .keys = *about.low_rank,
                                    .uses_average = about.uses_average};
    check_base(about);
  } else if (loading.adapter) {
    opened.adapters = open_choice(*loading.adapter, about, loading, is_first, notices);
    const models::ModelShape base = about.shape;
    about.shape = shape_with(*opened.adapters, base);
    if (base.tied && !about.shape.tied && about.shape.outputs() == base.outputs())
      for (const nn::ExternalCopy& copy : models::copies_in_folder(base))
        opened.untied.push_back({copy.original, copy.name, copy.reason, copy.remedy});
  }
  if (!opened.adapters) return;
  const bool keeps_codes =
      loading.packing &&
      (loading.packing->bits > 0 || !has_numbers(about.low_rank && !about.from.empty() ? about.from : folder));
  opened.merges = loading.merges_adapters && !keeps_codes;
  const LowRankKeys keys = keys_of(*opened.adapters, about.shape);
  opened.adapter = opened.merges ? nn::Adapter{} : low_rank_adapter(keys, about.shape);
  require(!keeps_codes || keys.kind != "dora" || !opened.adapters->peft, "adapter",
          "magnitudes of DoRA must be put onto weights that are numbers: got --quantize, or a quantized model; merge "
          "them with `colossal export --from ",
          folder, " --adapter ", opened.adapters->path, " --to FOLDER`, and quantize the result");
  open_further(opened, loading, is_first, notices);
}

/// Reads the adapters of a model. Collective.
void read_adapters_of(Opened& opened, comm::Mesh& mesh) {
  const models::ModelShape& shape = opened.about.shape;
  if (opened.adapters) opened.weights = read_adapters(*opened.adapters, shape, mesh);
  for (const AdapterSource& source : opened.further)
    for (AdapterLayer& layer : read_adapters(source, shape, mesh).layers)
      opened.weights.layers.push_back(std::move(layer));
}

/// Allocates all parameters of a model without memory, and returns their tensors for filling. Weights that are packed
/// get memory only while they are filled, except those in `changed`, which are packed later.
std::vector<checkpoint::NamedTensor> tensors_in_memory(nn::Parameters& parameters, nn::PackedWeights* packed,
                                                       const std::set<std::string>& changed) {
  std::vector<checkpoint::NamedTensor> tensors;
  for (nn::Parameter& p : parameters) {
    if (packed && changed.contains(p.name)) {
      tensors.push_back({p.name, at::empty(p.value.sizes(), p.value.options().requires_grad(false)), p.spec});
      continue;
    }
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

/// Checks that a model fits the caller's purpose. `shape` includes the head that Loading::adapter may bring.
void check_purpose(const models::ModelShape& shape, const std::string& folder, const Loading& loading) {
  const models::Task task = shape.task();
  const std::string what =
      concat(folder, " holds ", with_article(shape.architecture->name), ", which ", task.purpose());
  if (loading.headless) {
    require(task.reads_text(), "embed", what, ": it reads no text");
    return require(shape.part<models::TextEncoderSizes>().features == 0, "embed", what,
                   " for a denoiser of pictures: its states are no embeddings of texts");
  }
  if (loading.scores)
    return require(shape.outputs() == 1, "score", what,
                   ": it has no head of a reward model; train one with alignment.method = \"reward\", or name its "
                   "adapters with --adapter");
  require(loading.tokenizer == "none" || task.generates(), "generate", what, ": it has no text to continue",
          task.scores()                                      ? "; `colossal score` prints its scores"
          : shape.part<models::DenoiserSizes>().channels > 0 ? "; `colossal draw` draws with it"
          : shape.part<models::FoldingSizes>().single > 0    ? "; `colossal fold` folds with it"
                                                             : "");
}

/// Describes the folder, checks it for the caller's purpose, and sets the tokenizer and end ids of `saved`. It does not
/// communicate.
ModelSource open_folder(const std::string& folder, const checkpoint::StepFolders& steps,
                        const distributed::ParallelConfig& layout, const Loading& loading, const Program& program,
                        SavedModel& saved) {
  const char* component = loading.headless ? "embed" : loading.scores ? "score" : "generate";
  const std::string& tokenizer = loading.tokenizer;
  ModelSource about = describe(folder, steps, loading, program, saved.notices);
  parallel::check_sizes(layout.tensor, about.shape.hidden, 0);
  if (!loading.adapter) check_purpose(about.shape, folder, loading);
  saved.files = about.files;
  saved.leaves_out_values = about.leaves_out_values;
  // of a run over bytes: the tokenizer.json of their ids, beside the run's template
  saved.tokenizer_source = !about.files.empty() && text::has_tokenizer(about.files) ? about.files : about.tokenizer;
  saved.source = about.checkpoint.empty() ? folder : about.from;
  if (tokenizer == "none") return about;
  require(!tokenizer.empty() || about.tokenizer != folder || text::has_tokenizer(folder), component, folder,
          " holds no tokenizer; name one with --tokenizer: bytes, or a tokenizer.json");
  saved.tokenizer = text::make_tokenizer(tokenizer.empty() ? about.tokenizer : tokenizer);
  // end ids of the tokenizer's vocabulary
  saved.end_ids = text::end_ids(tokenizer == "bytes" ? "" : folder, *saved.tokenizer);
  if (loading.adapter && tokenizer != "bytes")  // folders may have end tokens of another tokenizer
    saved.end_ids = end_ids_of_adapter(loading.adapter->folder, *saved.tokenizer, saved.end_ids);
  return about;
}

/// Returns the parameter with this name if rows of it are looked up; null = it is another one, or a matrix of a stack.
nn::Parameter* table_of(nn::Parameters& parameters, const std::string& name) {
  for (nn::Parameter& parameter : parameters)
    if (parameter.name == name) return parameter.looked_up ? &parameter : nullptr;
  return nullptr;
}

/// Returns true if `changed` has a weight, or the stack of which it is one matrix ("<stack>.<index>").
bool is_changed(const std::set<std::string>& changed, const std::string& weight) {
  return changed.contains(weight) || changed.contains(weight.substr(0, weight.rfind('.')));
}

/// Reads the weights of a Hugging Face folder into `tensors`; `packs_later`: packed weights at their first use. It does
/// not communicate.
void import_folder(const std::string& folder, const Opened& opened, const Loading& loading, SavedModel& saved,
                   std::vector<checkpoint::NamedTensor>& tensors, bool packs_later = false) {
  nn::Parameters& parameters = saved.model->parameters();
  const std::set<std::string> changed = opened.merges ? opened.weights.adapted() : std::set<std::string>();
  checkpoint::TakeCodes take;
  checkpoint::TakeRows take_rows;
  checkpoint::TakeLater take_later;
  if (saved.packed) {
    take = [&packed = *saved.packed, changed](const std::string& name, const checkpoint::ReadCodes& read) {
      if (is_changed(changed, name) || !packed.takes_codes(name)) return false;
      const auto codes = read();
      return codes && packed.take(name, *codes);
    };
    take_rows = [&packed = *saved.packed, &parameters, packs_later, changed](const std::string& name,
                                                                             const checkpoint::ReadRows& read) {
      if (is_changed(changed, name)) return false;
      nn::Parameter* table = packs_later ? table_of(parameters, name) : nullptr;
      if (table ? read.dtype != table->value.scalar_type() : !packed.takes_rows(name)) return false;
      const auto rows = read();
      return rows && (table ? packed.view(*table, *rows) : packed.take(name, *rows));
    };
    if (packs_later)
      take_later = [&packed = *saved.packed, changed](const std::string& name, const std::function<void()>& load) {
        return !changed.contains(name) && packed.take_later(name, load);
      };
  }
  std::vector<std::string> may_lack;
  if (loading.headless)
    may_lack = head_of(parameters, loading.pooler);
  else if (opened.weights.provided.contains(concat(models::kScoreHead, ".weight")))  // adapters of a reward model
    may_lack = head_that_may_lack(opened.about.shape);
  checkpoint::ExternalNames names = external_names(opened.about.shape, may_lack);
  names.copies.insert(names.copies.end(), opened.untied.begin(), opened.untied.end());
  checkpoint::import_weights(folder, parameters, tensors, names, take, take_rows, take_later);
}

/// Writes the values of parameters that the checkpoint leaves out into `tensors`, as training started with them, unless
/// they are those of another run (ModelSource::base). It does not communicate.
void restore_unsaved(const Opened& opened, const Loading& loading, SavedModel& saved,
                     std::vector<checkpoint::NamedTensor>& tensors) {
  const ModelSource& about = opened.about;
  if (tensors.empty() || about.base) return;
  check_base(about);
  if (!about.from.empty()) return import_folder(about.from, opened, loading, saved, tensors);
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

/// Reads the weights of a checkpoint, or their averages, into `tensors`, each under the name that it has in training.
void read_checkpoint(const ModelSource& about, std::vector<checkpoint::NamedTensor> tensors, comm::Mesh& mesh) {
  const std::string saved_as = about.model.empty() ? "model." : about.model + ".";
  checkpoint::TrainingState state;
  for (checkpoint::NamedTensor& tensor : tensors) {
    tensor.name = saved_as + tensor.name;
    state.tensors.push_back(std::move(tensor));
  }
  std::set<std::string> unused;
  if (about.leaves_out_values) unused.insert(concat(saved_as, models::kValueHead, ".weight"));
  checkpoint::load(about.checkpoint, state, mesh.all(), mesh.coordinates(), saved_as, unused,
                   averages_in(about.checkpoint, about.uses_average, state));
}

/// Reads the base into `tensors`, puts the adapters onto it, and packs the weights that they changed.
void read_adapted(const std::string& folder, const Opened& opened, const Loading& loading, SavedModel& saved,
                  std::vector<checkpoint::NamedTensor>& tensors, comm::Mesh& mesh) {
  const ModelSource& about = opened.about;
  nn::Parameters& parameters = saved.model->parameters();
  std::vector<checkpoint::NamedTensor> of_base;
  for (const checkpoint::NamedTensor& tensor : tensors)
    if (!opened.weights.provided.contains(tensor.name)) of_base.push_back(tensor);
  const bool is_first = mesh.world().rank() == 0, is_folder = about.checkpoint.empty();
  const bool packs_later = loading.packs_later && mesh.all().size() == 1;
  require(is_folder || opened.untied.empty(), "adapter",
          "a trained head must be put onto a Hugging Face folder if the "
          "head of its base is the embedding: got the run ",
          folder, "; export the run first");
  comm::agree(mesh.all(), at::kCPU, [&] {
    if (about.low_rank && is_first) check_same_base(*opened.adapters, base_of(about));
    if (about.low_rank)
      restore_unsaved(opened, loading, saved, of_base);
    else if (is_folder)
      import_folder(folder, opened, loading, saved, of_base, packs_later);
  });
  if (about.base || !(about.low_rank || is_folder))
    read_source(about.base ? *about.base : about, parameters, of_base, mesh, "");
  fill_adapters(opened.weights, about.shape, parameters, tensors, mesh);
  if (!opened.merges) return;
  merge_adapters(opened.weights, parameters, tensors, mesh);
  if (!saved.packed) return;
  comm::agree(mesh.all(), at::kCPU, [&] {
    const std::set<std::string> changed = opened.weights.adapted();
    for (checkpoint::NamedTensor& tensor : tensors)
      if (changed.contains(tensor.name)) {
        const at::Tensor merged = tensor.value.read().value;
        tensor.value = saved.packed->loaded(parameters.at(tensor.name));
        tensor.value.write().value.copy_(merged);
      }
  });
}

/// Reads the weights of the model, without those of parts within it, into `tensors`.
void read_weights(const std::string& folder, Opened& opened, const Loading& loading, SavedModel& saved,
                  std::vector<checkpoint::NamedTensor> tensors, comm::Mesh& mesh) {
  const ModelSource& about = opened.about;
  nn::Parameters& parameters = saved.model->parameters();
  comm::Group& everyone = mesh.all();
  if (opened.adapters) {
    read_adapted(folder, opened, loading, saved, tensors, mesh);
  } else if (about.checkpoint.empty()) {
    const bool packs_later = loading.packs_later && everyone.size() == 1;  // ranks must fail together
    comm::agree(everyone, at::kCPU, [&] { import_folder(folder, opened, loading, saved, tensors, packs_later); });
  } else {
    std::vector<checkpoint::NamedTensor> unsaved = take_unsaved(parameters, tensors);
    comm::agree(everyone, at::kCPU, [&] { restore_unsaved(opened, loading, saved, unsaved); });
    if (about.base) read_source(*about.base, parameters, std::move(unsaved), mesh, "");
    if (!opened.has_parts_alone) read_checkpoint(about, std::move(tensors), mesh);
  }
}

}  // namespace

void set_adapters(Loading& loading, const std::vector<AdapterChoice>& adapters) {
  loading.adapter.reset();
  loading.further_adapters.clear();
  if (adapters.empty()) return;
  loading.adapter = adapters.front();
  loading.further_adapters.assign(adapters.begin() + 1, adapters.end());
}

models::Task task_of(const std::string& folder, const Program& program, const std::string& model) {
  const RunFolder run(folder);
  if (!model.empty())
    return source_of_run(folder, checkpoint::step_folders(run.checkpoints()), program, model).shape.task();
  if (is_run(folder)) {
    const Config config = stored_config(folder);
    models::ModelShape shape = resolve_shape(config.model, program);
    const auto chosen = choose_objective(config, program.objectives, shape, tables_of(program.adapters));
    return shape_for(*chosen.objective, std::move(shape)).task();
  }
  check_is_model(folder);
  return program.models.shape_of(checkpoint::read_config(folder)).task();
}

SavedModel load_model(const std::string& folder, comm::Mesh& mesh, const distributed::ParallelConfig& layout,
                      at::Device device, const Loading& loading, const Program& program) {
  comm::Group& everyone = mesh.all();
  const auto busy = mesh.world().busy("reading " + folder);
  SavedModel saved;
  Opened opened;
  ModelSource& about = opened.about;
  // one rank reads the folder, all others use its result
  const checkpoint::StepFolders steps = checkpoint::agreed_steps(RunFolder(folder).checkpoints(), everyone);
  comm::agree(everyone, at::kCPU, [&] {
    about = open_folder(folder, steps, layout, loading, program, saved);
    open_adapters_of(opened, folder, loading, everyone.rank() == 0, saved.notices);
    if (loading.adapter) check_purpose(about.shape, folder, loading);
    about.shape = with_parts(std::move(about.shape), loading);
    opened.has_parts_alone = has_parts_alone(folder);
  });
  read_adapters_of(opened, mesh);
  if (!loading.named_adapters.empty()) saved.token_adapters = read_named_adapters(loading.named_adapters, about, mesh);
  for (const AdapterChoice& choice : loading.named_adapters) saved.adapters.push_back(choice.name);
  nn::Parameters::Options options{.dtype = loading.dtype.value_or(about.dtype), .device = device};
  options.without_memory = true;  // values that a file has are not drawn
  options.seed = derive_seed(about.seed, "parameters");
  options.treatment = opened.adapter.treatment;
  if (loading.packing && !loading.memory.has_tiers()) {
    saved.packed = std::make_unique<nn::PackedWeights>(*loading.packing);
    options.products = {
        [packed = saved.packed.get()](std::shared_ptr<const nn::Product> product, const nn::Parameter& weight,
                                      nn::Parameters&) { return packed->wrap(std::move(product), weight); }};
  }
  if (opened.adapter.product) options.products.push_back(opened.adapter.product);
  if (saved.token_adapters)
    options.products.push_back([adapters = saved.token_adapters.get()](std::shared_ptr<const nn::Product> product,
                                                                       const nn::Parameter& weight,
                                                                       nn::Parameters& parameters) {
      return adapters->wrap(std::move(product), weight, parameters.coordinates());
    });
  saved.model = std::make_unique<distributed::DistributedModel>(mesh, layout, about.shape, options,
                                                                distributed::DistributedModel::Workload{});
  if (saved.token_adapters) saved.token_adapters->check();
  nn::Parameters& parameters = saved.model->parameters();
  if (loading.memory.has_tiers()) saved.weights = std::make_unique<StreamedWeights>(*saved.model, mesh, loading.memory);
  std::vector<checkpoint::NamedTensor> tensors =
      saved.weights ? saved.weights->tensors()
                    : tensors_in_memory(parameters, saved.packed.get(),
                                        opened.merges ? opened.weights.adapted() : std::set<std::string>());
  add_buffers(parameters, tensors);
  TensorsOfParts parts = take_parts(parameters, tensors);
  read_weights(folder, opened, loading, saved, std::move(tensors), mesh);
  // the source of the other weights
  const ModelSource base = opened.has_parts_alone ? base_of(about) : about;
  fill_parts(std::move(parts), loading, about.shape, parameters, mesh, base);
  if (saved.weights) saved.weights->loaded();
  if (saved.packed) comm::agree(everyone, at::kCPU, [&] { saved.packed->finish(); });
  return saved;
}

}  // namespace colossal::run
