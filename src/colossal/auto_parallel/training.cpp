#include "colossal/auto_parallel/training.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <set>

#include "colossal/auto_parallel/apply.h"
#include "colossal/auto_parallel/module_blocks.h"
#include "colossal/auto_parallel/module_plan.h"
#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/comm/launch/device.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/tensor/device_meant.h"
#include "colossal/train/micro_batches.h"
#include "colossal/train/module_folder.h"
#include "colossal/train/optimization.h"
#include "colossal/train/rank_inputs.h"

namespace colossal::auto_parallel {
namespace {

using comm::Phase;
using comm::PhaseScope;

void check_config(const comm::World& world, const run::Config& config) {
  const distributed::ParallelConfig& p = config.parallel;
  require(p.pipeline.size == 1 && p.sequence.size == 1 && p.expert.size == 1, "auto_parallel",
          "operators are divided over data and tensor only: got pipeline ", p.pipeline.size, ", sequence ",
          p.sequence.size, ", expert ", p.expert.size, "; set them to 1");
  require(p.tensor.mode == "1d", "auto_parallel", "the plan decides how tensors are divided: got tensor.mode ",
          p.tensor.mode, "; leave the mode out");
  require(config.precision.mode != "fp8", "precision",
          "mode fp8 needs this library's linear layers, which a user-defined module does not have; set precision.mode "
          "= \"bf16\"");
  require(config.memory.recompute == "none", "memory", "recompute needs the blocks of a built-in model: got ",
          config.memory.recompute, " for a user-defined module; set it to none");
  if (config.parallel.automatic) {
    require(p.plan.empty(), "parallel", "auto = true chooses a plan: got plan = ", p.plan, "; leave one of them out");
    return;
  }
  require(world.size() == p.data * p.tensor.size, "parallel",
          "the number of ranks must be parallel.data * parallel.tensor: got ", world.size(), " ranks, data ", p.data,
          ", tensor ", p.tensor.size, "; start that many or change them");
}

/// Returns the axes of the run. Gradients are summed over an axis of rows whatever the plan says, because replicas
/// along it share their states or compress their sums. Without either, the plan alone decides.
std::vector<comm::Mesh::Axis> axes_of(const run::Config& config) {
  const auto data = static_cast<int>(config.parallel.data), tensor = static_cast<int>(config.parallel.tensor.size);
  const bool shares = config.parallel.zero > 0 || config.parallel.compress != "none";
  return {shares ? comm::Mesh::batch("data", data) : comm::Mesh::Axis{"data", data}, {"tensor", tensor}};
}

std::set<std::string> frozen_names(const std::vector<ModuleParameter>& all) {
  std::set<std::string> names;
  for (const ModuleParameter& p : all)
    if (!p.leaf.requires_grad()) names.insert(p.name);
  return names;
}

nn::Parameters::Options parameter_options(const run::Config& config, at::Device device, std::set<std::string> frozen) {
  nn::Parameters::Options options{.dtype = config.precision.dtype(), .device = device};
  options.treatment = [frozen = std::move(frozen)](const std::string& name) {
    return nn::Treatment{.trains = !frozen.contains(name)};
  };
  return options;
}

}  // namespace

struct AutoTraining::State {
  State(comm::World& world, torch::nn::Module& module, ModulePlan made, std::vector<ModuleParameter> all,
        const run::Config& on_mesh, at::Device device)
      : config(on_mesh),
        planned(std::move(made)),
        mesh(world, axes_of(config)),
        module_parameters(std::move(all)),
        parameters(mesh.coordinates(), parameter_options(config, device, frozen_names(module_parameters))) {
    std::vector<ParameterShare> shares = parameter_shares(planned.traced.graph, planned.plan);
    set_shares(module_parameters, planned.traced, shares);
    add_blocks(parameters, module_parameters, shares, module, groups_of(planned.plan.mesh, mesh));
    of_graph.resize(shares.size());
    for (const ModuleParameter& p : module_parameters) {
      if (p.graph_index < 0) continue;
      of_graph[p.graph_index] = p.block;
      shares[p.graph_index].gradient_axes = p.block->spec.gradient_axes;
    }
    graph = std::make_unique<ShardedGraph>(planned.traced, planned.plan, mesh, std::move(shares));
    buffers = buffers_of(module, planned.traced, *graph);
    counters = batch_counters(buffers, planned.traced);
    optimization = std::make_unique<train::Optimization>(parameters, mesh, config);
    micro_batches =
        std::make_unique<train::MicroBatches>(*optimization, world, config.micro_batches(), train::LossOf::AllRanks);
    release_values(module_parameters);
    mesh.connect(device);
  }

  at::Tensor input(const at::Tensor& tensor) const {
    const at::Device device = parameters.options().device;
    const bool is_not_awaited = tensor.is_cpu() && tensor::is_accelerator(device);
    return tensor.to(device, tensor.is_floating_point() ? parameters.options().dtype : tensor.scalar_type(),
                     is_not_awaited);
  }
  /// Returns the loss of a micro-batch.
  at::Tensor run(const std::vector<at::Tensor>& inputs, int64_t micro_batch) {
    std::vector<at::Tensor> given, blocks;
    for (const at::Tensor& tensor : inputs) given.push_back(input(tensor));
    for (const nn::Parameter* p : of_graph) blocks.push_back(p->value);
    const int64_t turn = optimization->steps_done() * config.micro_batches() + micro_batch;
    const uint64_t seed = derive_seed(static_cast<uint64_t>(config.training.seed), "auto_parallel.dropout");
    const at::Tensor loss = graph->run(given, blocks, derive_seed(seed, static_cast<uint64_t>(turn)));
    const at::NoGradGuard no_grad;
    for (at::Tensor& counter : counters) counter.add_(1);
    return loss;
  }
  train::ModuleCheckpoints checkpoints_in(const std::string& folder) {
    train::ModuleCheckpoints checkpoints(folder, mesh, config, *optimization, parameters.options().device);
    for (const ModuleBuffer& buffer : buffers)
      checkpoints.add_buffer(buffer.name, block_of(buffer.value, buffer.spec, graph->groups()),
                             shard_spec(buffer.value.sizes().vec(), buffer.spec, graph->groups().mesh));
    return checkpoints;
  }

