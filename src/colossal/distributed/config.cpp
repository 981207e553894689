#include "colossal/distributed/config.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/comm/compression.h"

namespace colossal::distributed {

void ParallelConfig::fields(Fields& f) {
  f.flag("auto", automatic,
         "choose the fastest layout of `ranks` ranks that fits, before the run starts: every axis of this table, zero, "
         "micro-batches, memory.recompute and training.accumulate, which must not be set. Losses are those of one "
         "process up to rounding");
  f.integer("ranks", ranks_wanted, "ranks",
            "number of ranks. With auto, 0 = those of the launcher, else one for each GPU; on CPUs without a launcher "
            "it must be given. Without auto it must be the product of all axes; 0 = that product",
            0, 1 << 20);
  f.integer("data", data, "replicas", "replicas of the model, each with its share of the batch", 1, 1 << 20);
  f.section("expert", expert, "expert parallelism", "size");
  f.section("sequence", sequence, "sequence parallelism", "size");
  f.section("tensor", tensor, "tensor parallelism", "size");
  f.section("pipeline", pipeline, "pipeline parallelism", "size");
  f.integer("zero", zero, "",
            "ZeRO stage: replicas shard 0 = nothing, 1 = optimizer states, 2 = gradients too, 3 = parameters too", 0,
            3);
  f.previously("zero_sharers")
      .integer(
          "zero_group", zero_group, "replicas",
          "ZeRO group size, a divisor of data * sequence.size, of consecutive replicas; 0 = all. One group per node: "
          "less traffic between nodes, more memory per rank",
          0, 1 << 20);
  f.flag("reshard_after_forward", reshard_after_forward,
         "zero 3: free gathered parameters after forward and gather them again for backward; false: keep them gathered "
         "until they change");
  f.previously("gathered_mib")
      .number("max_gathered_mib", max_gathered_mib, "MiB",
              "zero 3 with reshard_after_forward: limit on gathered parameters; those beyond it are freed and gathered "
              "again. The chunk in use and the next one are always allowed; 0 = only these",
              0, 1 << 30);
  f.choice("compress", compress, comm::compression_names(),
           "format of gradients sent between replicas, and of parameters gathered with precision.masters or zero 3: "
           "1 byte per element; none = uncompressed");
  f.number("chunk_mib", chunk_mib, "MiB",
           "size of the chunks in which parameters are reduced, gathered and freed together; a larger parameter is a "
           "chunk by itself",
           0.0001, 1 << 20);
  f.text(
      "plan", plan,
      "plan.json of a module that colossal::auto_parallel trains, which may be edited; empty: the solver finds a plan");
}

std::vector<comm::Mesh::Axis> ParallelConfig::axes() const {
  std::vector<comm::Mesh::Axis> axes{{"pipeline", static_cast<int>(pipeline.size)},
                                     comm::Mesh::batch("data", static_cast<int>(data))};
  for (const auto& axis : parallel::expert_axes(expert)) axes.push_back(axis);
  const auto of_sequence = parallel::sequence_axes(sequence);
  if (sequence.size > 1) axes.insert(axes.end(), of_sequence.begin(), of_sequence.end());
  for (const auto& axis : parallel::tensor_axes(tensor)) axes.push_back(axis);
  return axes;
}

ParallelConfig ParallelConfig::split_by(const std::vector<std::string>& axes) const {
  for (const std::string& axis : axes)
    require(axis == "pipeline" || axis == "sequence" || axis == "tensor", "parallel",
            "the axes that split a model must be of pipeline, sequence and tensor: got ", axis);
  const auto keeps = [&](const char* axis) { return std::find(axes.begin(), axes.end(), axis) != axes.end(); };
  ParallelConfig result = *this;
  if (!keeps("pipeline")) result.pipeline = {};
  if (!keeps("sequence")) result.sequence = {};
  if (!keeps("tensor")) result.tensor = {};
  return result;
}

}  // namespace colossal::distributed
