#include "colossal/distributed/config.h"

#include "colossal/comm/compression.h"

namespace colossal::distributed {

void ParallelConfig::fields(Fields& f) {
  f.integer("data", data, "replicas", "replicas of the model, each with its share of the batch", 1, 1 << 20);
  f.section("sequence", sequence, "sequence parallelism", "size");
  f.section("tensor", tensor, "tensor parallelism", "size");
  f.section("pipeline", pipeline, "pipeline parallelism", "size");
  f.integer("zero", zero, "",
            "what replicas share out: 0 nothing, 1 optimizer states, 2 gradients too, 3 parameters too", 0, 3);
  f.integer("zero_sharers", zero_sharers, "replicas",
            "that share, next to one another (of data * sequence.size); 0: all. Those of a node for instance: fewer "
            "bytes between nodes, more of "
            "them on each",
            0, 1 << 20);
  f.flag("reshard_after_forward", reshard_after_forward,
         "zero 3: parameters go after forward and come again for backward; otherwise they stay until they change");
  f.number("gathered_mib", gathered_mib, "MiB",
           "zero 3, with reshard_after_forward: parameters that may be whole at once; what does not fit goes and comes "
           "again. At least, and with 0, the chunk in use and the next one",
           0, 1 << 30);
  f.choice("compress", compress, comm::compression_names(),
           "what replicas send one another in a byte a number: gradients, and parameters that are gathered (with "
           "masters, or zero 3)");
  f.number("chunk_mib", chunk_mib, "MiB",
           "parameters that are reduced, gathered and released together; larger ones are alone", 0.0001, 1 << 20);
}

std::vector<comm::Mesh::Axis> ParallelConfig::axes() const {
  std::vector<comm::Mesh::Axis> axes{{"pipeline", static_cast<int>(pipeline.size)},
                                     comm::Mesh::batch("data", static_cast<int>(data))};
  const auto of_sequence = parallel::sequence_axes(sequence);
  if (sequence.size > 1) axes.insert(axes.end(), of_sequence.begin(), of_sequence.end());
  for (const auto& axis : parallel::tensor_axes(tensor)) axes.push_back(axis);
  return axes;
}

}  // namespace colossal::distributed
