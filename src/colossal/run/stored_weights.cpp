#include "colossal/run/stored_weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/nn/frozen_form.h"

namespace colossal::run {
namespace {

tensor::Stored values_of(const memory::Shard& shard, const memory::Piece& piece) {
  const int64_t offset = piece.offset, size = piece.part.size;
  return {shard.options(),
          {size},
          [=](bool writes) {
            const memory::Lease lease = shard.lease({.values = writes ? memory::Access::Write : memory::Access::Read});
            return tensor::Held{lease->values.narrow(0, offset, size), lease};
          },
          shard.identity()};
}

/// Returns the weights of a store. name_of(parameter) is the name of its weight; empty = the parameter is left out.
template <class NameOf>
std::vector<checkpoint::NamedTensor> named_weights(memory::ChunkStore& store, const NameOf& name_of) {
  std::vector<checkpoint::NamedTensor> weights;
  for (const auto* shards : {&store.shards(), &store.frozen()})
    for (const memory::Shard& shard : *shards)
      for (const memory::Piece& piece : shard.stored_pieces()) {
        const std::string name = name_of(*piece.parameter);
        if (!name.empty()) weights.push_back({name, values_of(shard, piece), piece.parameter->spec, piece.part});
      }
  return weights;
}

using Attempt = std::function<void(const std::function<void()>&)>;

/// A parameter that is stored in another form, and where this rank has its value.
struct StoredForm {
  const nn::Parameter& parameter;
  std::shared_ptr<const nn::FrozenForm> form;
  /// Returns true if this rank has some of the elements [first, first + size) of the flattened value.
  std::function<bool(int64_t first, int64_t size)> has;
  /// Writes elements of the flattened value, from `first` on, as far as this rank has them.
  std::function<void(const at::Tensor& elements, int64_t first)> write;
  Attempt attempt;
};

/// The pieces of a parameter in a store.
struct FormPieces {
  std::vector<std::pair<memory::Shard, memory::Piece>> all{};

