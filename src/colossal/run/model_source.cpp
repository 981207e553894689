#include "colossal/run/model_source.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

#include "colossal/base/checksum.h"
#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/model_path.h"
#include "colossal/base/run_folder.h"
#include "colossal/base/seed.h"
#include "colossal/checkpoint/folder.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/comm/agreement.h"
#include "colossal/formats/gguf_file.h"
#include "colossal/models/registry.h"
#include "colossal/run/config.h"
#include "colossal/run/data.h"
#include "colossal/run/external_names.h"
#include "colossal/run/program.h"
#include "colossal/run/replaced_run.h"

namespace colossal::run {
namespace {

using Tensors = std::vector<checkpoint::NamedTensor>;

bool is_run(const std::string& path) { return std::filesystem::exists(RunFolder(path).config()); }

/// Checks that the files are there from which a run has its model and its tokenizer, because they may have moved.
void check_sources(const Config& config, const std::string& folder) {
  const std::string tokenizer = config.data.tokenizer;
  for (const auto& [key, path] : {std::pair<const char*, std::string>{"model.from", config.model.from},
                                  {"data.tokenizer", tokenizer == "auto" || tokenizer == "bytes" ? "" : tokenizer}}) {
    std::error_code ignored;
    require(path.empty() || std::filesystem::exists(path, ignored), "run", "the run ", folder, " needs ", key, " = \"",
            path, "\": there is no such file or folder",
            std::filesystem::path(path).is_relative() ? " in the current folder" : "", "; put it back, or correct ",
            key, " in ", RunFolder(folder).config());
  }
}

ModelSource source_of_preset(const std::string& name, const Program& program, int64_t vocabulary) {
  return {.path = name, .shape = program.models.resolve({.name = name}, vocabulary), .is_preset = true};
}

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

void import_folder(const std::string& folder, const ModelSource& source, const nn::Parameters& parameters,
                   const Tensors& tensors, const std::string& model) {
  if (tensors.empty()) return;
  checkpoint::ExternalNames names = external_names(source.shape);
  names.model = model;
  checkpoint::import_weights(folder, parameters, tensors, names);
}

/// Draws the values with which the training of a run started. Rounding would change them, so they are drawn in the
/// dtype of that training.
void draw_unsaved(const ModelSource& source, const nn::Parameters& parameters, Tensors& tensors) {
  tensor::Held held;
  for (const checkpoint::NamedTensor& tensor : tensors) {
    const auto& all = parameters.declared();
    const auto parameter = std::find_if(all.begin(), all.end(), [&](const auto& p) { return p.name == tensor.name; });
    const at::Tensor whole =
        at::empty(parameter->spec.local_shape(parameters.coordinates()), at::dtype(source.drawn_as));
    parameters.draw(*parameter, whole, derive_seed(source.seed, "parameters"));
    tensor.value.write_into(held);
    held.value.copy_(tensor.part ? whole.flatten().narrow(0, tensor.part->first, tensor.part->size) : whole);
  }
}

std::vector<std::string> files_with_weights(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return {path};
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  files.push_back(path + "/config.json");  // which says what the weights compute
  return files;
}

std::string checksum_of_files(const std::string& path) {
  std::string all;
  for (const std::string& file : files_with_weights(path)) all += file_checksum(file);
  return checksum(all);
}

}  // namespace

void check_is_model(const std::string& path) {
  require_model_path(path, "run");
  require(formats::is_gguf(path) || std::filesystem::exists(path + "/config.json"), "run", path,
          " must be a run folder (with config.toml), a Hugging Face folder (with config.json) or a GGUF file");
}

ModelSource source_of_run(const std::string& folder, const checkpoint::StepFolders& steps, const Program& program,
                          const std::string& model) {
  const RunFolder run(folder);
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
  check_sources(config, folder);
  const ResolvedModel resolved = model.empty() ? resolve_model(config, program) : resolve_run(config, program);
  ModelSource source{.path = folder,
                     .shape = resolved.shape,
                     .tokenizer = config.tokenizer(),
                     .checkpoint = checkpoint::step_path(run.checkpoints(), steps.newest()),
                     .dtype = config.precision.has_masters() ? at::kFloat : config.precision.dtype(),
                     .adapter = resolved.adapter,
                     .from = config.model.from,
                     .seed = static_cast<uint64_t>(config.training.seed),
                     .drawn_as = config.precision.dtype()};
  if (model.empty()) return source;
  std::string names;
  for (const ResolvedFurther& other : resolved.further) {
    const bool is_saved = other.model.use == ModelUse::Trained;
    if (is_saved) names += concat(names.empty() ? "" : ", ", other.model.name);
    if (!is_saved || other.model.name != model) continue;
    source.model = model;
    source.shape = other.source.shape;
    source.adapter = other.adapter();
    source.from = other.source.is_preset ? "" : other.source.path;
    return source;
  }
  throw Error("run", concat("the run ", folder, " has no trained model ", model, " beside its main one: there ",
                            names.empty() ? "is none" : "are " + names));
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

void read_source(const ModelSource& source, const nn::Parameters& parameters, Tensors tensors, comm::Mesh& mesh,
                 const std::string& model) {
  if (source.is_preset) return;
  comm::Group& everyone = mesh.all();
  if (source.checkpoint.empty()) {
    comm::agree(everyone, at::kCPU, [&] { import_folder(source.path, source, parameters, tensors, model); });
    return;
  }
  Tensors unsaved = take_unsaved(source, parameters, tensors);
  comm::agree(everyone, at::kCPU, [&] {
    if (source.from.empty())
      draw_unsaved(source, parameters, unsaved);
    else
      import_folder(source.from, source, parameters, unsaved, model);
  });
  const size_t prefix = model.empty() ? 0 : model.size() + 1;
  const std::string saved_as = source.model.empty() ? "model." : source.model + ".";
  checkpoint::TrainingState state;
  for (checkpoint::NamedTensor& tensor : tensors) {
    tensor.name = saved_as + tensor.name.substr(prefix);
    state.tensors.push_back(std::move(tensor));
  }
  checkpoint::load(source.checkpoint, state, everyone, mesh.coordinates(), saved_as);
}

std::string checksum_of(const ModelSource& source) {
  if (source.is_preset) return "";
  if (source.checkpoint.empty()) return checksum_of_files(source.path);
  const std::string of_blocks =
      checksum(file_checksum(source.checkpoint + "/manifest.json") + file_checksum(RunFolder(source.path).config()));
  return source.from.empty() || !source.adapter.treatment ? of_blocks
                                                          : checksum(of_blocks + checksum_of_files(source.from));
}

}  // namespace colossal::run
