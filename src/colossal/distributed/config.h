// Config section [parallel]: how a model is distributed over ranks.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/parallel/expert/config.h"
#include "colossal/parallel/pipeline/plan.h"
#include "colossal/parallel/sequence/config.h"
#include "colossal/parallel/tensor/config.h"

namespace colossal::distributed {

/// Members of the config section [parallel]; fields() has the help text of each.
struct ParallelConfig {
  bool automatic = false;    ///< key `auto`: the search chooses every axis (predict/search.h)
  int64_t ranks_wanted = 0;  ///< key `ranks`: ranks of the run; 0 = with auto those there are, else ranks()
  int64_t data = 1;          ///< number of replicas of the model, each with its share of the batch
  parallel::ExpertConfig expert;
  parallel::SequenceConfig sequence;
  parallel::TensorConfig tensor;
  parallel::PipelineConfig pipeline;
  int64_t zero = 0;                   ///< ZeRO stage 0 to 3 (memory::Sharing); 0 = off
  int64_t zero_group = 0;             ///< ZeRO group size, a divisor of copies() and expert_copies(); 0 = all
  bool reshard_after_forward = true;  ///< ZeRO 3: free gathered parameters after forward
  double max_gathered_mib = 0;    ///< limit on gathered parameters in MiB; 0 = the chunk in use and the next one only
  std::string compress = "none";  ///< format of gradients sent between replicas; "none" = uncompressed
  double chunk_mib = 25;          ///< size of a chunk of parameters in MiB
  std::string plan;               ///< plan.json that auto_parallel::initialize() applies; "" = it finds one
  void fields(Fields& f);
  int64_t ranks() const { return pipeline.size * copies() * tensor.size; }
  /// Returns the number of replicas that read other rows of the batch: data x expert. The ranks of "expert" hold other
  /// experts, and replicas of all other parameters.
  int64_t replicas() const { return data * expert.size; }
  /// Returns the number of ranks that hold replicas of the same parameters and may share them (ZeRO). They read other
  /// rows of the batch or other tokens of a sequence. This holds for all parameters except experts.
  int64_t copies() const { return replicas() * sequence.size; }
  /// Returns the number of ranks that hold replicas of the same experts and may share them: data x sequence.
  int64_t expert_copies() const { return data * sequence.size; }
  /// Returns the replica, below replicas(), that `rank` belongs to, in the order of ranks that axes() gives.
  int64_t replica_of(int64_t rank) const { return rank / tensor.size / sequence.size % replicas(); }
  /// Returns the axes of the mesh, outermost first: "pipeline", "data", "expert" if there are several ranks along it,
  /// the axes of sequence parallelism if there is any, then the axes of the tensor mode. The ranks of the tensor mode
  /// exchange most, so they are adjacent. Errors: errors of parallel::sequence_axes and parallel::tensor_axes.
  std::vector<comm::Mesh::Axis> axes() const;
  /// Returns the layout of a model that only these axes split, of "pipeline", "sequence" and "tensor", beside "data"
  /// and "expert". Errors ("parallel"): an unknown name.
  ParallelConfig split_by(const std::vector<std::string>& axes) const;
};

}  // namespace colossal::distributed
