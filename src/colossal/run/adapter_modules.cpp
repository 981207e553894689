#include "colossal/run/adapter_modules.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/suggest.h"
#include "colossal/checkpoint/hugging_face/external_part.h"
#include "colossal/models/clip_text_within.h"
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

bool draws(const models::ModelShape& shape) { return shape.part<models::DenoiserSizes>().channels > 0; }

/// A model that is declared without memory, and the weights whose products adapters may wrap.
struct Declared {
  explicit Declared(const models::ModelShape& shape)
      : parameters({},
                   {.without_memory = true,
                    .products = {[this, has_others = draws(shape)](auto product, const nn::Parameter& weight, auto&) {
                      const bool is_inside = weight.hidden_matrix || weight.spec.shape.size() == 4;
                      if (!weight.stack && (weight.between_blocks ? has_others : is_inside)) wrapped.push_back(&weight);
                      if (weight.stack && weight.stack_index == 0) stacks.push_back(weight.stack);
                      return product;
                    }}}) {
    nn::SerialLayers layers(parameters);
    models::make_model(shape, layers);
  }
  std::vector<const nn::Parameter*> wrapped, stacks;
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

/// Where the folder has rows of our parameters: tensor, parameter, first row and number of rows, and which rows of the
/// tensor they are.
struct Rows {
  std::string tensor;
  const nn::Parameter* parameter;
  int64_t first, count;
  int64_t their_first = 0, stride = 1;
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
                    part.box.size.empty() ? 1 : part.box.size[0], part.first, part.stride});
  return rows;
}

/// Adds rows to a module, those of its weight that follow it.
void add_rows(LinearModule& module, const Rows& rows) {
  module.part.count += rows.count;
  for (int64_t i = 0; i < rows.count; ++i) module.order.push_back(rows.their_first + i * rows.stride);
}

/// Leaves out the order of rows that is the folder's.
void simplify_order(LinearModule& module) {
  for (size_t i = 0; i < module.order.size(); ++i)
    if (module.order[i] != static_cast<int64_t>(i)) return;
  module.order.clear();
}

/// Returns true if an adapter of a weight that no product wraps can be merged: of a linear layer or a convolution of a
/// model that draws. The others are tables and vectors.
bool is_merged_layer(const Rows& rows) {
  const size_t dims = rows.parameter->spec.shape.size();
  return (dims == 2 || dims == 4) && rows.tensor.ends_with(".weight") && !rows.parameter->looked_up &&
         !rows.tensor.ends_with("embedding_table.weight");
}

LinearModule module_of_rows(const Rows& rows) {
  const std::vector<int64_t>& shape = rows.parameter->spec.shape;
  const std::string name = module_of(rows.tensor);
  LinearModule module{.name = name,
                      .weight = rows.parameter->name,
                      .part = {.name = last_name(name), .first = rows.first, .count = 0},
                      .in = shape[1],
                      .kernel = {shape.begin() + 2, shape.end()},
                      .between_blocks = rows.parameter->between_blocks};
  add_rows(module, rows);
  return module;
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
  std::vector<int64_t> sizes = is_stack() ? std::vector<int64_t>{experts, rank, in} : std::vector<int64_t>{rank, in};
  sizes.insert(sizes.end(), kernel.begin(), kernel.end());
  return sizes;
}

std::vector<int64_t> LinearModule::shape_of_b(int64_t rank) const {
  return is_stack() ? std::vector<int64_t>{experts, part.count, rank} : std::vector<int64_t>{part.count, rank};
}

at::Tensor LinearModule::ours(const at::Tensor& outputs) const {
  return order.empty() || !outputs.defined() ? outputs : outputs.index_select(0, at::tensor(order, at::kLong));
}

at::Tensor LinearModule::theirs(const at::Tensor& outputs) const {
  if (order.empty() || !outputs.defined()) return outputs;
  return at::empty_like(outputs).index_copy_(0, at::tensor(order, at::kLong), outputs);
}

namespace {

/// Returns true if a tensor of the folder has rows of several of our matrices, of which it would be one module.
bool joins_matrices(const std::vector<nn::ExternalName>& names) {
  std::map<std::string, std::string> owners;  // first parameter with rows of a tensor, by the tensor
  return std::any_of(names.begin(), names.end(), [&](const nn::ExternalName& name) {
    return name.ours.ends_with(".weight") &&
           std::any_of(name.parts.begin(), name.parts.end(), [&](const nn::ExternalRows& part) {
             return owners.emplace(part.name, name.ours).first->second != name.ours;
           });
  });
}

}  // namespace

std::vector<nn::ExternalName> folder_names(const models::ModelShape& shape) {
  const bool is_drawn = !shape.architecture->hugging_face.names;
  const auto& names = is_drawn ? shape.architecture->diffusers.names : shape.architecture->hugging_face.names;
  if (!names) return {};
  try {
    std::vector<nn::ExternalName> all = names(shape);
    if (joins_matrices(all)) all.clear();
    return all;
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
  for (const nn::Parameter* const weight : declared.wrapped) {
    const size_t first = linear_.size();
    for (const Rows& one : rows) {
      if (one.parameter != weight) continue;
      const std::string module = module_of(one.tensor);
      if (linear_.size() > first && linear_.back().name == module) {
        add_rows(linear_.back(), one);
        continue;
      }
      for (size_t i = first; i < linear_.size(); ++i)
        require(linear_[i].name != module, "adapter", "the rows of ", module, " must be neighbours in ", weight->name,
                " to have an adapter: got rows of ", linear_.back().name, " between them; name its targets without it");
      linear_.push_back(module_of_rows(one));
    }
    for (size_t i = first; i < linear_.size(); ++i) simplify_order(linear_[i]);
    if (linear_.size() == first + 1) linear_.back().part.name.clear();
  }
  for (const nn::Parameter* stack : declared.stacks) linear_.push_back(module_of_stack(*stack, names));
  if (!draws(shape)) return;
  const std::set<const nn::Parameter*> wrapped(declared.wrapped.begin(), declared.wrapped.end());
  const size_t first = linear_.size();
  for (const Rows& one : rows) {
    const bool is_text = models::text_encoder_of_name(one.tensor) >= 0;  // embeddings and the projection stay
    if (is_text || wrapped.contains(one.parameter) || !is_merged_layer(one)) continue;
    if (linear_.size() > first && linear_.back().name == module_of(one.tensor)) {
      add_rows(linear_.back(), one);
      continue;
    }
    LinearModule module = module_of_rows(one);
    module.part.name.clear();
    module.between_blocks = module.only_merged = true;
    linear_.push_back(std::move(module));
  }
  for (size_t i = first; i < linear_.size(); ++i) simplify_order(linear_[i]);
}

std::vector<size_t> AdapterModules::selected(const char* key, const std::vector<std::string>& patterns,
                                             const std::set<std::string>& except) const {
  require(!linear_.empty() || patterns.empty(), "adapter",
          "a model with adapters must have linear layers that they can change: got none in the model of ", key,
          ", such as one that folds proteins; leave the table [adapter] out");
  std::set<size_t> found;
  for (const std::string& pattern : patterns) {
    bool any = false;
    for (size_t i = 0; i < linear_.size(); ++i) {
      const bool is_excepted = except.contains(linear_[i].weight);
      const bool is_other = linear_[i].is_stack() || linear_[i].is_convolution() || linear_[i].between_blocks;
      if (pattern == kAllLinear ? is_excepted || is_other : !names_module(pattern, linear_[i].name)) continue;
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
