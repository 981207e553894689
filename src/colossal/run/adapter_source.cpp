#include "colossal/run/adapter_source.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/base/number.h"
#include "colossal/base/run_folder.h"
#include "colossal/base/suggest.h"
#include "colossal/checkpoint/checkpoint.h"
#include "colossal/checkpoint/folder.h"
#include "colossal/checkpoint/peft/pipeline_file.h"
#include "colossal/models/clip_text_within.h"
#include "colossal/models/folder_names.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/run/adapter_modules.h"
#include "colossal/run/data.h"
#include "colossal/run/model_source.h"
#include "colossal/run/module_names.h"
#include "colossal/run/own_tables.h"
#include "colossal/run/pipeline_adapters.h"
#include "colossal/run/program.h"
#include "colossal/run/stored_config.h"

namespace colossal::run {
namespace {

constexpr const char* kTable = "adapter";

/// Returns the table [adapter] of a run.
LowRankKeys stored_keys(const std::string& folder) {
  const Config config = stored_config(folder);
  Config own;
  for (const auto& [key, value] : config.tables.values())
    if (key == kTable || key.starts_with(concat(kTable, "."))) own.tables.put(key, value);
  std::vector<OwnTable> tables{{kTable, LowRankKeys{}}};
  read_tables(own, tables);
  return tables.front().keys.as<LowRankKeys>();
}

std::vector<std::string> names_of(const AdapterModules& modules, const std::vector<size_t>& indices) {
  std::vector<std::string> names;
  for (const size_t index : indices) names.push_back(modules.linear()[index].name);
  return names;
}

/// Returns a name with and without the prefix that only some folders have.
std::vector<std::string> spellings(const std::string& name, const std::string& prefix) {
  return {name, prefix + name, name.starts_with(prefix) ? name.substr(prefix.size()) : name};
}

std::vector<std::string> trained_modules_in(const checkpoint::PeftFolder& folder, const AdapterModules& modules,
                                            const std::string& prefix) {
  std::vector<std::string> names = folder.trained_modules();
  for (std::string& name : names)
    for (const std::string& one : spellings(name, prefix))
      if (modules.has(one)) {
        name = one;
        break;
      }
  return names;
}

void check_layer(const std::string& name, const checkpoint::PeftLayer& layer, int64_t out, int64_t in) {
  require(layer.a.size(-1) == in && layer.b.size(-2) == out, kTable, "the adapter of ", printable(name),
          " must be for a layer [", out, ", ", in, "]: got one for [", layer.b.size(-2), ", ", layer.a.size(-1),
          "]; it belongs to another base");
}

/// The adapters of the matrices of single experts that are one stack here, by matrix and expert.
using Apart = std::map<size_t, std::map<int64_t, const checkpoint::PeftLayer*>>;

/// Joins the adapters of single experts.
FolderAdapter joined(size_t index, const LinearModule& module, const Apart& apart, bool root_scale) {
  FolderAdapter stack{index, {}, 0};
  int64_t rank = 0;
  for (const auto& [matrix, layers] : apart) {
    const std::string shown = module.apart[matrix].of(layers.begin()->first);
    require(static_cast<int64_t>(layers.size()) == module.experts, kTable,
            "adapters must be of all experts of a layer, or of none: got those of ", layers.size(), " of ",
            module.experts, ", such as ", shown, "; merge the adapters into the model with peft");
    for (const auto& [expert, layer] : layers)
      require(layer->rank == layers.begin()->second->rank, kTable,
              "the adapters of all experts of a layer must have one rank: got ", layers.begin()->second->rank, " for ",
              shown, " and ", layer->rank, " for ", module.apart[matrix].of(expert));
    rank += layers.begin()->second->rank;
  }
  const checkpoint::PeftLayer& first = *apart.begin()->second.begin()->second;
  stack.layer.rank = rank;
  stack.layer.scale = first.scale;
  stack.alpha = first.scale * (root_scale ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank));
  stack.layer.a = at::zeros(module.shape_of_a(rank), first.a.options());
  stack.layer.b = at::zeros(module.shape_of_b(rank), first.b.options());
  int64_t at = 0;
  for (const auto& [matrix, layers] : apart) {
    const int64_t own = layers.begin()->second->rank;
    for (const auto& [expert, layer] : layers) {
      at::Tensor b = stack.layer.b[expert].narrow(0, module.apart[matrix].first, module.apart[matrix].count);
      stack.layer.a[expert].narrow(0, at, own).copy_(layer->a);
      b.narrow(1, at, own).copy_(layer->scale == first.scale ? layer->b : layer->b * (layer->scale / first.scale));
    }
    at += own;
  }
  return stack;
}

std::vector<FolderAdapter> adapters_in(const checkpoint::PeftFolder& folder, const AdapterModules& modules,
                                       const models::ModelShape& shape) {
  if (folder.is_of_pipeline()) return adapters_of_part(folder, modules, shape);
  const std::string& prefix = shape.architecture->hugging_face.prefix;
  struct Place {
    size_t module, matrix;
    int64_t expert;
  };
  std::vector<std::string> known;
  std::map<std::string, Place> apart;
  for (size_t i = 0; i < modules.linear().size(); ++i) {
    const LinearModule& module = modules.linear()[i];
    known.push_back(module.name);
    for (size_t matrix = 0; matrix < module.apart.size(); ++matrix)
      for (int64_t expert = 0; expert < module.experts; ++expert)
        apart[module.apart[matrix].of(expert)] = {i, matrix, expert};
  }
  std::vector<FolderAdapter> adapters;
  std::map<size_t, Apart> stacks;
  for (const auto& [name, layer] : folder.layers()) {
    // A folder of the base alone, without its head, has names without the prefix.
    const std::vector<std::string> names = spellings(name, prefix);
    const auto one = std::find_if(names.begin(), names.end(), [&](const auto& of) { return apart.contains(of); });
    if (one != names.end()) {
      const Place place = apart.at(*one);
      const LinearModule& module = modules.linear()[place.module];
      require(!layer.magnitude.defined(), kTable, "adapters of experts must have no magnitudes: got use_dora for ",
              printable(name), "; merge the adapters into the model with peft");
      check_layer(name, layer, module.apart[place.matrix].count, module.in);
      stacks[place.module][place.matrix][place.expert] = &layer;
      continue;
    }
    const auto found = std::find_first_of(known.begin(), known.end(), names.begin(), names.end());
    require(found != known.end(), kTable, "adapters must be of linear layers of the model: got ", printable(name),
            did_you_mean(name, known), "; they belong to another base");
    const auto index = static_cast<size_t>(found - known.begin());
    const LinearModule& module = modules.linear()[index];
    check_layer(name, layer, module.part.count, module.in);
    require((layer.a.dim() == 3 ? layer.a.size(0) : 0) == module.experts, kTable, "the adapter of ", printable(name),
            " must be for ", module.experts, " experts: got one for ", layer.a.dim() == 3 ? layer.a.size(0) : 0,
            "; it belongs to another base");
    adapters.push_back({index, layer, folder.config().alpha_of(name)});
  }
  for (const auto& [index, of_experts] : stacks) {
    const LinearModule& module = modules.linear()[index];
    require(std::none_of(adapters.begin(), adapters.end(), [&](const auto& one) { return one.module == index; }),
            kTable, module.name, " must have one adapter: got one of the stack, and others of single experts");
    adapters.push_back(joined(index, module, of_experts, folder.config().root_scale));
  }
  return adapters;
}

LowRankKeys keys_of_folder(const checkpoint::PeftFolder& folder, const models::ModelShape& shape) {
  const AdapterModules modules(shape);
  const std::string& prefix = shape.architecture->hugging_face.prefix;
  const checkpoint::PeftConfig& config = folder.config();
  LowRankKeys keys{.kind = config.magnitudes ? "dora" : "lora",
                   .scale = config.root_scale ? "root" : "plain",
                   .rank = config.rank,
                   .alpha = config.alpha,
                   .dropout = config.dropout,
                   .targets = {},
                   .trained = trained_modules_in(folder, modules, prefix)};
  std::vector<size_t> indices;
  for (const FolderAdapter& one : adapters_in(folder, modules, shape)) {
    const LinearModule& module = modules.linear()[one.module];
    indices.push_back(one.module);
    keys.targets.push_back(module.name);
    if (one.layer.rank != keys.rank) keys.ranks.push_back(concat(module.name, "=", one.layer.rank));
    if (one.alpha != keys.alpha) keys.alphas.push_back(concat(module.name, "=", print_number(one.alpha)));
    if (module.is_stack()) keys.dropout = 0;
  }
  // The short names of the config say more than a list of all modules.
  std::vector<size_t> sorted = indices;
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::string> named = config.targets;
  named.insert(named.end(), config.parameters.begin(), config.parameters.end());
  try {
    if (!named.empty() && modules.selected("target_modules", named, {}) == sorted) keys.targets = named;
  } catch (const Error&) {  // they name modules that have no adapters, or matrices of single experts
    if (!indices.empty()) keys.targets = modules.short_names(indices);
  }
  return keys;
}

/// Returns true if `shape` is that of a part of the model that a run trained.
bool is_of_larger_model(const AdapterSource& source, const models::ModelShape& shape) {
  return !source.peft && source.keys.text_encoder && models::text_encoder_blocks(shape) == 0;
}

/// Returns the tensor of the folder with that name, with or without the prefix; undefined = it has none.
at::Tensor trained_in(const checkpoint::PeftFolder& folder, const std::string& name, const std::string& prefix) {
  for (const std::string& one : spellings(name, prefix))
    if (const auto found = folder.trained().find(one); found != folder.trained().end()) return found->second;
  return {};
}

}  // namespace

