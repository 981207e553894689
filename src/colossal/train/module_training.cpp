#include "colossal/train/module_training.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>

#include "colossal/base/error.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/launch/device.h"
#include "colossal/memory/use_observer.h"
#include "colossal/tensor/device_meant.h"
#include "colossal/train/fill_module.h"
#include "colossal/train/micro_batches.h"
#include "colossal/train/module_folder.h"
#include "colossal/train/optimization.h"
#include "colossal/train/rank_inputs.h"

namespace colossal::train {
namespace {

using comm::Phase;
using comm::PhaseScope;

void check(const comm::World& world, const run::Config& config) {
  const distributed::ParallelConfig& p = config.parallel;
  require(
      !p.automatic, "parallel",
      "auto needs a plan of the module's operators: got auto = true; train with auto_parallel::initialize(), or set "
      "parallel.data and leave auto and ranks out");
  require(
      p.tensor.size == 1 && p.pipeline.size == 1 && p.sequence.size == 1 && p.expert.size == 1, "parallel",
      "a user-defined module supports data parallelism and ZeRO only: got tensor ", p.tensor.size, ", pipeline ",
      p.pipeline.size, ", sequence ", p.sequence.size, ", expert ", p.expert.size,
      "; set all to 1 and use parallel.data with parallel.zero",
      p.tensor.size > 1 ? ", or train with auto_parallel::initialize(), which divides operators over tensor, too" : "");
  require(config.precision.mode != "fp8", "precision",
          "mode fp8 needs this library's linear layers, which a user-defined module does not have; set precision.mode "
          "= \"bf16\"");
  require(config.memory.recompute == "none", "memory", "recompute needs the blocks of a built-in model: got ",
          config.memory.recompute, " for a user-defined module; set it to none");
  require(world.size() == p.data, "parallel", "the number of ranks must be parallel.data: got ", world.size(),
          " ranks, data ", p.data, "; start that many or change parallel.data");
  config.validate();
}

using Named = ModuleTensors::Named;

void check(const ModuleTensors& tensors) {
  for (const auto* named : {&tensors.parameters, &tensors.buffers})
    for (const auto& [name, value] : *named)
      require(value.defined(), "model", "every tensor of a module must be defined: got none for ", name,
              "; leave it out");
  require(std::any_of(tensors.parameters.begin(), tensors.parameters.end(),
                      [](const auto& p) { return p.second.requires_grad(); }),
          "model",
          "the module has no parameter that requires a gradient: register its layers with register_module, its tensors "
          "with register_parameter");
}

/// Returns the indices of `parameters` in the order in which `first_pass` uses them on rank 0. Restores the buffers.
std::vector<size_t> order_of_use(const Named& parameters, const Named& buffers, const std::function<void()>& first_pass,
                                 comm::Group& replicas) {
  std::vector<at::Tensor> saved, used;
  for (const auto& [name, value] : buffers) saved.push_back(value.clone());
  for (const auto& [name, value] : parameters) used.push_back(value);
  const std::vector<size_t> mine = memory::order_of_first_use(used, first_pass);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < saved.size(); ++i) buffers[i].second.copy_(saved[i]);
  at::Tensor order = at::empty({static_cast<int64_t>(mine.size())}, at::kLong);
  std::copy(mine.begin(), mine.end(), order.mutable_data_ptr<int64_t>());
  replicas.broadcast(order, 0).wait();  // chunks must be the same on all ranks
  const int64_t* from = order.const_data_ptr<int64_t>();
  return {from, from + order.numel()};
}

/// Moves the tensor itself, so that all its handles see it.
void move_to(const at::Tensor& tensor, const at::TensorOptions& options) {
  const at::Tensor moved = tensor.detach().to(options);
  if (!moved.is_alias_of(tensor)) tensor.set_data(moved);
}

void adopt(nn::Parameters& parameters, const ModuleTensors& tensors, const run::Config& config,
           const std::function<void()>& first_pass, comm::Group& replicas) {
  const Named& named = tensors.parameters;
  const auto declare = [&](nn::Parameters& to, size_t i) {
    to.adopt(named[i].first, named[i].second, named[i].second.dim() >= 2);
  };
  nn::Parameters registered(parameters.coordinates(), parameters.options());
  for (size_t i = 0; i < named.size(); ++i) declare(registered, i);
  config.optimizer.groups.apply(registered);  // refuses invalid groups here, before any communication
  std::vector<size_t> order(named.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (first_pass) order = order_of_use(named, tensors.buffers, first_pass, replicas);
  for (const size_t i : order) declare(parameters, i);
  for (nn::Parameter& p : parameters)
    for (const at::Tensor& table : tensors.tables) p.hidden_matrix = p.hidden_matrix && !p.value.is_same(table);
}

/// Marks the parameters that were on meta in `given` and have no values in `tensors`.
void mark_empty(nn::Parameters& parameters, const ModuleTensors& given, const ModuleTensors& tensors) {
  for (nn::Parameter& p : parameters)
    for (size_t i = 0; i < given.parameters.size() && !p.is_empty; ++i)
      p.is_empty = given.parameters[i].second.is_meta() && p.value.is_same(tensors.parameters[i].second);
}

/// Replicas that start with different values would stay different unnoticed, because their gradients are the same.
void start_from_first(const at::Tensor& value, comm::Group& replicas) {
  if (value.numel() == 0) return;
  const at::NoGradGuard no_grad;
  at::Tensor sent = value.detach().contiguous().view(-1);
  replicas.broadcast(sent, 0).wait();
  if (!sent.is_alias_of(value)) value.detach().copy_(sent.view(value.sizes()));
}

}  // namespace

ModuleTraining::ModuleTraining(comm::World& world, const ModuleTensors& given, const run::Config& config,
                               const std::function<void()>& first_pass, at::Device device, const FirstValues& values)
    : config_(config),
      mesh_(world, config.parallel.axes()),
      parameters_(mesh_.coordinates(), {.dtype = config.precision.dtype(), .device = device}),
      buffers_(given.buffers) {
  const PhaseScope phase(world.traffic(), Phase::Setup);
  comm::Group& replicas = mesh_.group(mesh_.coordinates().batch_axes());
  const bool lacks_values = has_empty(given, device);
  ModuleTensors tensors = given;
  if (lacks_values) comm::agree(mesh_.all(), at::kCPU, [&] { tensors = replaced(given, values, device); });
  for (const auto* named : {&tensors.parameters, &tensors.buffers})
    for (const auto& [name, value] : *named) move_to(value, at::device(device));
  adopt(parameters_, tensors, config, first_pass, replicas);
  if (lacks_values) mark_empty(parameters_, given, tensors);
  for (const auto& [name, value] : buffers_)
    if (value.is_floating_point()) move_to(value, at::dtype(dtype()));
  for (const nn::Parameter& p : parameters_)
    if (!p.is_empty) start_from_first(p.value, replicas);
  optimization_ = std::make_unique<Optimization>(parameters_, mesh_, config_);
  if (lacks_values || values.weights) fill(given, values, buffers_, *optimization_, mesh_);
  if (values.weights)
    require_same_weights(mesh_, optimization_->weights(), optimization_->state().sharers, WeightOrigin::Read);
  for (const auto& [name, value] : buffers_) start_from_first(value, replicas);
  micro_batches_ = std::make_unique<MicroBatches>(*optimization_, world, config_.micro_batches(), LossOf::Rank);
  mesh_.connect(device);
}

ModuleTraining::~ModuleTraining() = default;

at::Tensor ModuleTraining::input(const at::Tensor& tensor) const {
  const bool is_not_awaited = tensor.is_cpu() && tensor::is_accelerator(device());
  return tensor.to(device(), tensor.is_floating_point() ? dtype() : tensor.scalar_type(), is_not_awaited);
}

int64_t ModuleTraining::steps_done() const { return optimization_->steps_done(); }

memory::ChunkStore& ModuleTraining::store() { return optimization_->store(); }

std::optional<DeviceUse> ModuleTraining::device_use() const { return optimization_->device_use(); }

void ModuleTraining::end_pass() {
  // Without sharded parameters a rank may evaluate alone.
  if (config_.parallel.zero == 3)
    optimization_->end_pass();
  else
    optimization_->close_pass();  // step() throws errors of the pass, on all ranks
  if (record_) record_->pause();
}

void ModuleTraining::zero_grad() {
  if (record_) record_->flush();
  micro_batches_->zero_grad();
}

void ModuleTraining::backward(const at::Tensor& loss, double weight) { micro_batches_->backward(loss, weight); }

StepResult ModuleTraining::step() {
  require_no_scope("step()");
  StepResult result = micro_batches_->step();
  if (record_) record_->end_step(steps_done(), result, micro_batches_->loss(), micro_batches_->weight());
  return result;
}

void ModuleTraining::record(const std::string& folder, const std::string& module,
                            const std::vector<std::string>& command) {
  record_.reset();  // writes its last row
  recorded_in_ = folder, recorded_module_ = module, recorded_command_ = command;
  const RecordedStart start{.steps_done = steps_done(),
                            .parameters = parameters_.numel(),
                            .device = device(),
                            .module = module,
                            .command = command};
  record_ = std::make_unique<ModuleRecord>(folder, mesh_, config_, start);
}

void ModuleTraining::note(const std::string& name, double value) {
  if (record_) record_->note(name, value);
}

void ModuleTraining::resumed() {
  zero_grad();
  if (record_) record(recorded_in_, recorded_module_, recorded_command_);
}

double ModuleTraining::loss() const { return micro_batches_->loss(); }

void ModuleTraining::require_no_scope(const char* function) const {
  require(*open_scopes_ == 0, "training", function,
          " must be called outside of gathered(), because it changes the values: got ", *open_scopes_,
          " open scopes; end them first");
}

Gathered ModuleTraining::gathered(std::span<const at::Tensor> tensors) {
  std::vector<const nn::Parameter*> chosen;
  for (const nn::Parameter& p : parameters_)
    if (tensors.empty()) chosen.push_back(&p);
  for (const at::Tensor& tensor : tensors) {
    const auto& all = parameters_.declared();
    const auto found = std::find_if(all.begin(), all.end(), [&](const auto& p) { return p.value.is_same(tensor); });
    require(found != all.end(), "training", "gathered() takes parameters of the module: got a tensor of shape ",
            tensor.defined() ? concat(tensor.sizes()) : "none", " that is none of them; pass the module's own handle");
    chosen.push_back(&*found);
  }
  const PhaseScope phase(mesh_.world().traffic(), Phase::Other);
  Gathered scope(std::move(chosen), optimization_->store(), open_scopes_);
  optimization_->check_pass();
  scope.begin_check();
  return scope;
}

WholeTensors ModuleTraining::named_tensors() {
  optimization_->keep_written();
  return WholeTensors(*optimization_, mesh_, buffers_);
}

void ModuleTraining::save_pretrained(const std::string& folder,
                                     const std::vector<std::pair<std::string, std::string>>& names,
                                     std::optional<at::ScalarType> dtype, int64_t max_file_bytes) {
  WholeTensors tensors = named_tensors();
  save_weights(folder, tensors, mesh_.all(), names, dtype, max_file_bytes);
}

double ModuleTraining::mean(double value) {
  const PhaseScope phase(mesh_.world().traffic(), Phase::Other);
  return comm::sum(mesh_.all(), value) / config_.parallel.data;
}

ModuleCheckpoints ModuleTraining::checkpoints_in(const std::string& folder, const ModuleTensors::Named& buffers) {
  ModuleCheckpoints checkpoints(folder, mesh_, config_, *optimization_, device());
  for (const auto& [name, value] : buffers)
    checkpoints.add_buffer(name, value, tensor::ShardSpec::whole(value.sizes().vec()));
  return checkpoints;
}

void ModuleTraining::save(const std::string& folder, const nlohmann::json& extra) {
  // Any replica may write a tensor, and replicas may have other statistics, so all of them offer those of rank 0.
  ModuleTensors::Named buffers;
  for (const auto& [name, value] : buffers_) {
    buffers.emplace_back(name, value.detach().clone());
    start_from_first(buffers.back().second, mesh_.group(mesh_.coordinates().batch_axes()));
  }
  optimization_->keep_written();
  checkpoints_in(folder, buffers).save(extra);
  if (record_) record_->flush(), record_->pause();
}

Resumed ModuleTraining::load(const std::string& folder) {
  require_no_scope("load()");
  optimization_->keep_written();
  Resumed found = checkpoints_in(folder, buffers_).load();
  resumed();
  return found;
}

std::optional<Resumed> ModuleTraining::resume(const std::string& folder) {
  require_no_scope("resume()");
  optimization_->keep_written();
  std::optional<Resumed> found = checkpoints_in(folder, buffers_).resume();
  if (found) resumed();
  return found;
}

std::unique_ptr<ModuleTraining> initialize(comm::World& world, const ModuleTensors& tensors, const run::Config& config,
                                           const std::function<void()>& first_pass, std::optional<at::Device> given,
                                           const FirstValues& values) {
  // The inputs are compared before check(), because a rank with another config might pass check() and then wait for
  // ranks that do not.
  const auto everyone = group_of_all(world);
  require_same(*everyone, program_inputs());
  require_same(*everyone, config_inputs(config));
  require_same(*everyone, module_inputs(tensors));
  check(world, config);
  check(tensors);
  const at::Device device = given ? *given : comm::choose_device(config.run.device, world.local_rank());
  comm::agree(*everyone, at::kCPU, [&] { check_first_values(tensors, values, device, first_pass != nullptr); });
  return std::make_unique<ModuleTraining>(world, tensors, config, first_pass, device, values);
}

std::unique_ptr<ModuleTraining> initialize(comm::World& world, torch::nn::Module& module, const run::Config& config,
                                           const std::function<void()>& first_pass, std::optional<at::Device> device) {
  return initialize(world, tensors_of(module), config, first_pass, device);
}

}  // namespace colossal::train
