#include "colossal/auto_parallel/module_blocks.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/comm/group.h"
#include "colossal/plan/links.h"

namespace colossal::auto_parallel {
namespace {

/// Gives all ranks rank 0's values, because replicas that start differently would stay different unnoticed.
void send_from_first(const at::Tensor& value, comm::Group& everyone) {
  if (!value.defined() || value.numel() == 0 || everyone.size() == 1) return;
  const at::NoGradGuard no_grad;
  at::Tensor sent = value.detach().contiguous().view(-1);
  everyone.broadcast(sent, 0).wait();
  if (!sent.is_alias_of(value)) value.detach().copy_(sent.view(value.sizes()));
}

/// Returns the whole tensor of which this rank has a block. Collective unless the block is whole.
at::Tensor whole_of(const at::Tensor& block, const std::vector<int64_t>& shape, const plan::Spec& spec,
                    const MeshGroups& groups) {
  const plan::TensorType type{shape, "float32"};  // the path does not depend on the dtype
  const plan::Spec whole(shape.size(), 0);
  return run_calls(block, spec, plan::convert(type, spec, whole, groups.mesh, plan::Links{}).calls, groups);
}

/// Calls `visit` with the table of each embedding of the module.
template <class Visit>
void for_tables(const torch::nn::Module& module, const Visit& visit) {
  const auto visit_part = [&](const torch::nn::Module& part) {
    if (part.name() != "torch::nn::EmbeddingImpl") return;
    for (const at::Tensor& table : part.parameters(/*recurse=*/false)) visit(table);
  };
  visit_part(module);
  for (const auto& part : module.modules(/*include_self=*/false)) visit_part(*part);
}

}  // namespace

std::vector<ModuleParameter> take_parameters(torch::nn::Module& module, at::Device device, at::ScalarType dtype,
                                             comm::Group& everyone) {
  module.to(device);
  std::vector<ModuleParameter> all;
  bool any_trains = false;
  for (const auto& named : module.named_parameters()) {
    const at::Tensor& leaf = named.value();
    if (std::any_of(all.begin(), all.end(), [&](const ModuleParameter& p) { return p.leaf.is_same(leaf); })) continue;
    require(leaf.is_leaf() && leaf.is_floating_point(), "model", "parameter ", named.key(),
            " must be a floating-point leaf of autograd");
    any_trains = any_trains || leaf.requires_grad();
    all.push_back({named.key(), leaf, {}});
  }
  require(any_trains, "model",
          "the module has no parameter that requires a gradient: register its layers with register_module, its tensors "
          "with register_parameter");
  for (ModuleParameter& p : all) {
    send_from_first(p.leaf, everyone);
    p.exact = p.leaf.detach();
    if (p.leaf.scalar_type() != dtype) p.leaf.set_data(p.leaf.detach().to(dtype));
  }
  for (const auto& named : module.named_buffers()) {
    at::Tensor buffer = named.value();
    send_from_first(buffer, everyone);
    if (buffer.defined() && buffer.is_floating_point() && buffer.scalar_type() != dtype)
      buffer.set_data(buffer.to(dtype));  // sets the module's own handle, so that all handles see it
  }
  return all;
}

void set_shares(std::vector<ModuleParameter>& all, const trace::TracedModule& traced,
                const std::vector<ParameterShare>& shares) {
  for (ModuleParameter& p : all) p.spec.assign(static_cast<size_t>(p.leaf.dim()), 0);
  for (size_t i = 0; i < traced.parameters.size(); ++i) {
    const auto found = std::find_if(all.begin(), all.end(),
                                    [&](const ModuleParameter& p) { return p.leaf.is_same(traced.parameters[i]); });
    require(found != all.end(), "auto_parallel", "parameters of the graph must be those of the module: got ",
            traced.graph.parameters[i].name, "; register it");
    found->graph_index = static_cast<int>(i);
    found->spec = shares[i].spec;
  }
}

void add_blocks(nn::Parameters& parameters, std::vector<ModuleParameter>& all,
                const std::vector<ParameterShare>& shares, const torch::nn::Module& module, const MeshGroups& groups) {
  const at::NoGradGuard no_grad;
  for (ModuleParameter& p : all) {
    const std::vector<std::string> sums =
        p.graph_index < 0 ? std::vector<std::string>{} : shares[p.graph_index].gradient_axes;
    p.block = &parameters.add(p.name, shard_spec(p.exact.sizes().vec(), p.spec, groups.mesh, sums), nn::Init::zeros(),
                              p.exact.dim() >= 2);
    p.block->hidden_matrix = p.exact.dim() >= 2;
    p.block->value.set_data(block_of(p.exact, p.spec, groups).clone(at::MemoryFormat::Contiguous));
    p.exact = at::Tensor();
  }
  for_tables(module, [&](const at::Tensor& table) {
    for (ModuleParameter& p : all)
      if (p.leaf.is_same(table)) p.block->hidden_matrix = false;
  });
}

void release_values(std::vector<ModuleParameter>& all) {
  for (ModuleParameter& p : all)
    p.leaf.set_data(nn::without_memory(p.leaf.sizes(), p.leaf.options().requires_grad(false)));
}

void put_back(std::vector<ModuleParameter>& all, const MeshGroups& groups) {
  const at::NoGradGuard no_grad;
  for (ModuleParameter& p : all) {
    const at::Tensor block = p.block->value.detach().clone(at::MemoryFormat::Contiguous);  // gathers it under ZeRO 3
    p.leaf.set_data(whole_of(block, p.block->spec.shape, p.spec, groups));
  }
}

std::vector<ModuleBuffer> buffers_of(torch::nn::Module& module, const trace::TracedModule& traced,
                                     const ShardedGraph& graph) {
  std::vector<ModuleBuffer> buffers;
  for (const auto& named : module.named_buffers()) {
    if (!named.value().defined()) continue;
    ModuleBuffer buffer{named.key(), named.value(), plan::Spec(static_cast<size_t>(named.value().dim()), 0)};
    for (const trace::TracedModule::Statistics& s : traced.statistics)
      if (buffer.value.is_same(s.mean) || buffer.value.is_same(s.variance)) buffer.spec = graph.statistics_spec(s);
    buffers.push_back(std::move(buffer));
  }
  return buffers;
}

std::vector<at::Tensor> batch_counters(const std::vector<ModuleBuffer>& buffers, const trace::TracedModule& traced) {
  constexpr const char* kMean = "running_mean";
  constexpr const char* kCounter = "num_batches_tracked";
  std::vector<at::Tensor> counters;
  for (const trace::TracedModule::Statistics& s : traced.statistics) {
    for (const ModuleBuffer& mean : buffers) {
      if (!mean.value.is_same(s.mean) || !mean.name.ends_with(kMean)) continue;
      const std::string wanted = mean.name.substr(0, mean.name.size() - std::string(kMean).size()) + kCounter;
      for (const ModuleBuffer& counter : buffers)
        if (counter.name == wanted) counters.push_back(counter.value);
    }
  }
  return counters;
}

void gather_buffers(std::vector<ModuleBuffer>& buffers, const MeshGroups& groups) {
  const at::NoGradGuard no_grad;
  for (ModuleBuffer& buffer : buffers) {
    if (plan::blocks_of(buffer.spec, groups.mesh) == 1) continue;
    const at::Tensor block = block_of(buffer.value, buffer.spec, groups).clone();
    buffer.value.copy_(whole_of(block, buffer.value.sizes().vec(), buffer.spec, groups));
  }
}

}  // namespace colossal::auto_parallel
