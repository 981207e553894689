// The parameters and buffers of a module as this rank's blocks, and back.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "colossal/auto_parallel/apply.h"
#include "colossal/checkpoint/checkpoint.h"
#include "colossal/nn/parameter.h"

namespace colossal::auto_parallel {

/// A parameter of a module, of which a parameter of this rank is a block.
struct ModuleParameter {
  std::string name;      ///< the first name under which the module registers it
  at::Tensor leaf;       ///< the module's own tensor
  at::Tensor exact;      ///< its initial value in the module's dtype, until the block is made
  int graph_index = -1;  ///< index in Graph::parameters; -1 = no node reads it
  plan::Spec spec{};
  nn::Parameter* block = nullptr;
};

/// A buffer of a module. Running statistics of batch norm are divided as the channels of their node: a rank keeps its
/// channels up to date, and the rest holds older values.
struct ModuleBuffer {
  std::string name;
  at::Tensor value;  ///< the module's own tensor
  plan::Spec spec{};
};

/// Moves a module to `device` and its floating-point tensors to `dtype`, after all ranks got rank 0's values. Returns
/// its parameters, each once. Collective. Communication: a broadcast of each parameter and buffer.
/// Errors ("model"): no parameter that requires a gradient; a parameter that is not a floating-point leaf.
std::vector<ModuleParameter> take_parameters(torch::nn::Module& module, at::Device device, at::ScalarType dtype,
                                             comm::Group& everyone);

/// Finds the parameters in a traced graph and sets their specs.
/// Errors ("auto_parallel"): a parameter of the graph that the module does not have.
void set_shares(std::vector<ModuleParameter>& all, const trace::TracedModule& traced,
                const std::vector<ParameterShare>& shares);
/// Declares the blocks in `parameters` and fills them. A parameter that no node reads is whole. Weight decay and
/// hidden matrices are those of ModuleTraining.
void add_blocks(nn::Parameters& parameters, std::vector<ModuleParameter>& all,
                const std::vector<ParameterShare>& shares, const torch::nn::Module& module, const MeshGroups& groups);
/// Takes the memory of the module's parameters away. put_back() gives it back.
void release_values(std::vector<ModuleParameter>& all);
/// Gathers the blocks into the module's parameters. Collective.
void put_back(std::vector<ModuleParameter>& all, const MeshGroups& groups);

/// Returns the buffers of the module, with the specs of running statistics.
std::vector<ModuleBuffer> buffers_of(torch::nn::Module& module, const trace::TracedModule& traced,
                                     const ShardedGraph& graph);
/// Returns the counters of batches that batch norm advances in each run ("num_batches_tracked").
std::vector<at::Tensor> batch_counters(const std::vector<ModuleBuffer>& buffers, const trace::TracedModule& traced);
/// Gathers the running statistics into the module's buffers. Collective.
void gather_buffers(std::vector<ModuleBuffer>& buffers, const MeshGroups& groups);

}  // namespace colossal::auto_parallel
