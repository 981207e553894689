#include "colossal/run/model_source.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <iterator>
#include <memory>
#include <set>
#include <utility>

#include "colossal/base/checksum.h"
#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/model_path.h"
#include "colossal/base/pipeline_parts.h"
#include "colossal/base/run_folder.h"
#include "colossal/base/seed.h"
#include "colossal/checkpoint/folder.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/ldm/file.h"
#include "colossal/checkpoint/manifest.h"
#include "colossal/checkpoint/strided_weights.h"
#include "colossal/comm/agreement.h"
#include "colossal/formats/gguf_file.h"
#include "colossal/models/clip_text_within.h"
#include "colossal/models/clip_text_words.h"
#include "colossal/models/decoder.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/models/unet_control_net.h"
#include "colossal/models/unet_image_prompt.h"
#include "colossal/nn/frozen_form.h"
#include "colossal/nn/low_rank.h"
#include "colossal/run/adapter_source.h"
#include "colossal/run/adapter_weights.h"
#include "colossal/run/average_weights.h"
#include "colossal/run/config.h"
#include "colossal/run/data.h"
#include "colossal/run/external_names.h"
#include "colossal/run/objectives/diffusion/pipeline_folder.h"
#include "colossal/run/program.h"
#include "colossal/run/replaced_run.h"
#include "colossal/run/resolve_shape.h"
#include "colossal/run/stored_config.h"