AdapterSource open_adapters(const std::string& folder) {
  std::error_code ignored;
  require(std::filesystem::exists(folder, ignored), kTable, "adapters must be in a folder: there is none at ", folder,
          "; name a folder of peft, a run, or a .safetensors file of adapters for pictures");
  AdapterSource source{.path = folder};
  if (is_run(folder)) {
    source.checkpoint = newest_checkpoint(folder, checkpoint::step_folders(RunFolder(folder).checkpoints()));
    source.keys = stored_keys(folder);
    require(source.keys.kind != "none", kTable, "the run ", folder,
            " must have adapters: got one without [adapter]; name it as the model");
    require(source.keys.is_low_rank(), kTable, "the run ", folder,
            " must have low-rank adapters: got adapter.kind = \"", source.keys.kind,
            "\"; `colossal draw --control` reads a ControlNet, and --ip an IP-adapter");
    return source;
  }
  const std::string file = checkpoint::is_peft_folder(folder) ? "" : checkpoint::find_pipeline_file(folder);
  require(checkpoint::is_peft_folder(folder) || !file.empty(), kTable, folder,
          " must have adapters: got neither a folder of peft (with adapter_config.json) nor a run folder, nor one "
          ".safetensors file");
  source.peft = std::make_shared<const checkpoint::PeftFolder>(file.empty() ? checkpoint::PeftFolder(folder)
                                                                            : checkpoint::read_pipeline_file(file));
  return source;
}

