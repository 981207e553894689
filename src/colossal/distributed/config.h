// [parallel]: how a model is spread over ranks.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/parallel/pipeline/plan.h"
#include "colossal/parallel/sequence/config.h"
#include "colossal/parallel/tensor/config.h"

namespace colossal::distributed {

/// [parallel]
struct ParallelConfig {
  int64_t data = 1;
  parallel::SequenceConfig sequence;
  parallel::TensorConfig tensor;
  parallel::PipelineConfig pipeline;
  int64_t zero = 0;
  int64_t zero_sharers = 0;
  bool reshard_after_forward = true;
  double gathered_mib = 0;
  std::string compress = "none";
  double chunk_mib = 25;
  void fields(Fields& f);
  int64_t ranks() const { return pipeline.size * copies() * tensor.size; }
  /// Ranks that hold copies of the same parameters and may share them out: they see other rows or other tokens.
  int64_t copies() const { return data * sequence.size; }
  /// The replica that `rank` belongs to, as axes() lays ranks out.
  int64_t replica_of(int64_t rank) const { return rank / tensor.size / sequence.size % data; }
  /// Axes of the mesh, outermost first: "pipeline", "data", those of sequence parallelism if there is any, then those
  /// of the tensor mode. The ranks of the tensor mode exchange most, so they are next to one another.
  /// Errors: those of parallel::sequence_axes and parallel::tensor_axes.
  std::vector<comm::Mesh::Axis> axes() const;
};

}  // namespace colossal::distributed
