#include "colossal/checkpoint/peft/folder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <string_view>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/checkpoint/safetensors.h"

namespace colossal::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char *kAdapter = "peft", *kConfigName = "adapter_config.json", *kTensors = "adapter_model.safetensors",
                     *kPickle = "adapter_model.bin";
constexpr std::string_view kBefore = "base_model.model.", kOfA = ".lora_A.weight", kOfB = ".lora_B.weight",
                           kOfMagnitude = ".lora_magnitude_vector", kSaved = ".modules_to_save.",
                           kInner = ".base_layer", kExperts = "experts";
constexpr const char* kHeads[] = {"score", "classifier"};

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::string without_end(const std::string& name, std::string_view end) {
  return name.substr(0, name.size() - end.size());
}

/// Returns the parameters of a module of experts that `has` accepts, in the order of their wrappers, the outermost
/// first.
std::vector<std::string> wrapped_parameters(const std::string& module,
                                            const std::function<bool(const std::string& parameter)>& has) {
  std::vector<std::string> names;
  for (const char* parameter : kExpertParameters)
    if (std::string name = concat(module, ".", parameter); has(name)) names.insert(names.begin(), std::move(name));
  return names;
}

/// Returns the name of the wrapper at that depth around a module.
std::string wrapper_of(std::string module, size_t depth) {
  for (size_t i = 0; i < depth; ++i) module += kInner;
  return module;
}

/// Returns true if `saved`, of modules_to_save, names the module of a tensor, by peft's rule: it ends the name, or a
/// name around it, also within a word ("norm" is the end of "input_layernorm").
bool is_saved_by(const std::string& saved, const std::string& tensor) {
  return tensor.find(saved + ".") != std::string::npos;
}

}  // namespace

bool is_peft_folder(const std::string& folder) { return is_there(fs::path(folder) / kConfigName); }

PeftFolder::PeftFolder(const std::string& folder) {
  const std::string file = (fs::path(folder) / kTensors).string();
  require(is_peft_folder(folder), kAdapter, folder, " must be a folder of peft: got one without ", kConfigName);
  config_ = PeftConfig::read((fs::path(folder) / kConfigName).string());
  require(is_there(file) || !is_there(fs::path(folder) / kPickle), kAdapter, folder, " must have ", kTensors, ": got ",
          kPickle,
          ", a pickle, whose code would run when it is read; load it in Python and save it with "
          "model.save_pretrained(FOLDER), which writes safetensors");
  require(is_there(file), kAdapter, folder, " must have ", kTensors, ": got none");
  const SafetensorsReader reader(file);
  for (const auto& [name, entry] : reader.entries()) {
    const bool is_empty = std::any_of(entry.shape.begin(), entry.shape.end(), [](int64_t size) { return size == 0; });
    require(!is_empty, kAdapter, file, ": ", printable(name),
            " must have values: got an empty tensor, as a sharded save leaves it; gather the parameters before saving "
            "(DeepSpeed ZeRO 3: stage3_gather_16bit_weights_on_model_save)");
    require(name.starts_with(kBefore), kAdapter, file, ": names of tensors must start with ", kBefore, ": got ",
            printable(name));
    add(name.substr(kBefore.size()), reader.tensor(name), file);
  }
  name_stacks(file);
  check(file);
}

void PeftFolder::add(const std::string& name, const at::Tensor& value, const std::string& file) {
  if (name.ends_with(kOfA)) {
    layers_[without_end(name, kOfA)].a = value;
    return;
  }
  if (name.ends_with(kOfB)) {
    layers_[without_end(name, kOfB)].b = value;
    return;
  }
  for (const std::string& end : {std::string(kOfMagnitude), concat(kOfMagnitude, ".weight")})
    if (name.ends_with(end)) {
      at::Tensor& magnitude = layers_[without_end(name, end)].magnitude;
      require(!magnitude.defined(), kAdapter, file, ": ", printable(name),
              " must be there once: got two spellings of it");
      magnitude = value.flatten();
      return;
    }
  for (const std::string_view other : {".lora_embedding_A", ".lora_embedding_B", ".trainable_tokens_delta"})
    require(!name.ends_with(other), kAdapter, file,
            " must have adapters of linear layers: got one of an embedding or of tokens, ", printable(name),
            "; merge the adapters into the model with peft");
  std::string plain = name;
  if (const size_t at = plain.find(kSaved); at != std::string::npos) plain.replace(at, kSaved.size(), ".");
  require(std::any_of(config_.trained.begin(), config_.trained.end(),
                      [&](const std::string& saved) { return is_saved_by(saved, plain); }),
          kAdapter, file, " must have tensors of adapters and of modules_to_save alone: got ", printable(name),
          "; it would have no effect");
  require(trained_.emplace(plain, value).second, kAdapter, file, ": ", printable(plain),
          " must be there once: got two");
}

