#include "colossal/run/frozen_base.h"

#include <utility>

#include "colossal/base/error.h"
#include "colossal/checkpoint/hugging_face/external_part.h"
#include "colossal/models/registry.h"
#include "colossal/nn/frozen_product.h"
#include "colossal/nn/serial_layers.h"

namespace colossal::run {
namespace {

nn::FrozenFormat format_of(const std::string& base) {
  if (base == "bf16") return nn::FrozenFormat::Bf16;
  if (base == "int8") return nn::FrozenFormat::Int8;
  require(base == "nf4", "adapter", "adapter.base must be bf16, int8 or nf4 to store codes: got ", base);
  return nn::FrozenFormat::Nf4;
}

}  // namespace

FrozenBase::FrozenBase(const LowRankKeys& keys, const models::ModelShape& shape, const std::set<std::string>& trained)
    : options_{format_of(keys.base), keys.double_quantized} {
  std::vector<const nn::Parameter*> multiplied;
  nn::Parameters parameters(
      {}, {.without_memory = true, .products = {[&](auto product, const nn::Parameter& weight, nn::Parameters&) {
                                     if (weight.hidden_matrix && !weight.stack) multiplied.push_back(&weight);
                                     return product;
                                   }}});
  nn::SerialLayers layers(parameters);
  const auto model = models::make_model(shape, layers);
  for (const nn::Parameter* weight : multiplied)
    if (weight->spec.shape.size() == 2 && !weight->looked_up && !trained.contains(weight->name))
      matrices_[weight->name];
  const models::HuggingFace& folder = shape.architecture->hugging_face;
  if (!folder.names) return;
  std::map<std::pair<std::string, std::string>, size_t> numbers;  // of a tensor among the matrices of a weight
  for (const checkpoint::ExternalPart& part : checkpoint::external_parts(parameters, folder.names(shape))) {
    const auto found = matrices_.find(part.parameter->name);
    if (found == matrices_.end()) continue;
    std::vector<nn::FolderMatrix>& all = found->second;
    const auto [number, is_new] = numbers.try_emplace({part.parameter->name, part.name}, all.size());
    if (is_new) all.push_back({.rows = part.rows, .transposed = part.transposed});
    all[number->second].parts.push_back(
        {.row = part.box.start[0], .count = part.box.size[0], .first = part.first, .stride = part.stride});
  }
}

std::shared_ptr<const nn::Product> FrozenBase::wrap(std::shared_ptr<const nn::Product> product,
                                                    const nn::Parameter& weight, nn::Parameters& parameters) const {
  const auto found = weight.stack ? matrices_.end() : matrices_.find(weight.own_name());
  const bool is_as_it_is = options_.format == nn::FrozenFormat::Bf16 && parameters.options().dtype == at::kBFloat16;
  if (found == matrices_.end() || is_as_it_is) return product;
  return nn::with_frozen_form(std::move(product), weight, parameters,
                              nn::make_frozen_form(options_, weight, found->second, parameters.coordinates()));
}

}  // namespace colossal::run
