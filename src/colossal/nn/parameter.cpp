#include "colossal/nn/parameter.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/ops/random.h"

namespace colossal::nn {

Parameter& Parameters::add(const std::string& name, tensor::ShardSpec spec, Init init, bool decay) {
  for (const Parameter& p : list_) require(p.name != name, "model", "parameter names must differ: got ", name, " twice");
  if (options_.stages) {
    spec.stages = options_.stages(name);
    if (std::find(spec.stages.begin(), spec.stages.end(), place_.index("pipeline")) == spec.stages.end())
      return list_.emplace_back(Parameter{name, {}, std::move(spec), decay});
  }
  const auto options = at::TensorOptions().dtype(options_.dtype).device(options_.device);
  at::Tensor value = at::zeros(spec.local_shape(place_), options);
  for (const tensor::Block& block : spec.blocks(place_)) {
    if (init.kind == Init::Kind::Normal) {
      ops::fill_normal(value, spec.shape, block.start, block.local_start, block.size, derive_seed(options_.seed, name),
                       init.deviation);
    } else if (init.kind == Init::Kind::Ones) {
      at::Tensor box = value;
      for (size_t d = 0; d < block.size.size(); ++d) box = box.narrow(d, block.local_start[d], block.size[d]);
      box.fill_(1);
    }
  }
  list_.push_back({name, value.requires_grad_(), std::move(spec), decay});
  here_.push_back(&list_.back());
  return list_.back();
}

Parameter& Parameters::at(const std::string& name) {
  for (Parameter& p : list_)
    if (p.name == name) return p;
  throw Error("model", concat("no parameter named ", name));
}

std::shared_ptr<const Product> Parameters::product_for(const Parameter& weight,
                                                       std::shared_ptr<const Product> product) const {
  return options_.product && weight.value.defined() ? options_.product(std::move(product), weight) : product;
}

int64_t Parameters::numel() const {
  int64_t total = 0;
  for (const Parameter& p : list_) total += p.spec.numel();
  return total;
}

}  // namespace colossal::nn
