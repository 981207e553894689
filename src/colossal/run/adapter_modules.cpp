#include "colossal/run/adapter_modules.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/suggest.h"
#include "colossal/checkpoint/hugging_face/external_part.h"
#include "colossal/models/folder_names.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/run/module_names.h"

namespace colossal::run {
namespace {

constexpr const char* kAllLinear = "all-linear";

/// Returns the module of a tensor: its name without ".weight" or ".bias".
std::string module_of(const std::string& tensor) {
  for (const std::string ending : {".weight", ".bias"})
    if (tensor.ends_with(ending)) return tensor.substr(0, tensor.size() - ending.size());
  return tensor;
}

std::string last_name(const std::string& module) { return module.substr(module.rfind('.') + 1); }

/// Returns the last name of a module, of experts the last two.
std::string short_name(const LinearModule& module) {
  const size_t last = module.name.rfind('.');
  return module.is_stack() ? last_name(module.name.substr(0, last)) + module.name.substr(last) : last_name(module.name);
}

/// A model that is declared without memory, and the weights whose products adapters may wrap.
struct Declared {
  explicit Declared(const models::ModelShape& shape)
      : parameters({}, {.without_memory = true,
                        .products = {[this](auto product, const nn::Parameter& weight, nn::Parameters&) {
                          if (weight.hidden_matrix && !weight.stack) wrapped.push_back(weight.name);
                          if (weight.stack && weight.stack_index == 0) stacks.push_back(weight.stack);
                          return product;
                        }}}) {
    nn::SerialLayers layers(parameters);
    models::make_model(shape, layers);
  }
  std::vector<std::string> wrapped;
  std::vector<const nn::Parameter*> stacks;
  nn::Parameters parameters;
};

/// Returns the module of a stack of experts.
LinearModule module_of_stack(const nn::Parameter& stack, const std::vector<nn::ExternalName>& names) {
  const std::vector<int64_t>& shape = stack.spec.shape;
  LinearModule module{.name = module_of(stack.name),
                      .weight = stack.name,
                      .part = {.name = "", .first = 0, .count = shape[1]},
                      .in = shape[2],
                      .experts = shape[0]};
  for (const nn::ExternalName& name : names) {
    if (name.ours != stack.name) continue;
    if (!name.joint.empty()) module.name = module_of(name.joint);
    const std::vector<tensor::Segment>& segments = stack.spec.splits[1].segments;
    int64_t first = 0;
    for (size_t i = 0; i < name.parts.size(); ++i) {
      const int64_t count = name.parts.size() == 1 ? shape[1] : segments.at(i).size;
      module.apart.push_back({module_of(name.parts[i].name), first, count});
      first += count;
    }
  }
  return module;
}

/// Where the folder has rows of our parameters: tensor, parameter, first row and number of rows.
struct Rows {
  std::string tensor;
  const nn::Parameter* parameter;
  int64_t first, count;
};

std::vector<Rows> rows_of(const std::vector<nn::ExternalName>& names, const nn::Parameters& parameters) {
  std::vector<Rows> rows;
  if (names.empty()) {
    for (const nn::Parameter& p : parameters.declared())
      rows.push_back({p.name, &p, 0, p.spec.shape.empty() ? 1 : p.spec.shape[0]});
    return rows;
  }
  for (const checkpoint::ExternalPart& part : checkpoint::external_parts(parameters, names))
    rows.push_back({part.name, part.parameter, part.box.start.empty() ? 0 : part.box.start[0],
                    part.box.size.empty() ? 1 : part.box.size[0]});
  return rows;
}

[[noreturn]] void refuse_unknown(const char* key, const std::string& pattern, const std::set<std::string>& known) {
  const std::vector<std::string> names(known.begin(), known.end());
  throw Error("adapter", concat(key, " must name modules of the model: got ", pattern, did_you_mean(pattern, names),
                                "; there are ", join(names), ", also with the path before them or with * (",
                                names.empty() ? "" : "*." + names.front(), ")"));
}

}  // namespace

std::string ExpertMatrix::of(int64_t expert) const {
  std::string own = name;
  const size_t at = own.find("{}");
  return at == std::string::npos ? own : own.replace(at, 2, std::to_string(expert));
}

std::vector<int64_t> LinearModule::shape_of_a(int64_t rank) const {
  return is_stack() ? std::vector<int64_t>{experts, rank, in} : std::vector<int64_t>{rank, in};
}

std::vector<int64_t> LinearModule::shape_of_b(int64_t rank) const {
  return is_stack() ? std::vector<int64_t>{experts, part.count, rank} : std::vector<int64_t>{part.count, rank};
}

std::vector<nn::ExternalName> folder_names(const models::ModelShape& shape) {
  const auto& names = shape.architecture->hugging_face.names;
  if (!names) return {};
  try {
    return names(shape);
  } catch (const Error&) {  // such as a GPT-2 with experts
    if (shape.part<models::MixtureSizes>().experts == 0) throw;
    return {};
  }
}

AdapterModules::AdapterModules(const models::ModelShape& shape) {
  const Declared declared(shape);
  const std::vector<nn::ExternalName> names = folder_names(shape);
  const std::vector<Rows> rows = rows_of(names, declared.parameters);
  for (const Rows& one : rows) all_.push_back({module_of(one.tensor), one.parameter->name});
  if (!names.empty())
    for (const nn::ExternalCopy& copy : models::copies_in_folder(shape))
      tied_.emplace(module_of(copy.name), module_of(copy.original));
  for (const std::string& weight : declared.wrapped) {
    const size_t first = linear_.size();
    for (const Rows& one : rows) {
      if (one.parameter->name != weight) continue;
      const std::string module = module_of(one.tensor);
      if (linear_.size() > first && linear_.back().name == module) {
        linear_.back().part.count += one.count;
        continue;
      }
      for (size_t i = first; i < linear_.size(); ++i)
        require(linear_[i].name != module, "adapter", "the rows of ", module, " must be neighbours in ", weight,
                " to have an adapter: got rows of ", linear_.back().name, " between them; name its targets without it");
      linear_.push_back({module, weight, {last_name(module), one.first, one.count}, one.parameter->spec.shape[1]});
    }
    if (linear_.size() == first + 1) linear_.back().part.name.clear();
  }
  for (const nn::Parameter* stack : declared.stacks) linear_.push_back(module_of_stack(*stack, names));
}

std::vector<size_t> AdapterModules::selected(const char* key, const std::vector<std::string>& patterns,
                                             const std::set<std::string>& except) const {
  std::set<size_t> found;
  for (const std::string& pattern : patterns) {
    bool any = false;
    for (size_t i = 0; i < linear_.size(); ++i) {
      const bool is_excepted = except.contains(linear_[i].weight);
      if (pattern == kAllLinear ? is_excepted || linear_[i].is_stack() : !names_module(pattern, linear_[i].name))
        continue;
      require(!is_excepted, "adapter", linear_[i].name,
              " must have an adapter or be trained whole, not both: got it in ", key,
              " and in adapter.trained; leave it out of one");
      found.insert(i);
      any = true;
    }
    if (any) continue;
    std::set<std::string> known{kAllLinear};
    for (const LinearModule& module : linear_) {
      known.insert(short_name(module));
      if (module.is_stack()) known.insert("experts");
    }
    refuse_unknown(key, pattern, known);
  }
  return {found.begin(), found.end()};
}

std::vector<std::string> AdapterModules::short_names(const std::vector<size_t>& indices) const {
  std::set<std::string> names;
  std::vector<std::string> whole;
  for (const size_t index : indices) {
    names.insert(short_name(linear_[index]));
    whole.push_back(linear_[index].name);
  }
  std::vector<std::string> last(names.begin(), names.end());
  std::vector<size_t> sorted = indices;
  std::sort(sorted.begin(), sorted.end());
  return selected("adapter.targets", last, {}) == sorted ? last : whole;
}

bool AdapterModules::has(const std::string& module) const {
  return std::any_of(all_.begin(), all_.end(), [&](const Module& one) { return one.name == module; });
}

std::set<std::string> AdapterModules::parameters_of(const char* key, const std::vector<std::string>& patterns) const {
  const auto is_selected = [&](const std::string& module) {
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](const auto& pattern) { return names_module(pattern, module); });
  };
  for (const std::string& pattern : patterns) {
    if (std::any_of(all_.begin(), all_.end(), [&](const Module& one) { return names_module(pattern, one.name); }))
      continue;
    for (const auto& [copy, original] : tied_)
      require(!names_module(pattern, copy), "adapter", key, " must name weights of their own: got ", pattern, ", but ",
              copy, " is ", original, " in this model; name ", last_name(original), ", which trains both");
    std::set<std::string> known;
    for (const Module& module : all_) known.insert(last_name(module.name));
    refuse_unknown(key, pattern, known);
  }
  std::set<std::string> found;
  for (const Module& module : all_)
    if (is_selected(module.name)) found.insert(module.parameter);
  for (const Module& module : all_)
    require(!found.contains(module.parameter) || is_selected(module.name), "adapter", key,
            " must name all modules of a matrix: ", module.parameter, " also has ", module.name, "; add ",
            last_name(module.name));
  return found;
}

}  // namespace colossal::run
