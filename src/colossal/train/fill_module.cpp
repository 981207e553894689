#include "colossal/train/fill_module.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/checkpoint/mismatch.h"
#include "colossal/checkpoint/weight_source.h"
#include "colossal/comm/agreement.h"

namespace colossal::train {
namespace {

using PartsByName = std::map<std::string, std::vector<checkpoint::NamedTensor>>;  // parts of this rank

/// Returns the name in the source of the tensor `name` of the module; none = the source has no such tensor.
std::optional<std::string> name_in(const FirstValues& first, const std::string& name) {
  std::optional<std::string> found = first.weights->find(name, first.prefix);
  for (const auto& [alias, original] : first.aliases)
    if (!found && original == name) found = first.weights->find(alias, first.prefix);
  return found;
}

/// Returns the names in ModuleTensors::parameters that the weights may lack.
std::set<std::string> may_lack(const ModuleTensors& tensors, const FirstValues& first) {
  std::set<std::string> names;
  for (const std::string& name : first.missing) {
    const auto alias = first.aliases.find(name);
    const std::string& own = alias == first.aliases.end() ? name : alias->second;
    require(std::any_of(tensors.parameters.begin(), tensors.parameters.end(),
                        [&](const auto& p) { return p.first == own; }),
            "model", "missing must name parameters of the module: got ", name);
    names.insert(own);
  }
  return names;
}

void check_weights(const ModuleTensors& tensors, const FirstValues& first) {
  checkpoint::MismatchTable table;
  const std::set<std::string> lacking = may_lack(tensors, first);
  bool has_all = true;
  std::set<std::string> known(first.ignored.begin(), first.ignored.end());
  const auto entry_of = [&](const std::string& name) { return first.weights->entries().at(name); };
  for (const auto& [alias, original] : first.aliases)
    if (const auto name = first.weights->find(alias, first.prefix)) known.insert(*name);
  for (const auto* named : {&tensors.parameters, &tensors.buffers})
    for (const auto& [name, value] : *named) {
      const std::optional<std::string> found = name_in(first, name);
      if (found) known.insert(*found);
      const std::vector<int64_t> shape = value.sizes().vec();
      if (!found && named == &tensors.parameters && (value.is_meta() || !lacking.contains(name))) {
        table.add(name, checkpoint::describe(shape), "-");
        has_all = false;
      }
      if (!found) continue;
      const checkpoint::TensorEntry& entry = *entry_of(*found);
      if (entry.shape != shape || (value.is_floating_point() && !at::isFloatingType(entry.dtype)))
        table.add(name, checkpoint::describe(shape), checkpoint::describe(entry.dtype, entry.shape));
    }
  for (const auto& [name, entry] : first.weights->entries())
    if (!known.contains(name)) table.add(name, "-", checkpoint::describe(entry->dtype, entry->shape));
  std::string rule = "the weights must be those of this module" + checkpoint::wrapper_note(*first.weights);
  if (!has_all) rule += "; parameters that keep their values, and have memory, can be named in `missing`";
  table.require_empty("model", rule, std::numeric_limits<size_t>::max());
}

/// Returns the indices of ModuleTensors::parameters by name.
std::map<std::string, size_t> indices_of(const ModuleTensors& tensors) {
  std::map<std::string, size_t> indices;
  for (size_t i = 0; i < tensors.parameters.size(); ++i) indices[tensors.parameters[i].first] = i;
  return indices;
}

void check_submodules(const ModuleTensors& tensors, const FirstValues& first) {
  const std::map<std::string, size_t> indices = indices_of(tensors);
  std::set<std::string> listed;
  for (const Submodule& part : first.submodules) {
    size_t on_meta = 0;
    for (const std::string& name : part.parameters) {
      const auto found = indices.find(name);
      require(found != indices.end(), "model", "submodule ", part.name, " must list parameters of the module: got ",
              name);
      on_meta += tensors.parameters[found->second].second.is_meta();
      listed.insert(name);
    }
    require(on_meta == 0 || on_meta == part.parameters.size(), "model", "the parameters of submodule ", part.name,
            " must be on meta, all or none: got ", on_meta, " of ", part.parameters.size());
  }
  for (const auto& [name, value] : tensors.parameters)
    require(!value.is_meta() || listed.contains(name), "model", "every parameter on meta must get a value: no ",
            "submodule lists ", name);
}

/// Returns the submodules with parameters on meta in groups that share no parameter, each in order.
std::vector<std::vector<size_t>> groups_of(const ModuleTensors& tensors, const FirstValues& first) {
  const std::map<std::string, size_t> indices = indices_of(tensors);
  std::map<std::string, size_t> group_of;  // of a parameter
  std::vector<std::vector<size_t>> groups;
  for (size_t i = 0; i < first.submodules.size(); ++i) {
    const std::vector<std::string>& names = first.submodules[i].parameters;
    if (names.empty() || !tensors.parameters[indices.at(names.front())].second.is_meta()) continue;
    const size_t mine = groups.size();
    groups.push_back({i});
    for (const std::string& name : names) {
      const auto known = group_of.find(name);
      if (known != group_of.end() && known->second != mine) {
        const size_t other = known->second;
        groups[mine].insert(groups[mine].end(), groups[other].begin(), groups[other].end());
        groups[other].clear();
        for (auto& [parameter, group] : group_of)
          if (group == other) group = mine;
      }
      group_of[name] = mine;
    }
    std::sort(groups[mine].begin(), groups[mine].end());
  }
  std::erase_if(groups, [](const auto& group) { return group.empty(); });
  return groups;
}

/// Copies this rank's parts of the whole tensor `from`. `held`: the part written last, to load each shard once.
void write_parts(const std::vector<checkpoint::NamedTensor>& parts, const at::Tensor& from, tensor::Held& held) {
  const at::NoGradGuard no_grad;
  const at::Tensor flat = from.detach().contiguous().view(-1);
  for (const checkpoint::NamedTensor& part : parts) {
    part.value.write_into(held);
    held.value.copy_(part.part ? flat.narrow(0, part.part->first, part.part->size) : flat);
  }
}

/// Returns rank 0's value of `value` on all ranks.
void take_first(at::Tensor& value, comm::Group& replicas) {
  if (value.numel() == 0) return;
  at::Tensor flat = value.contiguous().view(-1);
  replicas.broadcast(flat, 0).wait();
  value = flat.view(value.sizes());
}

void fill_from_weights(const FirstValues& first, const ModuleTensors::Named& buffers, Optimization& optimization) {
  const at::NoGradGuard no_grad;
  tensor::Held held;
  std::string open;  // the tensor of the source that was read last
  at::Tensor whole;
  for (const checkpoint::NamedTensor& part : optimization.weights()) {  // ordered by shard
    const std::optional<std::string> name = name_in(first, part.name);
    if (!name) continue;
    if (*name != open) {
      whole.reset();
      if (!open.empty()) first.weights->leave(open);
      whole = first.weights->tensor(open = *name);
    }
    write_parts({part}, whole, held);
  }
  for (const auto& [name, value] : buffers)
    if (const auto found = name_in(first, name)) at::Tensor(value).copy_(first.weights->tensor(*found));
}

/// Runs `init` for the submodules of a group. Returns the values by the name of their parameters.
std::map<std::string, at::Tensor> drawn(const std::vector<size_t>& group, const ModuleTensors& tensors,
                                        const std::map<std::string, size_t>& indices, const FirstValues& first,
                                        at::Device device) {
  std::map<std::string, at::Tensor> values;
  for (const size_t submodule : group) {
    std::vector<at::Tensor> own;
    for (const std::string& name : first.submodules[submodule].parameters) {
      const at::Tensor& shape = tensors.parameters[indices.at(name)].second;
      at::Tensor& value = values[name];
      if (!value.defined())
        value = at::full(shape.sizes(), std::numeric_limits<double>::quiet_NaN(), shape.options().device(device));
      own.push_back(value);
    }
    first.init(submodule, own);
  }
  const at::NoGradGuard no_grad;
  for (const auto& [name, value] : values)
    require(value.numel() == 0 || !at::isnan(value.min()).item<bool>(), "model",
            "init must set every element of a parameter: got NaN in ", name, " of submodule ",
            first.submodules[group.back()].name, "; set it there, or give it memory before initialize()");
  return values;
}

void fill_by_init(const ModuleTensors& tensors, const FirstValues& first, Optimization& optimization,
                  comm::Mesh& mesh) {
  const std::map<std::string, size_t> indices = indices_of(tensors);
  PartsByName parts;
  for (checkpoint::NamedTensor& part : optimization.weights()) parts[part.name].push_back(std::move(part));
  comm::Group& replicas = mesh.group(mesh.coordinates().batch_axes());
  const at::Device device = optimization.store().chunks().front()->options().device();
  for (const std::vector<size_t>& group : groups_of(tensors, first)) {
    std::map<std::string, at::Tensor> values;
    comm::agree(mesh.all(), at::kCPU, [&] { values = drawn(group, tensors, indices, first, device); });
    tensor::Held held;
    for (auto& [name, value] : values) {
      take_first(value, replicas);
      optimization.store().attempt([&] { write_parts(parts[name], value, held); });
      value.reset();
    }
  }
}

}  // namespace

bool has_empty(const ModuleTensors& tensors, at::Device device) {
  return !device.is_meta() && std::any_of(tensors.parameters.begin(), tensors.parameters.end(),
                                          [](const auto& p) { return p.second.is_meta(); });
}

void check_first_values(const ModuleTensors& tensors, const FirstValues& first, at::Device device,
                        bool has_first_pass) {
  for (const auto& [name, value] : tensors.buffers)
    require(!value.is_meta() || device.is_meta(), "model", "buffers must have memory: got ", name, " on meta");
  if (!has_empty(tensors, device)) {
    if (first.weights) check_weights(tensors, first);
    return;
  }
  const std::string& name = std::find_if(tensors.parameters.begin(), tensors.parameters.end(), [](const auto& p) {
                              return p.second.is_meta();
                            })->first;
  require(!first.weights != !first.init, "model", "parameters on meta need either weights or init: got ",
          first.weights ? "both" : "neither", " for ", name);
  require(first.replace != nullptr, "model", "parameters on meta cannot get memory in place: got no replace for ",
          name);
  require(!has_first_pass, "model", "first_pass needs parameters with memory: got ", name,
          " on meta; leave first_pass out");
  first.weights ? check_weights(tensors, first) : check_submodules(tensors, first);
}

ModuleTensors replaced(const ModuleTensors& tensors, const FirstValues& first, at::Device device) {
  ModuleTensors result = tensors;
  for (size_t i = 0; i < tensors.parameters.size(); ++i) {
    const auto& [name, old] = tensors.parameters[i];
    if (!old.is_meta()) continue;
    at::Tensor empty =
        nn::without_memory(old.sizes(), old.options().device(device)).requires_grad_(old.requires_grad());
    const at::Tensor own = first.replace(i, empty);
    require(own.defined() && own.is_leaf() && own.sizes() == empty.sizes() && own.dtype() == empty.dtype() &&
                own.device() == empty.device() && own.requires_grad() == empty.requires_grad(),
            "model", "replace must return a leaf with the shape, dtype, device and requires_grad of `empty`: got ",
            "another for ", name);
    for (at::Tensor& table : result.tables)
      if (table.is_same(old)) table = own;
    result.parameters[i].second = own;
  }
  return result;
}

void fill(const ModuleTensors& tensors, const FirstValues& first, const ModuleTensors::Named& buffers,
          Optimization& optimization, comm::Mesh& mesh) {
  if (first.weights)
    optimization.store().attempt([&] { fill_from_weights(first, buffers, optimization); });
  else
    fill_by_init(tensors, first, optimization, mesh);
  optimization.weights_loaded();
}

}  // namespace colossal::train
