#include "colossal/checkpoint/external_part.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "colossal/base/error.h"

namespace colossal::checkpoint {

std::vector<int64_t> ExternalPart::external_shape() const {
  std::vector<int64_t> shape(leading_ones, 1);
  if (transposed)
    shape.insert(shape.end(), box.size.rbegin(), box.size.rend());
  else
    shape.insert(shape.end(), box.size.begin(), box.size.end());
  return shape;
}

at::Tensor ExternalPart::to_ours(const at::Tensor& tensor) const {
  const at::Tensor box_shaped = leading_ones == 0 ? tensor : tensor.flatten(0, leading_ones);
  return transposed ? box_shaped.t() : box_shaped;
}

at::Tensor ExternalPart::to_theirs(const at::Tensor& tensor) const {
  at::Tensor theirs = transposed ? tensor.t() : tensor;
  for (int64_t i = 0; i < leading_ones; ++i) theirs = theirs.unsqueeze(0);
  return theirs;
}

std::vector<ExternalPart> external_parts(const nn::Parameters& parameters, const std::vector<nn::ExternalName>& names) {
  std::map<std::string, const nn::Parameter*> unnamed;
  for (const nn::Parameter& parameter : parameters.declared()) unnamed[parameter.name] = &parameter;
  std::vector<ExternalPart> parts;
  for (const nn::ExternalName& name : names) {
    const auto found = unnamed.find(name.ours);
    require(found != unnamed.end(), "hugging face", "no parameter, or two names for one: ", name.ours);
    const nn::Parameter& parameter = *found->second;
    unnamed.erase(found);
    const std::vector<int64_t>& shape = parameter.spec.shape;
    Box box{std::vector<int64_t>(shape.size(), 0), shape};
    const bool transposed = name.transposed && shape.size() == 2;
    if (name.parts.size() == 1) {
      parts.push_back({&parameter, name.parts[0], box, transposed, name.leading_ones});
      continue;
    }
    const std::vector<tensor::Segment>& segments = parameter.spec.splits.at(0).segments;
    require(segments.size() == name.parts.size(), "hugging face", name.ours, " has ", segments.size(), " segments but ",
            name.parts.size(), " names");
    for (size_t i = 0; i < segments.size(); ++i) {
      box.size[0] = segments[i].size;
      parts.push_back({&parameter, name.parts[i], box, transposed, name.leading_ones});
      box.start[0] += segments[i].size;
    }
  }
  require(unnamed.empty(), "hugging face",
          "this model's parameter has no name in such a folder: ", unnamed.empty() ? "" : unnamed.begin()->first);
  return parts;
}

}  // namespace colossal::checkpoint