std::string base_checksum_of(const AdapterSource& source) {
  if (source.checkpoint.empty()) return "";
  return checkpoint::read_progress(source.checkpoint).value(kBaseChecksum, std::string());
}

LowRankKeys keys_of(const AdapterSource& source, const models::ModelShape& shape) {
  LowRankKeys keys = source.peft ? keys_of_folder(*source.peft, shape) : source.keys;
  keys.base = LowRankKeys{}.base;  // it belongs to the training, not to the adapters
  if (!is_of_larger_model(source, shape)) return keys;
  const AdapterModules whole(shape_in_training(source, shape)), own(shape);
  std::vector<std::string> targets;
  for (const size_t index : whole.selected("adapter.targets", keys.targets, {}))
    if (const auto found = index_in_part(source, whole.linear()[index].name, own, shape))
      targets.push_back(own.linear()[*found].name);
  keys.targets = std::move(targets);
  keys.text_encoder = false;
  return keys;
}

bool has_text_adapters(const AdapterSource& source, int64_t encoder) {
  if (source.peft) return has_text_adapters(*source.peft, encoder);
  if (!source.keys.text_encoder || encoder <= 0) return source.keys.text_encoder;
  return encoder == 1 &&
         resolve_model(stored_config(source.path), built_in()).shape.part<models::OwnTextEncoder>().second;
}

AdapterSource text_adapters_of(AdapterSource source, int64_t encoder) {
  if (source.peft)
    source.peft = std::make_shared<const checkpoint::PeftFolder>(adapters_of_encoder(*source.peft, encoder));
  source.text_encoder = encoder;
  return source;
}

models::ModelShape shape_in_training(const AdapterSource& source, const models::ModelShape& shape) {
  return is_of_larger_model(source, shape) ? resolve_model(stored_config(source.path), built_in()).shape : shape;
}