namespace colossal::run {
namespace {

using Tensors = std::vector<checkpoint::NamedTensor>;

/// Splits off the parameters that the checkpoint of a source leaves out.
Tensors take_unsaved(const ModelSource& source, const nn::Parameters& parameters, Tensors& tensors) {
  const auto is_saved = [&](const checkpoint::NamedTensor& tensor) {
    for (const nn::Parameter& p : parameters.declared())
      if (p.name == tensor.name) return !source.adapter.treatment || source.adapter.treatment(p.own_name()).saved;
    return true;  // a buffer
  };
  const auto first = std::stable_partition(tensors.begin(), tensors.end(), is_saved);
  Tensors taken(std::make_move_iterator(first), std::make_move_iterator(tensors.end()));
  tensors.erase(first, tensors.end());
  return taken;
}

/// Returns true if the checkpoint of a source leaves out parameters of `model`; the same on every rank.
bool leaves_out(const ModelSource& source, const nn::Parameters& parameters, const std::string& model) {
  const auto& all = parameters.declared();
  return source.adapter.treatment && std::any_of(all.begin(), all.end(), [&](const nn::Parameter& p) {
           return p.model == model && !source.adapter.treatment(p.own_name()).saved;
         });
}

std::vector<std::string> import_folder(const std::string& folder, const ModelSource& source,
                                       const nn::Parameters& parameters, const Tensors& tensors,
                                       const std::string& model, const std::vector<std::string>& may_lack) {
  checkpoint::ExternalNames names = external_names(source.shape, may_lack);
  names.model = model;
  return checkpoint::import_weights(folder, parameters, tensors, names);
}

/// Draws the values with which the training of a run started. Rounding would change them, so they are drawn in the
/// dtype of that training.
void draw_unsaved(const ModelSource& source, const nn::Parameters& parameters, Tensors& tensors) {
  tensor::Held held;
  for (const checkpoint::NamedTensor& tensor : tensors) {
    const auto& all = parameters.declared();
    const auto parameter = std::find_if(all.begin(), all.end(), [&](const auto& p) { return p.name == tensor.name; });
    nn::Parameter drawn = *parameter;
    drawn.spec = tensor.spec;  // of the whole parameter if it is stored as codes
    const at::Tensor whole = at::empty(drawn.spec.local_shape(parameters.coordinates()), at::dtype(source.drawn_as));
    parameters.draw(drawn, whole, derive_seed(source.seed, "parameters"));
    tensor.value.write_into(held);
    held.value.copy_(tensor.part ? whole.flatten().narrow(0, tensor.part->first, tensor.part->size) : whole);
  }
}

/// The tensors of a checkpoint that belong to a model, compared with the parameters that the caller has.
struct StoredNames {
  std::set<std::string> unused{};                  ///< tensors that the caller need not read
  std::set<std::string> kept{};                    ///< parameters that keep their values
  std::vector<std::string> lacking{}, adapters{};  ///< those of `kept` that may be missing; tensors of another adapter
};

/// `saved_as`: prefix of the model's tensors in the checkpoint. It does not communicate.
StoredNames compare_names(const ModelSource& source, const nn::Parameters& parameters, const std::string& saved_as,
                          const std::string& model, const std::vector<std::string>& may_lack) {
  const auto stored = checkpoint::Manifest::read(source.checkpoint + "/manifest.json").tensors;
  StoredNames names;
  for (const nn::Parameter& p : parameters.declared()) {
    if (p.model != model) continue;
    const auto found = stored.find(saved_as + p.own_name());
    names.unused.insert(saved_as + p.own_name());
    if (found != stored.end() && found->second.shape == p.spec.shape) continue;
    const bool is_new = p.is_added && found == stored.end();
    if (!is_new && !checkpoint::matches_one(p.own_name(), may_lack)) continue;
    names.kept.insert(p.name);
    if (!is_new) names.lacking.push_back(p.name);
  }
  for (const nn::Buffer& buffer : parameters.buffers())
    if (buffer.model == model) names.unused.insert(saved_as + buffer.own_name());
  for (const auto& [name, tensor] : stored) {
    if (!name.starts_with(saved_as) || names.unused.contains(name)) continue;
    const std::string own = name.substr(saved_as.size());
    if (checkpoint::matches_one(own, may_lack) || own == concat(models::kValueHead, ".weight") ||
        models::is_of_control(own) || models::is_of_image_prompt(own) || models::is_learned_words(own))
      names.unused.insert(name);
    else if (source.adapter.product)
      names.adapters.push_back(name.substr(saved_as.size()));
  }
  return names;
}

/// Reads the tensors that the checkpoint of a run has. Returns the names of the parameters that it lacks and may lack.
std::vector<std::string> read_stored(const ModelSource& source, const nn::Parameters& parameters, Tensors tensors,
                                     comm::Mesh& mesh, const std::string& model, std::vector<std::string> may_lack) {
  comm::Group& everyone = mesh.all();
  const std::string saved_as = source.model.empty() ? "model." : source.model + ".";
  const std::vector<std::string>& of_family = source.shape.architecture->hugging_face.may_lack;
  may_lack.insert(may_lack.end(), of_family.begin(), of_family.end());
  ModelSource read = source;  // the run may save a newer checkpoint meanwhile
  read.checkpoint = comm::broadcast_text(everyone, at::kCPU, 0, source.checkpoint);
  StoredNames names;
  comm::agree(everyone, at::kCPU, [&] {
    names = compare_names(read, parameters, saved_as, model, may_lack);
    require(names.adapters.empty(), "model", "the checkpoint ", read.checkpoint,
            " must have parameters of this model alone: got ", names.adapters.empty() ? "" : names.adapters.front(),
            " and perhaps others of an adapter; give this model the same adapter",
            source.from.empty() ? "" : concat(", or start from ", source.from, ", as that run did"));
  });
  std::erase_if(tensors, [&](const checkpoint::NamedTensor& tensor) { return names.kept.contains(tensor.name); });
  const size_t prefix = model.empty() ? 0 : model.size() + 1;
  checkpoint::TrainingState state;
  for (checkpoint::NamedTensor& tensor : tensors) {
    tensor.name = saved_as + tensor.name.substr(prefix);
    state.tensors.push_back(std::move(tensor));
  }
  checkpoint::load(read.checkpoint, state, everyone, mesh.coordinates(), saved_as, names.unused,
                   averages_in(read.checkpoint, source.uses_average, state));
  return names.lacking;
}

std::vector<std::string> read_any(const ModelSource& source, const nn::Parameters& parameters, Tensors tensors,
                                  comm::Mesh& mesh, const std::string& model, const std::vector<std::string>& may_lack,
                                  bool merges);

/// Merges adapters into tensors that are encoded when they are released. So one of them is in memory at a time.
class MergedCodes {
 public:
  MergedCodes(const AdapterWeights& weights, const nn::Parameters& parameters)
      : weights_(weights), parameters_(parameters) {}