  bool has(int64_t first, int64_t size) const {
    return std::any_of(all.begin(), all.end(), [&](const auto& one) {
      const auto& part = one.second.part;
      return part.first < first + size && first < part.first + part.size;
    });
  }
  void write(const at::Tensor& elements, int64_t first) const {
    for (const auto& [shard, piece] : all) {
      const int64_t from = std::max(first, piece.part.first),
                    to = std::min(first + elements.numel(), piece.part.first + piece.part.size);
      if (from >= to) continue;
      const memory::Lease lease = shard.lease({.values = memory::Access::Write});
      lease->values.narrow(0, piece.offset + from - piece.part.first, to - from)
          .copy_(elements.flatten().narrow(0, from - first, to - from));
    }
  }
};

/// Returns a tensor in memory that can only be written. keep(values) is attempted when it is released.
tensor::Stored written_at_once(const StoredForm& stored, at::ScalarType dtype, std::vector<int64_t> sizes,
                               std::function<void(const at::Tensor& values)> keep) {
  const auto open = [name = stored.parameter.name, attempt = stored.attempt, dtype, sizes,
                     keep = std::move(keep)](bool writes) {
    require(writes, "adapter", "the values of ", name,
            " cannot be read, because the run stores codes of them: adapters with magnitudes of peft (DoRA) need its "
            "norms; set adapter.base = \"model\", with a model.from whose weights are not quantized");
    at::Tensor values = at::empty(sizes, dtype);
    // A pointer that owns nothing but the task. Errors wait for the caller, because a release must not throw.
    std::shared_ptr<const void> release(values.unsafeGetTensorImpl(),
                                        [attempt, values, keep](const void*) { attempt([&] { keep(values); }); });
    return tensor::Held{values, std::move(release)};
  };
  return {at::TensorOptions().dtype(dtype), std::move(sizes), open};
}

/// Adds the whole parameter in fp32. Of a stack each matrix of this rank is a tensor of its own.
void add_numbers(const std::shared_ptr<const StoredForm>& stored, const tensor::MeshCoordinates& coordinates,
                 std::vector<checkpoint::NamedTensor>& weights) {
  const nn::Parameter& parameter = stored->parameter;
  const std::vector<int64_t>& shape = parameter.spec.shape;
  const auto spec = tensor::ShardSpec::whole(shape);
  const int64_t size = c10::multiply_integers(stored->form->sizes()), elements = shape.end()[-2] * shape.end()[-1];
  const auto keep_as = [&](int64_t index) {
    return [stored, index, size,
            sizes = std::vector<int64_t>{shape.end()[-2], shape.end()[-1]}](const at::Tensor& values) {
      const at::Tensor codes = at::empty(stored->form->sizes(), stored->form->dtype());
      stored->form->encode(values.view(sizes), codes);
      stored->write(codes, index * size);
    };
  };
  if (!parameter.is_stack) {
    weights.push_back({parameter.name, written_at_once(*stored, at::kFloat, shape, keep_as(0)), spec, {}});
    return;
  }
  for (const tensor::LocalBox& box : parameter.spec.local_boxes(coordinates))
    for (int64_t i = 0; i < box.size[0]; ++i) {
      const int64_t index = box.local_start[0] + i;
      if (stored->has(index * size, size))
        weights.push_back({parameter.name, written_at_once(*stored, at::kFloat, {elements}, keep_as(index)), spec,
                           tensor::FlatPart{(box.start[0] + i) * elements, elements}});
    }
}

/// Adds the tensors that fill a parameter in another form.
void add_fillable(const std::shared_ptr<const StoredForm>& stored, const tensor::MeshCoordinates& coordinates,
                  std::vector<checkpoint::NamedTensor>& weights) {
  if (stored->form->filling() == nn::FrozenFilling::Numbers) return add_numbers(stored, coordinates, weights);
  const auto keep = [stored](const at::Tensor& codes) { stored->write(codes, 0); };
  const nn::Parameter& parameter = stored->parameter;
  weights.push_back({parameter.name,
                     written_at_once(*stored, stored->form->dtype(), parameter.value.sizes().vec(), keep),
                     parameter.spec,
                     {}});
}

/// Returns the form of a parameter that is not filled element by element; null = it is.
std::shared_ptr<const nn::FrozenForm> form_with_codes(const nn::Parameters& parameters, const nn::Parameter& p) {
  auto form = parameters.form_of(p);
  return form && form->filling() != nn::FrozenFilling::Elements ? form : nullptr;
}

}  // namespace

std::vector<checkpoint::NamedTensor> fillable_weights_of(memory::ChunkStore& store, const nn::Parameters& parameters) {
  std::vector<checkpoint::NamedTensor> weights =
      named_weights(store, [&](const nn::Parameter& p) { return form_with_codes(parameters, p) ? "" : p.name; });
  std::map<const nn::Parameter*, std::shared_ptr<FormPieces>> found;
  std::vector<const nn::Parameter*> in_order;
  for (const memory::Shard& shard : store.frozen())
    for (const memory::Piece& piece : shard.stored_pieces()) {
      if (!form_with_codes(parameters, *piece.parameter)) continue;
      std::shared_ptr<FormPieces>& pieces = found[piece.parameter];
      if (!pieces) {
        pieces = std::make_shared<FormPieces>();
        in_order.push_back(piece.parameter);
      }
      pieces->all.emplace_back(shard, piece);
    }
  for (const nn::Parameter* parameter : in_order) {
    const std::shared_ptr<const FormPieces> pieces = found.at(parameter);
    const auto stored = std::make_shared<const StoredForm>(
        StoredForm{*parameter, form_with_codes(parameters, *parameter),
                   [pieces](int64_t first, int64_t size) { return pieces->has(first, size); },
                   [pieces](const at::Tensor& elements, int64_t first) { pieces->write(elements, first); },
                   [&store](const std::function<void()>& body) { store.attempt(body); }});
    add_fillable(stored, parameters.coordinates(), weights);
  }
  return weights;
}

std::vector<checkpoint::NamedTensor> fillable_weights(const nn::Parameters& parameters, const nn::Parameter& parameter,
                                                      Attempt attempt) {
  const auto form = form_with_codes(parameters, parameter);
  if (!form) return {{parameter.name, parameter.value.detach(), parameter.spec, {}}};
  std::vector<checkpoint::NamedTensor> weights;
  const auto write = [value = parameter.value.detach().view({-1})](const at::Tensor& elements, int64_t first) {
    at::Tensor(value.narrow(0, first, elements.numel())).copy_(elements.flatten());
  };
  const auto stored = std::make_shared<const StoredForm>(
      StoredForm{parameter, form, [](int64_t, int64_t) { return true; }, write, std::move(attempt)});
  add_fillable(stored, parameters.coordinates(), weights);
  return weights;
}

std::vector<checkpoint::NamedTensor> weights_of(memory::ChunkStore& store) {
  return named_weights(store, [](const nn::Parameter& p) { return p.name; });
}

std::vector<checkpoint::NamedTensor> saved_weights_of(memory::ChunkStore& store) {
  return named_weights(store, [](const nn::Parameter& p) { return p.treatment.saved ? p.saved_name() : ""; });
}

}  // namespace colossal::run
