#include "colossal/run/frozen_base.h"

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/checkpoint/hugging_face/external_part.h"
#include "colossal/checkpoint/hugging_face/folder_codes.h"
#include "colossal/models/registry.h"
#include "colossal/nn/frozen_product.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/run/adapter_modules.h"
#include "colossal/run/external_names.h"

namespace colossal::run {
namespace {

nn::FrozenFormat format_of(const std::string& base) {
  if (base == "bf16") return nn::FrozenFormat::Bf16;
  if (base == "int8") return nn::FrozenFormat::Int8;
  require(base == "nf4", "adapter", "adapter.base must be bf16, int8 or nf4 to store codes: got ", base);
  return nn::FrozenFormat::Nf4;
}

/// Calls visit(parameters, weights) with a model of one process that is declared, and the names of the weights of its
/// linear layers that may have another form.
template <class Visit>
void with_declared(const models::ModelShape& shape, const Visit& visit) {
  std::set<const nn::Parameter*> multiplied;
  nn::Parameters parameters(
      {}, {.without_memory = true, .products = {[&](auto product, const nn::Parameter& weight, nn::Parameters&) {
                                     if (weight.hidden_matrix) multiplied.insert(weight.stack ? weight.stack : &weight);
                                     return product;
                                   }}});
  nn::SerialLayers layers(parameters);
  const auto model = models::make_model(shape, layers);
  std::set<std::string> weights;
  for (const nn::Parameter* weight : multiplied)  // a layer may mark a weight after it has its product
    if (weight->spec.shape.size() == (weight->is_stack ? 3 : 2) && !weight->looked_up) weights.insert(weight->name);
  visit(parameters, weights);
}

}  // namespace

FrozenBase::FrozenBase(const LowRankKeys& keys, const models::ModelShape& shape, const std::set<std::string>& trained)
    : options_({format_of(keys.base), keys.double_quantized}) {
  with_declared(shape, [&](const nn::Parameters& parameters, const std::set<std::string>& weights) {
    for (const std::string& weight : weights)
      if (!trained.contains(weight)) matrices_[weight];
    const std::vector<nn::ExternalName> names = folder_names(shape);
    if (names.empty()) return;
    const auto all = checkpoint::external_parts(parameters, names);
    std::map<std::string, std::vector<const checkpoint::ExternalPart*>> parts;  // those of the first entry of a stack
    for (const checkpoint::ExternalPart& part : all)
      if (part.stack == checkpoint::Stack::None || part.box.start[0] == 0) parts[part.parameter->name].push_back(&part);
    for (auto& [weight, matrices] : matrices_)
      if (const auto own = parts.find(weight); own != parts.end()) matrices = checkpoint::matrices_of(own->second);
  });
}

FrozenBase::FrozenBase(const std::string& folder, const models::ModelShape& shape, const nn::Adapter& adapter) {
  const checkpoint::ExternalNames names = external_names(shape, head_that_may_lack(shape));
  with_declared(shape, [&](const nn::Parameters& parameters, const std::set<std::string>& weights) {
    for (auto& [weight, matrices] : checkpoint::coded_matrices(folder, parameters, names)) {
      const nn::Treatment treatment = adapter.treatment ? adapter.treatment(weight) : nn::Treatment{};
      if (weights.contains(weight) && !treatment.trains && !treatment.saved) matrices_[weight] = std::move(matrices);
    }
  });
}

std::shared_ptr<const nn::Product> FrozenBase::wrap(std::shared_ptr<const nn::Product> product,
                                                    const nn::Parameter& weight, nn::Parameters& parameters) const {
  const nn::Parameter& stored = weight.stack ? *weight.stack : weight;
  const auto found = matrices_.find(stored.own_name());
  const bool is_as_it_is =
      options_ && options_->format == nn::FrozenFormat::Bf16 && parameters.options().dtype == at::kBFloat16;
  if (found == matrices_.end() || is_as_it_is) return product;
  std::shared_ptr<const nn::FrozenForm> form = parameters.form_of(stored);
  if (!form)
    form = options_ ? nn::make_frozen_form(*options_, stored, found->second, parameters.coordinates())
                    : nn::make_folder_form(stored, found->second, parameters.coordinates());
  return nn::with_frozen_form(std::move(product), weight, parameters, std::move(form));
}

}  // namespace colossal::run