std::optional<size_t> index_in_part(const AdapterSource& source, const std::string& name, const AdapterModules& modules,
                                    const models::ModelShape& shape) {
  const bool is_text = shape.part<models::TextEncoderSizes>().features > 0;
  const std::string begin = is_text ? models::names_of_text_encoder(source.text_encoder) : "";
  for (size_t i = 0; i < modules.linear().size(); ++i)
    if (name == begin + modules.linear()[i].name) return i;
  return {};
}

models::ModelShape shape_with(const AdapterSource& source, models::ModelShape shape) {
  const std::vector<std::string> trained = source.peft ? source.peft->trained_modules() : source.keys.trained;
  const bool scores = std::any_of(trained.begin(), trained.end(),
                                  [](const std::string& module) { return names_module(kScoreModule, module); });
  if (scores && shape.task().continues()) shape = models::with_outputs(std::move(shape), 1);
  if (!source.peft || !shape.architecture->hugging_face.names) return shape;
  const std::string& prefix = shape.architecture->hugging_face.prefix;
  for (const nn::ExternalCopy& copy : models::copies_in_folder(shape)) {
    const at::Tensor first = trained_in(*source.peft, copy.original, prefix),
                     second = trained_in(*source.peft, copy.name, prefix);
    const bool breaks = second.defined() || (first.defined() && !source.peft->config().keeps_ties);
    if (shape.tied && breaks) shape.tied = false;
  }
  return shape;
}

std::vector<std::string> trained_modules_of(const checkpoint::PeftFolder& folder, const models::ModelShape& shape) {
  return trained_modules_in(folder, AdapterModules(shape), shape.architecture->hugging_face.prefix);
}

std::vector<FolderAdapter> adapters_of(const checkpoint::PeftFolder& folder, const models::ModelShape& shape) {
  return adapters_in(folder, AdapterModules(shape), shape);
}

LowRankKeys with_source(const Config& config, const LowRankKeys& keys, const models::ModelShape& shape) {
  if (keys.from.empty()) return keys;
  const AdapterSource source = open_adapters(keys.from);
  const bool has_text = has_text_adapters(source);
  require(has_text == keys.text_encoder, kTable, "adapter.text_encoder must be ", has_text ? "true" : "false",
          ", because the adapters of adapter.from = \"", keys.from, "\" are ",
          has_text ? "also of the text encoder" : "of the model alone",
          "; set --adapter.text_encoder=", has_text ? "true" : "false");
  const LowRankKeys found = keys_of(source, shape);
  const auto is_given = [&](const char* key) { return config.tables.values().contains(concat(kTable, ".", key)); };
  const auto check = [&](const char* key, bool is_same, const auto& got, const auto& want) {
    require(is_same || !is_given(key), kTable, "adapter.", key, " must be that of adapter.from = \"", keys.from, "\", ",
            want, ": got ", got, "; leave it out");
  };
  const AdapterModules modules(shape);
  const auto targets = [&](const LowRankKeys& of) { return modules.selected("adapter.targets", of.targets, {}); };
  check("kind", keys.kind == found.kind, keys.kind, found.kind);
  check("scale", keys.scale == found.scale, keys.scale, found.scale);
  check("rank", keys.rank == found.rank, keys.rank, found.rank);
  check("alpha", keys.alpha == found.alpha, keys.alpha, found.alpha);
  check("ranks", keys.ranks == found.ranks, join(keys.ranks), join(found.ranks));
  check("alphas", keys.alphas == found.alphas, join(keys.alphas), join(found.alphas));
  check("targets", !is_given("targets") || targets(keys) == targets(found), join(keys.targets),
        join(names_of(modules, targets(found))));
  const auto trained = [&](const LowRankKeys& of) { return modules.parameters_of("adapter.trained", of.trained); };
  check("trained", !is_given("trained") || trained(keys) == trained(found), join(keys.trained), join(found.trained));
  LowRankKeys completed = keys;
  completed.kind = found.kind, completed.scale = found.scale;
  completed.rank = found.rank, completed.alpha = found.alpha;
  completed.ranks = found.ranks, completed.alphas = found.alphas;
  completed.targets = found.targets, completed.trained = found.trained;
  if (!is_given("dropout")) completed.dropout = found.dropout;
  return completed;
}

}  // namespace colossal::run
