#include "colossal/run/stored_weights.h"

#include <ATen/ATen.h>

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

at::Tensor codes_of(const nn::FrozenForm& form, const at::Tensor& whole) {
  at::Tensor codes = at::empty(form.sizes(), at::dtype(form.dtype()));
  form.encode(whole, codes);
  return codes;
}

/// Where this rank has the codes of a parameter.
struct CodePieces {
  std::shared_ptr<const nn::FrozenForm> form;
  std::vector<std::pair<memory::Shard, memory::Piece>> pieces;

  void write(const at::Tensor& whole) const {
    const at::Tensor codes = codes_of(*form, whole);
    for (const auto& [shard, piece] : pieces) {
      const memory::Lease lease = shard.lease({.values = memory::Access::Write});
      lease->values.narrow(0, piece.offset, piece.part.size)
          .copy_(codes.flatten().narrow(0, piece.part.first, piece.part.size));
    }
  }
};

/// Returns a tensor of a whole parameter. When it is released, attempt() runs write(whole).
checkpoint::NamedTensor whole_weight(const nn::Parameter& parameter, Attempt attempt,
                                     std::function<void(const at::Tensor& whole)> write) {
  const auto open = [shape = parameter.spec.shape, name = parameter.name, attempt = std::move(attempt),
                     write = std::move(write)](bool writes) {
    require(writes, "adapter", "the values of ", name,
            " cannot be read, because adapter.base stores codes of them: adapters with magnitudes of peft (DoRA) need "
            "its norms; set adapter.base = \"model\"");
    at::Tensor whole = at::empty(shape, at::kFloat);
    // A pointer that owns nothing but the task. Errors wait for the caller, because a release must not throw.
    std::shared_ptr<const void> release(whole.unsafeGetTensorImpl(),
                                        [attempt, write, whole](const void*) { attempt([&] { write(whole); }); });
    return tensor::Held{whole, std::move(release)};
  };
  return {parameter.name,
          tensor::Stored(at::TensorOptions().dtype(at::kFloat), parameter.spec.shape, open),
          tensor::ShardSpec::whole(parameter.spec.shape),
          {}};
}

}  // namespace

std::vector<checkpoint::NamedTensor> fillable_weights_of(memory::ChunkStore& store, const nn::Parameters& parameters) {
  std::vector<checkpoint::NamedTensor> weights = named_weights(store, [&](const nn::Parameter& p) {
    const auto form = parameters.form_of(p);
    return form && form->has_codes() ? "" : p.name;
  });
  std::map<const nn::Parameter*, std::shared_ptr<CodePieces>> coded;
  std::vector<const nn::Parameter*> in_order;
  for (const memory::Shard& shard : store.frozen())
    for (const memory::Piece& piece : shard.stored_pieces()) {
      const auto form = parameters.form_of(*piece.parameter);
      if (!form || !form->has_codes()) continue;
      const auto [found, is_new] = coded.try_emplace(piece.parameter, nullptr);
      if (is_new) {
        found->second = std::make_shared<CodePieces>(CodePieces{form, {}});
        in_order.push_back(piece.parameter);
      }
      found->second->pieces.emplace_back(shard, piece);
    }
  for (const nn::Parameter* parameter : in_order)
    weights.push_back(whole_weight(
        *parameter, [&store](const std::function<void()>& body) { store.attempt(body); },
        [codes = coded.at(parameter)](const at::Tensor& whole) { codes->write(whole); }));
  return weights;
}

checkpoint::NamedTensor fillable_weight(const nn::Parameter& parameter, std::shared_ptr<const nn::FrozenForm> form,
                                        Attempt attempt) {
  return whole_weight(parameter, std::move(attempt),
                      [form = std::move(form), value = parameter.value.detach()](const at::Tensor& whole) {
                        at::Tensor(value).copy_(codes_of(*form, whole));
                      });
}

std::vector<checkpoint::NamedTensor> weights_of(memory::ChunkStore& store) {
  return named_weights(store, [](const nn::Parameter& p) { return p.name; });
}

std::vector<checkpoint::NamedTensor> saved_weights_of(memory::ChunkStore& store) {
  return named_weights(store, [](const nn::Parameter& p) { return p.treatment.saved ? p.saved_name() : ""; });
}

}  // namespace colossal::run