  run::Config config;
  ModulePlan planned;
  comm::Mesh mesh;
  std::vector<ModuleParameter> module_parameters;
  nn::Parameters parameters;
  std::vector<nn::Parameter*> of_graph;  // blocks of the graph's parameters
  std::unique_ptr<ShardedGraph> graph;
  std::vector<ModuleBuffer> buffers;
  std::vector<at::Tensor> counters;
  std::unique_ptr<train::Optimization> optimization;
  std::unique_ptr<train::MicroBatches> micro_batches;
};

AutoTraining::AutoTraining(std::unique_ptr<State> state) : state_(std::move(state)) {}
AutoTraining::~AutoTraining() = default;

int64_t AutoTraining::replica() const { return state_->mesh.index("data"); }
int64_t AutoTraining::replicas() const { return state_->mesh.size("data"); }
double AutoTraining::loss() const { return state_->micro_batches->loss(); }
int64_t AutoTraining::steps_done() const { return state_->optimization->steps_done(); }
const nn::Parameters& AutoTraining::parameters() const { return state_->parameters; }
memory::ChunkStore& AutoTraining::store() { return state_->optimization->store(); }
const plan::Plan& AutoTraining::plan() const { return state_->planned.plan; }

void AutoTraining::zero_grad() { state_->micro_batches->zero_grad(); }

void AutoTraining::backward(const std::vector<at::Tensor>& inputs) {
  State& s = *state_;
  s.micro_batches->require_room();
  at::Tensor loss;
  {
    const PhaseScope phase(s.mesh.world().traffic(), Phase::Forward);
    loss = s.run(inputs, s.micro_batches->done());
  }
  s.micro_batches->backward(loss);
}

train::StepResult AutoTraining::step() { return state_->micro_batches->step(); }

void AutoTraining::gather() {
  State& s = *state_;
  const PhaseScope phase(s.mesh.world().traffic(), Phase::Other);
  put_back(s.module_parameters, s.graph->groups());
  gather_buffers(s.buffers, s.graph->groups());
  s.optimization->end_pass();
}

std::map<comm::Traffic::Key, comm::Traffic::Count> AutoTraining::predicted_traffic() const {
  return auto_parallel::predicted_traffic(state_->planned.traced, state_->planned.plan);
}

std::map<std::string, comm::Traffic::Count> AutoTraining::predicted_gradient_traffic() {
  std::map<std::string, comm::Traffic::Count> traffic;
  for (const auto& chunk : store().chunks()) {
    const std::vector<std::string>& axes = chunk->slots().front().parameter->spec.gradient_axes;
    const int ranks = state_->mesh.coordinates().size(axes);
    if (!chunk->trained() || ranks == 1) continue;
    std::string name;
    for (const std::string& axis : axes) name += (name.empty() ? "" : "+") + axis;
    ++traffic[name].calls;
    traffic[name].bytes += 2.0 * (ranks - 1) * static_cast<double>(chunk->bytes()) / ranks;
  }
  return traffic;
}

void AutoTraining::save(const std::string& folder) { state_->checkpoints_in(folder).save({}); }

void AutoTraining::load(const std::string& folder) {
  state_->checkpoints_in(folder).load();
  zero_grad();
}

std::optional<train::Resumed> AutoTraining::resume(const std::string& folder) {
  std::optional<train::Resumed> resumed = state_->checkpoints_in(folder).resume();
  if (resumed) zero_grad();
  return resumed;
}

std::unique_ptr<AutoTraining> initialize(comm::World& world, torch::nn::Module& module,
                                         const std::function<at::Tensor(const std::vector<at::Tensor>&)>& loss,
                                         const std::vector<at::Tensor>& inputs, const run::Config& config,
                                         const AutoOptions& options) {
  const comm::PhaseScope phase(world.traffic(), comm::Phase::Setup);
  const auto everyone = train::group_of_all(world);
  train::require_same(*everyone, train::program_inputs());
  train::require_same(*everyone, train::config_inputs(config));
  train::require_same(*everyone, train::module_inputs(train::tensors_of(module)));
  check_config(world, config);
  const at::Device device = comm::choose_device(config.run.device, world.local_rank());
  const at::ScalarType dtype = config.precision.dtype();
  std::vector<ModuleParameter> parameters = take_parameters(module, device, dtype, *everyone);
  std::vector<at::Tensor> example;
  for (const at::Tensor& input : inputs)
    example.push_back(input.to(device, input.is_floating_point() ? dtype : input.scalar_type()));
  ModulePlan planned = plan_module(*everyone, module, loss, example, config, options);
  const run::Config on_mesh = config_on(config, planned.plan.mesh);
  on_mesh.validate();
  return std::make_unique<AutoTraining>(
      std::make_unique<AutoTraining::State>(world, module, std::move(planned), std::move(parameters), on_mesh, device));
}

}  // namespace colossal::auto_parallel
