// The section [parallel] expert: the number of ranks that divide the experts of each mixture layer, and what the ranks
// of a tensor group do with experts. Needs no LibTorch.
//
//   const parallel::ExpertConfig config{.size = 4, .tensor = "deal"};
//   parallel::check_experts(8, config);                              // 8 experts, two on each of the 4 ranks
//   const std::vector<comm::Mesh::Axis> axes = parallel::expert_axes(config);
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/comm/mesh.h"
#include "colossal/parallel/tensor/config.h"

namespace colossal::parallel {

/// The section [parallel] expert.
struct ExpertConfig {
  int64_t size = 1;             ///< ranks that divide the experts of a layer; they read other rows of the batch
  std::string tensor = "deal";  ///< "deal": the ranks of a tensor group hold different experts; "split": parts of each
  std::string compress = "none";  ///< format of hidden states that a forward pass sends to experts: "none" or "fp8"
  int64_t node = 0;  ///< ranks of a node, to which a token is sent once and passed on there; 0 = straight to each rank
  void fields(Fields& f);
  bool compresses() const { return compress != "none"; }
  bool splits() const { return tensor == "split"; }
};

/// Returns the axes that a mesh needs for `config`: "expert", which deals out rows, or none for one rank. It goes
/// between "data" and the axes of sequence parallelism.
std::vector<comm::Mesh::Axis> expert_axes(const ExpertConfig& config);

/// Checks the number of experts of a mixture layer; 0 = the model is dense. Call it before groups are made; it does not
/// communicate. Errors ("parallel"): a dense model with a size above 1. ("experts"): a count that size does not divide;
/// the message names the nearest ones that it divides.
void check_experts(int64_t count, const ExpertConfig& config);

/// Checks expert.tensor against the mode of tensor parallelism. Errors ("parallel"): "split" in another mode than 1d.
void check_expert_tensor(const ExpertConfig& config, const TensorConfig& tensor);

/// Checks expert.node against the ranks that hold different experts: expert.size, times the ranks of a tensor group
/// unless these split experts. It does not communicate. Errors ("parallel"): node = 1; a node for one such rank; a node
/// that does not divide them. The message names the nearest numbers that do.
void check_expert_node(const ExpertConfig& config, const TensorConfig& tensor);

}  // namespace colossal::parallel
