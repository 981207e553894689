#include "colossal/distributed/config.h"

namespace colossal::distributed {

void ParallelConfig::fields(Fields& f) {
  f.integer("data", data, "replicas", "replicas of the model, each with its share of the batch", 1, 1 << 20);
  f.section("tensor", tensor, "tensor parallelism", "size");
  f.section("pipeline", pipeline, "pipeline parallelism", "size");
  f.number("bucket_mib", bucket_mib, "MiB", "gradients reduced in one message", 0.0001, 1 << 20);
}

std::vector<comm::Mesh::Axis> ParallelConfig::axes() const {
  std::vector<comm::Mesh::Axis> axes{{"pipeline", static_cast<int>(pipeline.size)}, {"data", static_cast<int>(data)}};
  for (const auto& axis : parallel::tensor_axes(tensor)) axes.push_back(axis);
  return axes;
}

}  // namespace colossal::distributed