  /// Returns true for a tensor of a parameter that is stored as codes of its numbers.
  bool has(const checkpoint::NamedTensor& tensor) const {
    const auto& all = parameters_.declared();
    const auto found = std::find_if(all.begin(), all.end(), [&](const auto& p) { return p.name == tensor.name; });
    const auto form = found == all.end() ? nullptr : parameters_.form_of(*found);
    return form && form->filling() == nn::FrozenFilling::Numbers;
  }
  /// Returns such a tensor for the weights of the base: the adapters are merged when it is released.
  checkpoint::NamedTensor of(const checkpoint::NamedTensor& tensor) {
    checkpoint::NamedTensor merged = tensor;
    merged.value = {at::dtype(at::kFloat), tensor.value.sizes().vec(), [this, tensor](bool) {
                      tensor::Held codes = tensor.value.write();
                      // A release must not throw.
                      std::shared_ptr<const void> release(this, [this, tensor, codes](const void*) {
                        try {
                          merge_whole(weights_, parameters_, tensor, codes.value);
                        } catch (...) {
                          error_ = std::current_exception();
                        }
                      });
                      return tensor::Held{codes.value, std::move(release)};
                    }};
    return merged;
  }
  /// Throws the last error of merging.
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  const AdapterWeights& weights_;
  const nn::Parameters& parameters_;
  std::exception_ptr error_;
};

/// Writes the weights of a run with adapters into `tensors`, those of the main model, with the adapters merged.
void read_merged(const ModelSource& source, const nn::Parameters& parameters, Tensors tensors, comm::Mesh& mesh,
                 const std::string& model, const std::vector<std::string>& may_lack) {
  const AdapterSource adapters{.path = source.path,
                               .checkpoint = source.checkpoint,
                               .keys = *source.low_rank,
                               .uses_average = source.uses_average};
  const AdapterWeights weights = of_model(read_adapters(adapters, source.shape, mesh), model);
  // Its adapters are merged, so those of the model that is filled are others.
  std::erase_if(tensors, [](const checkpoint::NamedTensor& tensor) { return nn::is_low_rank(tensor.name); });
  MergedCodes codes(weights, parameters);
  Tensors of_base, numbers;
  for (const checkpoint::NamedTensor& tensor : tensors) {
    if (!codes.has(tensor)) numbers.push_back(tensor);
    if (!weights.provided.contains(tensor.name)) of_base.push_back(codes.has(tensor) ? codes.of(tensor) : tensor);
  }
  const ModelSource base = base_of(source);
  comm::agree(mesh.all(), at::kCPU, [&] {
    check_base(source);
    if (mesh.world().rank() == 0) check_same_base(adapters, base);
    if (source.from.empty()) draw_unsaved(source, parameters, of_base);
  });
  if (!source.from.empty()) read_any(base, parameters, of_base, mesh, model, may_lack, /*merges=*/true);
  comm::agree(mesh.all(), at::kCPU, [&] { codes.rethrow(); });
  fill_adapters(weights, source.shape, parameters, tensors, mesh, model);
  merge_adapters(weights, parameters, numbers, mesh);
}

/// Writes the weights of a base and the adapters that are put onto it (ModelSource::low_rank with `from`).
std::vector<std::string> read_with_adapters(const ModelSource& source, const nn::Parameters& parameters,
                                            const Tensors& tensors, comm::Mesh& mesh, const std::string& model,
                                            const std::vector<std::string>& may_lack) {
  Tensors of_base;
  for (const checkpoint::NamedTensor& tensor : tensors)
    if (!nn::is_low_rank(tensor.name)) of_base.push_back(tensor);
  const std::vector<std::string> lacking =
      read_any(base_of(source), parameters, std::move(of_base), mesh, model, may_lack, /*merges=*/true);
  AdapterSource adapters;
  comm::agree(mesh.all(), at::kCPU, [&] { adapters = open_adapters(source.low_rank->from); });
  fill_adapters(of_model(read_adapters(adapters, source.shape, mesh), model), source.shape, parameters, tensors, mesh,
                model);
  return lacking;
}

std::vector<std::string> files_with_weights(const std::string& path) {
  if (const std::optional<checkpoint::LdmPart> part = checkpoint::ldm_part(path)) return {part->file};
  if (!std::filesystem::is_directory(path)) return {path};
  const std::string folder = model_folder(path);
  std::vector<std::string> files;
  for (const char* ending : {".safetensors", ".bin"})
    if (files.empty())
      for (const auto& entry : std::filesystem::directory_iterator(folder))
        if (entry.path().extension() == ending) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  files.push_back(folder + "/config.json");  // which says what the weights compute
  return files;
}

std::string checksum_of_files(const std::string& path) {
  std::string all;
  for (const std::string& file : files_with_weights(path)) all += file_checksum(file);
  return checksum(all);
}

}  // namespace

void check_is_model(const std::string& path) {
  if (checkpoint::ldm_part(path)) return;
  require_model_path(path, "run");
  // read_config() refuses such a file if it does not hold the weights of AlphaFold 2.
  if (formats::is_gguf(path) || checkpoint::is_strided_file(path)) return;
  require(std::filesystem::exists(model_folder(path) + "/config.json"), "run", path,
          " must be a run folder (with config.toml), a Hugging Face folder (with config.json), a pipeline of diffusers "
          "(with model_index.json), a GGUF file, or the weights of AlphaFold 2 (.npz, .pt)");
}

std::string newest_checkpoint(const std::string& folder, const checkpoint::StepFolders& steps) {
  const RunFolder run(folder);
  const std::string skipped = steps.skipped_after(steps.newest());
  const bool is_set_aside = steps.complete.empty() && checkpoint_set_aside(run);
  require(!is_set_aside, "run", "the run that overwrites the one in ", folder,
          " has no complete checkpoint yet; wait for its first one, or restore the earlier run with `colossal train "
          "--resume`");
  require(!steps.complete.empty(), "run", "the folder ", folder, " holds no complete checkpoint; ",
          skipped.empty() ? "train first" : "incomplete: " + skipped);
  require(skipped.empty(), "run", "the newest checkpoint of ", folder, " must be complete: ", skipped,
          "; restore it, or move it away to use the one of step ", steps.newest());
  return checkpoint::step_path(run.checkpoints(), steps.newest());
}

ModelSource source_of_run(const std::string& folder, const checkpoint::StepFolders& steps, const Program& program,
                          const std::string& model, const std::string& base) {
  const Config config = stored_config(folder);
  const std::string newest = newest_checkpoint(folder, steps);
  const std::string from = base.empty() ? read_config<Config>(RunFolder(folder).config()).model.from : base;
  const ResolvedModel resolved = model.empty() ? resolve_model(config, program) : resolve_run(config, program);
  ModelSource source{.path = folder,
                     // training alone uses values, and other models within the model
                     .shape = models::without_image_prompt(models::without_control(
                         models::without_text_encoder(models::with_values(resolved.shape, false)))),
                     .tokenizer = config.tokenizer(),
                     .checkpoint = newest,
                     .dtype = config.precision.has_masters() ? at::kFloat : config.precision.dtype(),
                     .leaves_out_values = model.empty() && resolved.shape.has_values(),
                     .adapter = resolved.adapter,
                     .from = from,
                     .seed = static_cast<uint64_t>(config.training.seed),
                     .drawn_as = config.precision.dtype()};
  require(base.empty() || (model.empty() && resolved.low_rank), "run",
          "--base must be for a run with adapters, whose base has moved: got ", folder,
          ", whose checkpoints have all weights; leave it out");
  if (model.empty()) {
    source.low_rank = resolved.low_rank;
    if (std::filesystem::exists(folder + "/config.json")) source.files = folder;
    if (source.adapter.treatment && is_run(from))
      source.base = std::make_shared<const ModelSource>(find_source(from, program));
    return source;
  }
  std::string names;
  for (const ResolvedFurther& other : resolved.further) {
    const bool is_saved = other.model.use == ModelUse::Trained;
    if (is_saved) names += concat(names.empty() ? "" : ", ", other.model.name);
    if (!is_saved || other.model.name != model) continue;
    source.model = model;
    source.shape = other.source.shape;
    source.adapter = other.adapter();
    source.from = other.source.is_preset ? "" : other.source.path;
    if (!other.source.checkpoint.empty()) source.base = std::make_shared<const ModelSource>(other.source);
    return source;
  }
  throw Error("run", concat("the run ", folder, " has no trained model ", model, " beside its main one: there ",
                            names.empty() ? "is none" : "are " + names));
}

ModelSource source_of_preset(const std::string& name, const Program& program, int64_t vocabulary) {
  return {.path = name, .shape = program.models.resolve({.name = name}, vocabulary), .is_preset = true};
}

ModelSource find_source(const std::string& path, const Program& program, int64_t vocabulary) {
  const std::vector<std::string> presets = program.models.preset_names();
  std::error_code ignored;
  const bool is_preset = std::find(presets.begin(), presets.end(), path) != presets.end();
  if (is_preset && !std::filesystem::exists(path, ignored)) return source_of_preset(path, program, vocabulary);
  if (is_run(path)) return source_of_run(path, checkpoint::step_folders(RunFolder(path).checkpoints()), program);
  check_is_model(path);
  return {.path = path, .shape = program.models.shape_of(checkpoint::read_config(path)), .tokenizer = path};
}

void check_base(const ModelSource& source) {
  std::error_code ignored;
  require(source.from.empty() || std::filesystem::exists(source.from, ignored), "run", "the checkpoints of the run ",
          source.path, " leave out values that come from model.from = \"", source.from,
          "\": there is no such file or folder",
          std::filesystem::path(source.from).is_relative() ? " in the current folder" : "",
          "; put it back, name its new place with --base, or correct model.from in ", RunFolder(source.path).config());
}

ModelSource base_of(const ModelSource& run) {
  if (run.base) return *run.base;
  return {.path = run.from, .shape = run.shape, .is_preset = run.from.empty()};
}

std::string checksum_of_base(const std::string& from, const models::ModelShape& shape, const Program& program) {
  const std::string own = checksum_of(find_source(from, program));
  const auto texts = shape.part<models::OwnTextEncoder>();
  if (!texts.shape) return own;
  const PipelineFolder pipeline = read_pipeline(from);
  const auto of_part = [&](const char* part) { return checksum_of({.path = pipeline.at(part).folder}); };
  const std::string first = concat(own, ",", of_part(kTextEncoderPart));
  return texts.second ? concat(first, ",", of_part(kSecondTextEncoderPart)) : first;
}

void check_same_base(const AdapterSource& adapters, const ModelSource& base) {
  const std::string all = base_checksum_of(adapters);
  const bool is_text_encoder = base.shape.part<models::TextEncoderSizes>().features > 0;
  size_t begin = 0;  // of the part of `base` in the checksums, which commas divide
  for (int64_t skipped = is_text_encoder ? std::max<int64_t>(adapters.text_encoder, 0) + 1 : 0; skipped > 0; --skipped)
    begin = std::min(all.find(',', begin), all.size() - 1) + 1;
  const std::string trained_on = all.substr(begin, all.find(',', begin) - begin);
  require(trained_on.empty() || trained_on == checksum_of(base), "run", "the adapters of ", adapters.path,
          " must be put onto the base on which they were trained: got other weights in ", base.path,
          "; name that base");
}

std::vector<std::string> read_source(const ModelSource& source, const nn::Parameters& parameters, Tensors tensors,
                                     comm::Mesh& mesh, const std::string& model,
                                     const std::vector<std::string>& may_lack) {
  const auto& all = parameters.declared();
  const bool has_adapters = std::any_of(
      all.begin(), all.end(), [&](const nn::Parameter& p) { return p.model == model && nn::is_low_rank(p.name); });
  return read_any(source, parameters, std::move(tensors), mesh, model, may_lack, model.empty() || !has_adapters);
}

namespace {

/// Does the work of read_source(). `merges`: adapters of a run are merged into the weights, and not loaded as
/// parameters of their own.
std::vector<std::string> read_any(const ModelSource& source, const nn::Parameters& parameters, Tensors tensors,
                                  comm::Mesh& mesh, const std::string& model, const std::vector<std::string>& may_lack,
                                  bool merges) {
  if (source.is_preset) return {};
  if (source.low_rank && !source.low_rank->from.empty())
    return read_with_adapters(source, parameters, tensors, mesh, model, may_lack);
  comm::Group& everyone = mesh.all();
  std::vector<std::string> lacking;
  if (source.checkpoint.empty()) {
    comm::agree(everyone, at::kCPU,
                [&] { lacking = import_folder(source.path, source, parameters, tensors, model, may_lack); });
    return lacking;
  }
  if (source.low_rank && merges) {
    read_merged(source, parameters, std::move(tensors), mesh, model, may_lack);
    return {};
  }
  Tensors unsaved = take_unsaved(source, parameters, tensors);
  if (leaves_out(source, parameters, model)) {
    comm::agree(everyone, at::kCPU, [&] {
      check_base(source);
      if (source.from.empty())
        draw_unsaved(source, parameters, unsaved);
      else if (!source.base)
        import_folder(source.from, source, parameters, unsaved, model, may_lack);
    });
    if (source.base) read_any(*source.base, parameters, std::move(unsaved), mesh, model, may_lack, merges);
  }
  return read_stored(source, parameters, std::move(tensors), mesh, model, may_lack);
}

/// Returns a checksum of a folder of peft, or of the newest checkpoint of a run with adapters.
std::string checksum_of_adapters(const std::string& folder) {
  const AdapterSource source = open_adapters(folder);
  if (!source.peft) return file_checksum(source.checkpoint + "/manifest.json");
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) return file_checksum(folder);
  std::string all;
  for (const auto& entry : std::set<std::filesystem::path>(std::filesystem::directory_iterator(folder), {}))
    if (entry.extension() == ".safetensors" || entry.filename() == "adapter_config.json") all += file_checksum(entry);
  return checksum(all);
}

}  // namespace

std::string checksum_of(const ModelSource& source) {
  if (source.is_preset) return "";
  if (source.low_rank && !source.low_rank->from.empty())
    return checksum(checksum_of(base_of(source)) + checksum_of_adapters(source.low_rank->from));
  if (source.checkpoint.empty()) return checksum_of_files(source.path);
  const std::string of_blocks =
      checksum(file_checksum(source.checkpoint + "/manifest.json") + file_checksum(RunFolder(source.path).config()));
  if (source.from.empty() || !source.adapter.treatment) return of_blocks;
  return checksum(of_blocks + (source.base ? checksum_of(*source.base) : checksum_of_files(source.from)));
}

}  // namespace colossal::run