void PeftFolder::name_stacks(const std::string& file) {
  if (config_.parameters.empty()) return;
  std::map<std::string, size_t> wrappers;  // how many each module has so far
  for (const auto& [name, layer] : layers_) {
    std::string module = name;
    while (module.ends_with(kInner)) module = without_end(module, kInner);
    // target_parameters may be last names alone ("down_proj"), which linear layers have, too
    if (module == kExperts || module.ends_with(concat(".", kExperts))) ++wrappers[module];
  }
  for (const auto& [module, count] : wrappers) {
    const std::vector<std::string> names =
        wrapped_parameters(module, [&](const std::string& name) { return config_.targets_parameter(name); });
    if (names.empty()) continue;
    require(names.size() == count, kAdapter, file, " must have an adapter of each of target_parameters: got ", count,
            " of ", printable(module), " for ", join(names));
    for (size_t i = 0; i < names.size(); ++i) {
      const auto node = layers_.extract(wrapper_of(module, i));
      require(!node.empty(), kAdapter, file, " must have the adapter ", printable(wrapper_of(module, i)), " of ",
              names[i], ": got none");
      PeftLayer layer = node.mapped();
      const int64_t rank = config_.rank_of(names[i]);
      require(layer.a.defined() && layer.b.defined() && layer.a.dim() == 2 && layer.b.dim() == 2 &&
                  layer.a.size(0) == layer.b.size(1) && layer.a.size(0) % rank == 0,
              kAdapter, file, ": A of ", names[i], " must be [r E, in], and B [out, r E], with the rank ", rank, " of ",
              kConfigName, ": got ", layer.a.defined() ? layer.a.sizes() : at::IntArrayRef(), " and ",
              layer.b.defined() ? layer.b.sizes() : at::IntArrayRef());
      const int64_t experts = layer.a.size(0) / rank;
      layer.a = layer.a.reshape({experts, rank, layer.a.size(1)});
      layer.b = layer.b.reshape({layer.b.size(0), rank, experts}).permute({2, 0, 1}).contiguous();
      layers_[names[i]] = layer;
    }
  }
}

void PeftFolder::check(const std::string& file) {
  require(!layers_.empty() || !trained_.empty(), kAdapter, file, " must have tensors: got none");
  for (auto& [module, layer] : layers_) {
    const std::string shown = printable(module);
    require(layer.a.defined() && layer.b.defined(), kAdapter, file, ": ", shown, " must have lora_A and lora_B: got ",
            layer.a.defined()   ? "A alone"
            : layer.b.defined() ? "B alone"
                                : "neither");
    require(layer.a.dim() >= 2 && layer.a.dim() == layer.b.dim() && layer.a.size(-2) == layer.b.size(-1) &&
                (layer.a.dim() == 2 || config_.targets_parameter(module)),
            kAdapter, file, ": A of ", shown, " must be [r, in], and B [out, r]: got ", layer.a.sizes(), " and ",
            layer.b.sizes());
    layer.rank = layer.a.size(-2);
    require(layer.rank == config_.rank_of(module), kAdapter, file, ": A of ", shown, " must have the rank ",
            config_.rank_of(module), " of ", kConfigName, ": got ", layer.rank);
    require(layer.magnitude.defined() == config_.magnitudes, kAdapter, file, ": ", shown,
            config_.magnitudes ? " must have lora_magnitude_vector with use_dora: got none"
                               : " must have no lora_magnitude_vector without use_dora: got one");
    require(!layer.magnitude.defined() || layer.magnitude.size(0) == layer.b.size(0), kAdapter, file,
            ": lora_magnitude_vector of ", shown, " must have a value for each row of B: got ", layer.magnitude.sizes(),
            " and ", layer.b.sizes());
    layer.scale = config_.scale_of(module);
  }
  for (const std::string& target : config_.targets)
    require(std::any_of(layers_.begin(), layers_.end(),
                        [&](const auto& one) { return one.first == target || one.first.ends_with("." + target); }),
            kAdapter, file, " must have the adapters of each of target_modules: got none of ", printable(target));
  for (const std::string& target : config_.parameters)
    require(std::any_of(layers_.begin(), layers_.end(),
                        [&](const auto& one) { return one.first == target || one.first.ends_with("." + target); }),
            kAdapter, file, " must have the adapters of each of target_parameters: got none of ", printable(target));
  const auto has = [&](const std::string& saved) {
    return std::any_of(trained_.begin(), trained_.end(),
                       [&](const auto& one) { return is_saved_by(saved, one.first); });
  };
  // peft adds the usual names of heads to those of a classifier, and a model has one of them.
  const bool has_head = config_.task == "SEQ_CLS" && (has(kHeads[0]) || has(kHeads[1]));
  for (const std::string& saved : config_.trained)
    require(has(saved) || (has_head && (saved == kHeads[0] || saved == kHeads[1])), kAdapter, file,
            " must have the tensors of each of modules_to_save: got none of ", printable(saved));
}

std::vector<std::string> PeftFolder::trained_modules() const {
  std::set<std::string> modules;
  for (const auto& [name, value] : trained_) modules.insert(name.substr(0, name.rfind('.')));
  return {modules.begin(), modules.end()};
}

void PeftFolder::write(const std::string& folder) const {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, layer] : layers_) {
    std::string module = name;
    if (layer.a.defined() && layer.a.dim() == 3) {  // a stack of experts
      const std::string parent = name.substr(0, name.rfind('.'));
      const std::vector<std::string> wrapped =
          wrapped_parameters(parent, [&](const std::string& one) { return layers_.contains(one); });
      module =
          wrapper_of(parent, static_cast<size_t>(std::find(wrapped.begin(), wrapped.end(), name) - wrapped.begin()));
      tensors[concat(kBefore, module, kOfA)] = layer.a.flatten(0, 1).contiguous();
      tensors[concat(kBefore, module, kOfB)] = layer.b.permute({1, 2, 0}).flatten(1, 2).contiguous();
      continue;
    }
    tensors[concat(kBefore, module, kOfA)] = layer.a;
    tensors[concat(kBefore, module, kOfB)] = layer.b;
    if (layer.magnitude.defined()) tensors[concat(kBefore, module, kOfMagnitude)] = layer.magnitude;
  }
  for (const auto& [name, value] : trained_) tensors[concat(kBefore, name)] = value;
  write_safetensors((fs::path(folder) / kTensors).string(), tensors, {{"format", "pt"}});
  write_file((fs::path(folder) / kConfigName).string(), config_.to_json().dump(2) + "\n");
}

}  // namespace colossal::checkpoint
