#include "colossal/run/adapter_weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/checkpoint/box.h"
#include "colossal/checkpoint/local_boxes.h"
#include "colossal/checkpoint/manifest.h"
#include "colossal/checkpoint/weight_source.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/group.h"
#include "colossal/nn/low_rank.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/run/average_weights.h"
#include "colossal/run/external_names.h"

namespace colossal::run {
namespace {

using checkpoint::NamedTensor;
using Layers = std::vector<const AdapterLayer*>;

constexpr const char *kAdapter = "adapter", *kSaved = "model.", *kWeight = ".weight";

/// Returns B with the factor of the source, so that wrapped and merged layers have it alike.
at::Tensor scaled(const at::Tensor& b, double factor) { return factor == 1 ? b : b * factor; }

AdapterWeights weights_of(const checkpoint::PeftFolder& folder, double scale, const models::ModelShape& shape) {
  const AdapterModules modules(shape);
  AdapterWeights adapters{.folder_tensors = folder.trained()};
  for (const FolderAdapter& one : adapters_of(folder, shape)) {
    const LinearModule& module = modules.linear()[one.module];
    adapters.layers.push_back({.module = module,
                               .a = one.layer.a,
                               .b = scaled(module.ours(one.layer.b), scale),
                               .magnitude = module.ours(one.layer.magnitude),
                               .scale = one.layer.scale});
  }
  const std::vector<std::string> trained = trained_modules_of(folder, shape);
  if (!trained.empty()) adapters.provided = modules.parameters_of("modules_to_save", trained);
  return adapters;
}

/// Returns those of the layers that a part of the model has, the part of `shape`.
AdapterWeights of_part(const AdapterSource& source, AdapterWeights adapters, const models::ModelShape& shape) {
  const AdapterModules modules(shape);
  AdapterWeights own;
  for (AdapterLayer& layer : adapters.layers) {
    const std::optional<size_t> found = index_in_part(source, layer.module.name, modules, shape);
    if (!found) continue;
    const LinearModule& module = modules.linear()[*found];
    const int64_t rank = layer.a.size(0);
    require(layer.a.sizes() == module.shape_of_a(rank) && layer.b.sizes() == module.shape_of_b(rank), kAdapter,
            "the adapter of ", module.name, " must have A ", at::IntArrayRef(module.shape_of_a(rank)), " and B ",
            at::IntArrayRef(module.shape_of_b(rank)), " for this model: got ", layer.a.sizes(), " and ",
            layer.b.sizes(), "; it belongs to another base");
    layer.module = module;
    own.layers.push_back(std::move(layer));
  }
  return own;
}

/// Returns the adapters among `stored`, the parameters of a run by name. The others stay.
AdapterWeights weights_of(const AdapterSource& source, std::map<std::string, at::Tensor> stored,
                          const models::ModelShape& shape) {
  if (const models::ModelShape whole = shape_in_training(source, shape); !(whole == shape))
    return of_part(source, weights_of(source, std::move(stored), whole), shape);
  AdapterWeights adapters;
  const AdapterModules modules(shape);
  const auto take = [&](const LinearModule& module, char matrix, std::vector<int64_t> sizes) {
    const auto found = stored.find(matrix_name(module, matrix));
    require(found != stored.end() && found->second.sizes() == sizes, kAdapter, source.path, " must have ",
            matrix_name(module, matrix), " of ", at::IntArrayRef(sizes), ", as its config says: got ",
            found == stored.end() ? "none" : concat(found->second.sizes()), "; its adapters are of another model");
    at::Tensor value = found->second;
    stored.erase(found);
    return value;
  };
  const std::set<std::string> trained = modules.parameters_of("adapter.trained", source.keys.trained);
  for (const size_t index : modules.selected("adapter.targets", source.keys.targets, trained)) {
    const LinearModule& module = modules.linear()[index];
    const int64_t rank = source.keys.rank_of(module.name), out = module.part.count;
    AdapterLayer layer{.module = module, .is_change = true, .scale = source.keys.factor_of(module.name)};
    layer.a = take(module, 'a', module.shape_of_a(rank));
    layer.b = scaled(take(module, 'b', module.shape_of_b(rank)), source.scale);
    if (source.keys.kind == "dora") layer.magnitude = take(module, 'm', {out});
    adapters.layers.push_back(std::move(layer));
  }
  for (const auto& [name, value] : stored) adapters.provided.insert(name);
  adapters.parameters = std::move(stored);
  return adapters;
}

/// Reads the parameters and buffers of the main model in a checkpoint, or their averages, whole on each rank, by name.
std::map<std::string, at::Tensor> read_stored_whole(const std::string& path, bool uses_average, comm::Mesh& mesh) {
  checkpoint::TrainingState state;
  std::map<std::string, at::Tensor> values;
  comm::agree(mesh.all(), at::kCPU, [&] {
    for (const auto& [name, tensor] : checkpoint::Manifest::read(path + "/manifest.json").tensors) {
      if (!name.starts_with(kSaved)) continue;
      const at::Tensor value = at::empty(tensor.shape, at::dtype(tensor.dtype));
      values[name.substr(std::string(kSaved).size())] = value;
      state.tensors.push_back({name, value, tensor::ShardSpec::whole(tensor.shape)});
    }
  });
  checkpoint::load(path, state, mesh.all(), mesh.coordinates(), kSaved, {}, averages_in(path, uses_average, state));
  return values;
}

std::map<std::string, Layers> layers_by_weight(const AdapterWeights& adapters) {
  std::map<std::string, Layers> all;
  for (const AdapterLayer& layer : adapters.layers) all[layer.module.weight].push_back(&layer);
  return all;
}

/// Rows of a weight on this rank that belong to one adapter.
struct AdaptedRows {
  const AdapterLayer& layer;
  at::Tensor a, b;    ///< its matrices, of a stack those of one expert
  at::Tensor values;  ///< a view of the weight
  int64_t row, own;   ///< the first one, of the weight and of B
  int64_t first_input;
  bool primary;  ///< exactly one rank has each element as primary

