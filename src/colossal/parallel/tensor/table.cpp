#include "colossal/parallel/tensor/table.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/comm/collectives.h"

namespace colossal::parallel {
namespace {

tensor::ShardSpec spec_of(const Layout& layout, std::vector<int64_t> shape, const Split& split,
                          const Table::Options& options) {
  tensor::ShardSpec spec = options.features < 0 ? tensor::ShardSpec::whole(std::move(shape))
                                                : tensor::ShardSpec::split(std::move(shape), options.features,
                                                                           split.columns, options.segments);
  spec.splits[0].shards = layout.vector_shards;
  for (const auto* axes : {&split.batch, &split.sequence})  // axes along which ranks hold other tokens
    for (const std::string& axis : *axes)
      if (std::find(layout.vector_shards.begin(), layout.vector_shards.end(), axis) == layout.vector_shards.end())
        spec.gradient_axes.push_back(axis);
  return spec;
}

}  // namespace

Table::Table(nn::Parameters& parameters, const Layout& layout, const std::string& name, std::vector<int64_t> shape,
             const Split& split, const Options& options)
    : shards_(layout.mesh->group(layout.vector_shards)),
      parameter_(parameters.add(name, spec_of(layout, std::move(shape), split, options), options.init, options.decay)),
      room_(parameter_.spec.room(0, layout.mesh->coordinates())) {}

at::Tensor Table::value() const {
  const at::Tensor pieces = comm::all_gather(parameter_.value, 0, shards_);
  return pieces.size(0) == room_ ? pieces : pieces.narrow(0, 0, room_);
}

}  // namespace colossal::parallel
