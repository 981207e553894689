#include "colossal/nn/parameter.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/nn/frozen_form.h"
#include "colossal/nn/product.h"
#include "colossal/ops/random.h"

namespace colossal::nn {
namespace {

/// Adds the replica axes of a parameter, because its gradients are partial sums over its replicas, too.
void add_replicas(tensor::ShardSpec& spec, const tensor::MeshCoordinates& coordinates) {
  std::vector<std::string> axes = tensor::replicas(spec, coordinates);
  for (const std::string& own : spec.gradient_axes)
    if (std::find(axes.begin(), axes.end(), own) == axes.end()) axes.push_back(own);
  spec.gradient_axes = std::move(axes);
}

/// Writes the initial values of boxes of a parameter to `out`, which has their local places. All else is zeros.
void draw_boxes(const Parameter& parameter, const at::Tensor& out, const std::vector<tensor::LocalBox>& boxes,
                uint64_t seed) {
  at::Tensor target = out;
  target.zero_();
  for (const tensor::LocalBox& block : boxes) {
    if (parameter.init.kind == Init::Kind::Normal || parameter.init.kind == Init::Kind::Uniform) {
      const auto fill = parameter.init.kind == Init::Kind::Normal ? ops::fill_normal : ops::fill_uniform;
      fill(target, parameter.spec.shape, block.start, block.local_start, block.size, seed, parameter.init.spread);
    } else if (parameter.init.kind != Init::Kind::Zeros) {
      at::Tensor box = out;
      for (size_t d = 0; d < block.size.size(); ++d) box = box.narrow(d, block.local_start[d], block.size[d]);
      box.fill_(parameter.init.kind == Init::Kind::Ones ? 1 : parameter.init.spread);
    }
  }
}

}  // namespace

RowRange Parameter::trained_rows() const {
  const int64_t rows = spec.shape.empty() ? 1 : spec.shape.front();
  const int64_t first = std::clamp<int64_t>(treatment.rows.first, 0, rows);
  return {first, std::clamp(treatment.rows.end, first, rows)};
}

int64_t Parameter::trained_numel() const {
  if (!treatment.trains) return 0;
  const auto [first, end] = trained_rows();
  const int64_t columns = spec.shape.empty() ? 1 : c10::multiply_integers(spec.shape.begin() + 1, spec.shape.end());
  return (end - first) * columns;
}

at::Tensor without_memory(at::IntArrayRef shape, const at::TensorOptions& options) {
  return at::empty_strided(shape, std::vector<int64_t>(shape.size(), 0), options);
}

void Parameters::begin_model(Options options) {
  std::vector<std::string> taken = models_before_;
  taken.push_back(options_.model);
  for (const std::string& name : taken)
    require(name != options.model, "model", "names of models must differ: got \"", name, "\" twice; rename one");
  require(options.dtype == options_.dtype && options.device == options_.device && options.seed == options_.seed,
          "model", "models that share parameters must have one dtype, device and seed: got others for ", options.model);
  models_before_ = std::move(taken);
  options_ = std::move(options);
}

std::string Parameters::full_name(const std::string& name) const {
  if (options_.model.empty()) return name;
  const std::string prefix = options_.model + ".";
  return wraps_ && name.starts_with(prefix) ? name : prefix + name;
}

Parameter& Parameters::add(const std::string& given, tensor::ShardSpec spec, Init init, bool decay) {
  const std::string name = full_name(given);
  if (redeclares_) {
    Parameter& there = at(name);
    require(there.spec.shape == spec.shape && there.spec.splits == spec.splits, "model", "a second layout must store ",
            name, " as the first one does: got other shapes or splits for it");
    return there;
  }
  require_new(name);
  add_replicas(spec, coordinates_);
  Parameter declared{name, {}, std::move(spec), decay ? 1.0 : 0.0, init};
  declared.is_added = wraps_;
  declared.model = options_.model;
  const bool is_here = find_stages(declared);
  list_.push_back(std::move(declared));
  Parameter& parameter = list_.back();
  if (options_.treatment) parameter.treatment = options_.treatment(parameter.own_name());
  if (!is_here) return parameter;
  const auto options = at::TensorOptions().dtype(options_.dtype).device(options_.device);
  const std::vector<int64_t> shape = parameter.spec.local_shape(coordinates_);
  parameter.value = options_.without_memory ? nn::without_memory(shape, options) : at::empty(shape, options);
  here_.push_back(&parameter);
  if (!options_.without_memory) draw(parameter, parameter.value);
  parameter.value.requires_grad_(parameter.treatment.trains);
  return parameter;
}

Buffer& Parameters::buffer(const std::string& given, tensor::ShardSpec spec, at::ScalarType dtype, BufferUse use) {
  const std::string name = full_name(given);
  if (redeclares_)
    for (Buffer& there : buffers_)
      if (there.name == name) return there;
  require_new(name);
  Buffer& buffer = buffers_.emplace_back();
  buffer.name = name;
  buffer.model = options_.model;
  buffer.spec = std::move(spec);
  const bool is_here = find_stages(buffer);
  buffer.treatment.trains = false;
  buffer.use = use;
  if (is_here)
    buffer.value =
        at::zeros(buffer.spec.local_shape(coordinates_), at::TensorOptions().dtype(dtype).device(options_.device));
  return buffer;
}

void Parameters::require_new(const std::string& name) const {
  for (const Parameter& p : list_)
    require(p.name != name, "model", "parameter names must differ: got ", name, " twice");
  for (const Buffer& b : buffers_)
    require(b.name != name, "model", "names of buffers and parameters must differ: got ", name, " twice");
}

bool Parameters::find_stages(Parameter& tensor) const {
  if (!options_.stages) return true;
  std::vector<int>& stages = tensor.spec.stages;
  stages = options_.stages(tensor.own_name());
  return std::find(stages.begin(), stages.end(), coordinates_.index("pipeline")) != stages.end();
}

void Parameters::adopt(const std::string& name, const at::Tensor& leaf, bool decay) {
  require(leaf.is_leaf() && leaf.is_floating_point(), "model", "parameter ", name,
          " must be a floating-point leaf of autograd");
  for (const Parameter& p : list_) {
    if (p.value.is_same(leaf)) return;
    require(p.name != name, "model", "parameter names must differ: got ", name, " twice");
  }
  auto spec = tensor::ShardSpec::whole(leaf.sizes().vec());
  add_replicas(spec, coordinates_);
  list_.push_back({name, leaf, std::move(spec), decay ? 1.0 : 0.0, {}});
  list_.back().hidden_matrix = leaf.dim() >= 2;
  list_.back().treatment.trains = leaf.requires_grad();
  here_.push_back(&list_.back());
}

void Parameters::store_as(const Parameter& parameter, std::shared_ptr<const FrozenForm> form) {
  Parameter& own = at(parameter.name);
  require(!own.treatment.trains && !own.treatment.saved, "model",
          "a parameter in another form must be frozen and in no "
          "checkpoint: got ",
          own.name, own.treatment.trains ? ", which trains" : ", which is saved");
  const auto options = at::TensorOptions().dtype(form->dtype()).device(options_.device);
  std::vector<int64_t> sizes = form->sizes();
  if (own.is_stack) sizes.insert(sizes.begin(), own.spec.local_shape(coordinates_)[0]);
  forms_[&own] = std::move(form);
  if (!own.value.defined()) return;
  own.value = options_.without_memory ? nn::without_memory(sizes, options) : at::empty(sizes, options);
  if (!options_.without_memory) draw(own, own.value);
}

std::shared_ptr<const FrozenForm> Parameters::form_of(const Parameter& parameter) const {
  const auto found = forms_.find(&parameter);
  return found == forms_.end() ? nullptr : found->second;
}

at::ScalarType Parameters::stored_dtype(const Parameter& parameter) const {
  const std::shared_ptr<const FrozenForm> form = form_of(parameter);
  return form ? form->dtype() : options_.dtype;
}

void Parameters::draw(const Parameter& parameter, const at::Tensor& out, std::optional<uint64_t> seed) const {
  const uint64_t own = derive_seed(seed.value_or(options_.seed), parameter.own_name());
  if (const auto form = form_of(parameter); form && form->filling() != FrozenFilling::Elements) {
    if (out.is_meta()) return;
    if (form->filling() == FrozenFilling::Codes) {
      at::Tensor(out).zero_();
      return;
    }
    const std::vector<int64_t>& shape = parameter.spec.shape;
    if (!parameter.is_stack) {
      const at::Tensor values = at::empty(shape, at::dtype(options_.dtype));
      draw_boxes(parameter, values, {{.start = {0, 0}, .local_start = {0, 0}, .size = shape, .primary = true}}, own);
      return form->encode(values.to(at::kFloat), out);
    }
    at::Tensor(out).zero_();                                                                  // for padding
    const at::Tensor values = at::empty({1, shape[1], shape[2]}, at::dtype(options_.dtype));  // one matrix at a time
    for (const tensor::LocalBox& box : parameter.spec.local_boxes(coordinates_))
      for (int64_t i = 0; i < box.size[0]; ++i) {
        const tensor::LocalBox one{{box.start[0] + i, 0, 0}, {0, 0, 0}, values.sizes().vec(), true};
        draw_boxes(parameter, values, {one}, own);
        form->encode(values[0].to(at::kFloat), out[box.local_start[0] + i]);
      }
    return;
  }
  draw_boxes(parameter, out, parameter.spec.local_boxes(coordinates_), own);
}

Parameter& Parameters::at(const std::string& name) {
  for (Parameter& p : list_)
    if (p.name == name) return p;
  throw Error("model", concat("no parameter named ", name));
}

std::shared_ptr<const Product> Parameters::product_for(const Parameter& weight,
                                                       std::shared_ptr<const Product> product) {
  wraps_ = true;
  for (const Options::ProductOf& wrap : options_.products) product = wrap(std::move(product), weight, *this);
  wraps_ = false;
  if (product && !product->has_backward()) forward_only_ = weight.name;
  return product;
}

std::shared_ptr<const Product> Parameters::product_between_blocks(Parameter& weight) {
  weight.between_blocks = true;
  return product_for(weight, {std::shared_ptr<void>(), &serial_product()});  // static: never deleted
}

int64_t Parameters::numel() const {
  int64_t total = 0;
  for (const Parameter& p : list_) total += p.spec.numel();
  return total;
}

int64_t Parameters::trained_numel() const {
  int64_t total = 0;
  for (const Parameter& p : list_) total += p.trained_numel();
  return total;
}

}  // namespace colossal::nn