  /// Returns W + s B A in fp32, or fp64 if W is of fp64.
  at::Tensor sum() const {
    const at::ScalarType wide = values.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const auto options = values.options().dtype(wide);
    const at::Tensor rows = b.narrow(0, own, values.size(0)).to(options).mul(layer.scale),
                     columns = a.narrow(1, first_input, values.size(1)).to(options).flatten(1).contiguous();
    return values.to(wide) + ops::matmul_nn(rows, columns).view(values.sizes());
  }
};

/// Calls visit(rows) for all rows of `tensor`, a weight or a part of it, that have adapters.
void for_adapted_rows(const NamedTensor& tensor, const at::Tensor& value, const Layers& layers,
                      const tensor::MeshCoordinates& coordinates,
                      const std::function<void(const AdaptedRows& rows)>& visit) {
  for (const tensor::LocalBox& block : checkpoint::local_boxes_of(tensor, coordinates)) {
    const at::Tensor view = checkpoint::at_local_box(tensor, value, coordinates, block);
    for (const AdapterLayer* layer : layers) {
      for (int64_t i = 0; layer->module.is_stack() && i < block.size[0]; ++i) {
        const int64_t expert = block.start[0] + i;
        visit({*layer, layer->a[expert], layer->b[expert], view[i], block.start[1], block.start[1], block.start[2],
               block.primary});
      }
      if (layer->module.is_stack()) continue;
      const nn::LowRankPart& part = layer->module.part;
      const int64_t first = std::max(block.start[0], part.first),
                    end = std::min(block.start[0] + block.size[0], part.first + part.count);
      if (first >= end) continue;
      visit({*layer, layer->a, layer->b, view.narrow(0, first - block.start[0], end - first), first, first - part.first,
             block.start[1], block.primary});
    }
  }
}

int64_t outputs_of(const nn::Parameters& parameters, const std::string& weight) {
  for (const nn::Parameter& p : parameters.declared())
    if (p.name == weight) return p.spec.shape[0];
  throw Error(kAdapter, concat("the model must have the weight ", weight, " of an adapter: got none"));
}

/// The squares of the norms of rows, by name of the weight: of W, and with `merged` of W + s B A, [1 or 2, out].
std::map<std::string, at::Tensor> row_squares(const AdapterWeights& adapters, const nn::Parameters& parameters,
                                              const std::vector<NamedTensor>& tensors, bool merged, comm::Mesh& mesh) {
  const std::map<std::string, Layers> layers = layers_by_weight(adapters);
  std::map<std::string, at::Tensor> squares;
  std::vector<at::Tensor> all;
  int64_t outputs = 0;
  for (const auto& [weight, own] : layers)
    if (own.front()->magnitude.defined()) outputs += outputs_of(parameters, weight);
  if (outputs == 0) return squares;
  at::Tensor sums = at::zeros({merged ? 2 : 1, outputs}, at::kDouble);
  int64_t first = 0;
  for (const auto& [weight, own] : layers) {
    if (!own.front()->magnitude.defined()) continue;
    const int64_t count = outputs_of(parameters, weight);
    squares[weight] = sums.narrow(1, first, count);
    first += count;
  }
  comm::agree(mesh.all(), at::kCPU, [&] {
    for (const NamedTensor& tensor : tensors) {
      const auto found = squares.find(tensor.name);
      if (found == squares.end()) continue;
      const tensor::Held held = tensor.value.read();
      for_adapted_rows(tensor, held.value, layers.at(tensor.name), parameters.coordinates(), [&](const auto& rows) {
        if (!rows.primary) return;
        const auto add = [&](int64_t of, const at::Tensor& values) {
          found->second[of]
              .narrow(0, rows.row, values.size(0))
              .add_(values.to(at::kDouble).square().sum(1).to(at::kCPU));
        };
        add(0, rows.values);
        if (merged) add(1, rows.sum());
      });
    }
  });
  mesh.all().all_reduce(sums, comm::Reduce::Sum).wait();
  return squares;
}

/// Copies this rank's blocks of a whole tensor.
void copy_whole(const at::Tensor& whole, const NamedTensor& tensor, const tensor::MeshCoordinates& coordinates) {
  tensor::Held held = tensor.value.write();
  held.value.detach().zero_();  // for padding
  for (const tensor::LocalBox& block : checkpoint::local_boxes_of(tensor, coordinates))
    checkpoint::at_local_box(tensor, held.value, coordinates, block)
        .copy_(checkpoint::at_box(whole, {block.start, block.size}));
}

/// Imports the tensors of a folder of peft that were trained whole.
void import_trained(const AdapterWeights& adapters, const models::ModelShape& shape, const nn::Parameters& parameters,
                    const std::vector<NamedTensor>& tensors, const std::string& model) {
  if (adapters.folder_tensors.empty() && adapters.provided.empty()) return;
  const auto source = checkpoint::weights_in_memory(adapters.folder_tensors);
  const std::string what = "the folder of peft";
  checkpoint::ExternalNames names = external_names(shape, {"*"});
  names.model = model;
  const std::vector<std::string> lacking = checkpoint::import_weights(*source, what, parameters, tensors, names);
  for (const std::string& name : adapters.provided)
    require(std::find(lacking.begin(), lacking.end(), name) == lacking.end(), kAdapter, what,
            " must have all tensors of ", name,
            " in the shape of the model, because modules_to_save names it: got others ",
            "or none; it belongs to another base, or was saved in part");
}

}  // namespace

std::string matrix_name(const LinearModule& module, char matrix) {
  std::string layer = module.weight;
  if (layer.ends_with(kWeight)) layer.resize(layer.size() - std::string(kWeight).size());
  return nn::LowRankName{layer, matrix, module.part.name}.text();
}

std::set<std::string> AdapterWeights::adapted() const {
  std::set<std::string> names;
  for (const AdapterLayer& layer : layers) names.insert(layer.module.weight);
  return names;
}

AdapterWeights read_adapters(const AdapterSource& source, const models::ModelShape& shape, comm::Mesh& mesh) {
  AdapterWeights adapters;
  std::map<std::string, at::Tensor> stored;
  if (!source.peft)
    stored =
        read_stored_whole(comm::broadcast_text(mesh.all(), at::kCPU, 0, source.checkpoint), source.uses_average, mesh);
  comm::agree(mesh.all(), at::kCPU, [&] {
    adapters =
        source.peft ? weights_of(*source.peft, source.scale, shape) : weights_of(source, std::move(stored), shape);
    for (const AdapterLayer& layer : adapters.layers)
      for (const char matrix : {'a', 'b', 'm'}) adapters.provided.insert(matrix_name(layer.module, matrix));
  });
  return adapters;
}

AdapterWeights of_model(AdapterWeights adapters, const std::string& model) {
  if (model.empty()) return adapters;
  const std::string prefix = model + ".";
  for (AdapterLayer& layer : adapters.layers) layer.module.weight.insert(0, prefix);
  std::set<std::string> provided;
  for (const std::string& name : adapters.provided) provided.insert(prefix + name);
  adapters.provided = std::move(provided);
  std::map<std::string, at::Tensor> parameters;
  for (auto& [name, value] : adapters.parameters) parameters.emplace(prefix + name, std::move(value));
  adapters.parameters = std::move(parameters);
  return adapters;
}

std::map<std::string, at::Tensor> row_norms(const AdapterWeights& adapters, const nn::Parameters& parameters,
                                            const std::vector<NamedTensor>& tensors, comm::Mesh& mesh) {
  std::map<std::string, at::Tensor> norms = row_squares(adapters, parameters, tensors, false, mesh);
  for (auto& [weight, squares] : norms) squares = squares[0].sqrt();
  return norms;
}

void fill_adapters(const AdapterWeights& adapters, const models::ModelShape& shape, const nn::Parameters& parameters,
                   const std::vector<NamedTensor>& tensors, comm::Mesh& mesh, const std::string& model) {
  const bool has_matrices =
      std::any_of(parameters.declared().begin(), parameters.declared().end(),
                  [&](const nn::Parameter& p) { return p.model == model && nn::is_low_rank(p.name); });
  const bool needs_norms =
      has_matrices && std::any_of(adapters.layers.begin(), adapters.layers.end(),
                                  [](const auto& one) { return one.magnitude.defined() && !one.is_change; });
  std::map<std::string, at::Tensor> norms;
  if (needs_norms) norms = row_norms(adapters, parameters, tensors, mesh);
  comm::agree(mesh.all(), at::kCPU, [&] {
    std::map<std::string, at::Tensor> whole = adapters.parameters;
    for (const AdapterLayer& layer : adapters.layers) {
      whole[matrix_name(layer.module, 'a')] = layer.a;
      whole[matrix_name(layer.module, 'b')] = layer.b;
      if (!layer.magnitude.defined()) continue;
      at::Tensor change = layer.magnitude;
      if (needs_norms)
        change = change.to(at::kDouble) -
                 norms.at(layer.module.weight).narrow(0, layer.module.part.first, layer.module.part.count);
      whole[matrix_name(layer.module, 'm')] = change;
    }
    std::vector<NamedTensor> trained;
    for (const NamedTensor& tensor : tensors) {
      if (!adapters.provided.contains(tensor.name)) continue;
      const auto found = whole.find(tensor.name);
      if (found == whole.end()) {
        trained.push_back(tensor);
        continue;
      }
      require(found->second.sizes() == tensor.spec.shape, kAdapter, tensor.name,
              " of the adapters must have the shape ", at::IntArrayRef(tensor.spec.shape), " of the model's: got ",
              found->second.sizes(), "; they belong to another base");
      copy_whole(found->second, tensor, parameters.coordinates());
    }
    if (adapters.parameters.empty()) import_trained(adapters, shape, parameters, trained, model);
  });
}

namespace {

/// Writes W + s B A. `norms_of`: returns the norms of the rows of W and of the sum, [2, rows]; called if the layer has
/// magnitudes.
void merge_rows(const AdaptedRows& rows, const std::function<at::Tensor(const at::Tensor& sum)>& norms_of) {
  at::Tensor sum = rows.sum();
  if (rows.layer.magnitude.defined()) {
    const int64_t count = sum.size(0);
    const at::Tensor norms = norms_of(sum);
    at::Tensor length = rows.layer.magnitude.narrow(0, rows.own, count).to(at::kDouble);
    if (rows.layer.is_change) length = length + norms[0];
    // A row of zeros stays one.
    const at::Tensor factor = (length / norms[1].masked_fill(norms[1].eq(0), 1)).masked_fill(norms[1].eq(0), 1);
    sum.mul_(factor.to(sum.options()).unsqueeze(1));
  }
  at::Tensor(rows.values).copy_(sum);
}

}  // namespace

void merge_adapters(const AdapterWeights& adapters, const nn::Parameters& parameters,
                    const std::vector<NamedTensor>& tensors, comm::Mesh& mesh) {
  const std::map<std::string, Layers> layers = layers_by_weight(adapters);
  const std::map<std::string, at::Tensor> squares = row_squares(adapters, parameters, tensors, true, mesh);
  comm::agree(mesh.all(), at::kCPU, [&] {
    for (const NamedTensor& tensor : tensors) {
      const auto found = layers.find(tensor.name);
      if (found == layers.end()) continue;
      const tensor::Held held = tensor.value.write();
      for_adapted_rows(tensor, held.value, found->second, parameters.coordinates(), [&](const AdaptedRows& rows) {
        merge_rows(rows, [&](const at::Tensor& sum) {
          return squares.at(tensor.name).narrow(1, rows.row, sum.size(0)).sqrt();
        });
      });
    }
  });
}

void merge_whole(const AdapterWeights& adapters, const nn::Parameters& parameters, const NamedTensor& tensor,
                 const at::Tensor& value) {
  const std::map<std::string, Layers> layers = layers_by_weight(adapters);
  const auto found = layers.find(tensor.name);
  if (found == layers.end()) return;
  for_adapted_rows(tensor, value, found->second, parameters.coordinates(), [&](const AdaptedRows& rows) {
    merge_rows(rows, [&](const at::Tensor& sum) {
      const auto norms_of_rows = [](const at::Tensor& all) { return all.to(at::kDouble).square().sum(1).sqrt(); };
      return at::stack({norms_of_rows(rows.values), norms_of_rows(sum)});
    });
  });
}

}  // namespace colossal::run
