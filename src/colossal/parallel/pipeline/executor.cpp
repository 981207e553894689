#include "colossal/parallel/pipeline/executor.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/schedule/forward_only.h"

namespace colossal::parallel {
namespace {

using comm::Phase;
using schedule::Action;
using schedule::PipelineOp;

bool makes_gradients(const PipelineOp& step) {
  return step.action == Action::Backward || step.action == Action::BackwardInput ||
         step.action == Action::BackwardWeight;
}

Phase phase_of(const PipelineOp& step) {
  const bool is_forward =
      step.action == Action::Forward || step.action == Action::SendForward || step.action == Action::ReceiveForward;
  return is_forward ? Phase::Forward : Phase::Backward;
}

}  // namespace

PipelineExecutor::PipelineExecutor(schedule::Schedule schedule, const Surroundings& surroundings)
    : schedule_(schedule::without_frozen_stages(std::move(schedule), surroundings.first_trained)),
      around_(surroundings),
      transfers_(*around_.mesh, schedule_.placement, *around_.copies, around_.hidden.device()),
      times_(around_.hidden.device()) {}

void PipelineExecutor::clear() {
  passes_.clear();
  put_off_.clear();
  for (auto* tensors : {&inputs_, &gradients_, &outputs_, &input_gradients_}) tensors->clear();
  posted_inputs_.clear();
  posted_gradients_.clear();
}

void PipelineExecutor::train(const StageFunction& stage, const std::vector<PassedState>& passed,
                             const BeforeGradients& before_gradients) {
  times_.clear();
  peak_live_ = 0;
  run(schedule_.ranks[rank()], stage, passed, true, before_gradients);
}

std::vector<at::Tensor> PipelineExecutor::forward(const StageFunction& stage, int micro_batches,
                                                  const std::vector<PassedState>& passed) {
  const at::NoGradGuard no_grad;
  results_.assign(micro_batches, {});
  run(schedule::forward_only(schedule_.placement, micro_batches).ranks[rank()], stage, passed, false, {});
  if (!results_.empty() && !results_.front().defined()) results_.clear();
  return std::move(results_);
}

void PipelineExecutor::run(const std::vector<PipelineOp>& steps, const StageFunction& stage,
                           std::vector<PassedState> passed, bool is_training, const BeforeGradients& before_gradients) {
  clear();
  routes_ = StateRoutes(schedule_.placement, std::move(passed));
  transfers_.begin();
  comm::Traffic& traffic = around_.mesh->world().traffic();
  const auto last = std::find_if(steps.rbegin(), steps.rend(), makes_gradients);
  // index of the last step that makes gradients; past all steps if there is none
  const auto last_gradients = static_cast<size_t>(steps.rend() - last) - 1;
  try {
    for (size_t i = 0; i < steps.size(); ++i) {
      const PipelineOp& step = steps[i];
      if (step.action == Action::Reduce || step.action == Action::Update) continue;
      const comm::PhaseScope phase(traffic, is_training ? phase_of(step) : traffic.phase());
      const comm::PassScope pass(traffic, {step.micro_batch, step.chunk});
      if (before_gradients && makes_gradients(step)) before_gradients(i == last_gradients);
      if (is_training) times_.begin();
      do_step(step, stage, is_training);
      if (is_training) times_.end(step);
    }
    transfers_.finish();
  } catch (...) {
    clear();
    throw;
  }
}

void PipelineExecutor::do_step(const PipelineOp& step, const StageFunction& stage, bool is_training) {
  const Key key{step.chunk, step.micro_batch};
  switch (step.action) {
    case Action::Forward:
      forward_step(step, stage, is_training);
      break;
    case Action::Backward:
    case Action::BackwardInput:
      backward_step(step);
      break;
    case Action::BackwardWeight:
      for (const auto& task : put_off_.at(key)) task();
      put_off_.erase(key);
      break;
    case Action::SendForward:
      send(step, outputs_);
      break;
    case Action::SendBackward:
      send(step, input_gradients_);
      break;
    case Action::ReceiveForward:
      posted_inputs_[key] = step;
      post(step);
      break;
    case Action::ReceiveBackward:
      posted_gradients_[key] = step;
      post(step);
      break;
    case Action::Reduce:
    case Action::Update:
      break;
  }
}

void PipelineExecutor::send(const PipelineOp& step, std::map<Key, Tensors>& tensors) {
  const auto left = tensors.find({step.chunk, step.micro_batch});
  if (left == tensors.end()) return;  // all readers are on ranks that need no message
  std::vector<at::Tensor> messages;
  for (auto& [passed, x] : left->second) messages.push_back(std::move(x));
  tensors.erase(left);
  transfers_.send(step, messages);
}

void PipelineExecutor::post(const PipelineOp& step) {
  const bool is_forward = step.action == Action::ReceiveForward;
  const int index = schedule_.placement.stage_of(rank(), step.chunk);
  std::vector<PipelineTransfers::Expected> expected;
  for (const StateRoutes::Stop& stop : is_forward ? routes_.arrivals(index) : routes_.departures(index)) {
    const PassedState& state = routes_[stop.passed];
    if (stop.is_local || (!is_forward && !state.has_gradient)) continue;
    expected.push_back({state.sizes, state.dtype.value_or(c10::typeMetaToScalarType(around_.hidden.dtype()))});
  }
  transfers_.post(step, expected);
}

PipelineExecutor::Tensors PipelineExecutor::take(const Key& key, const std::vector<StateRoutes::Stop>& stops,
                                                 bool is_forward) {
  Tensors tensors;
  auto& handed = is_forward ? inputs_ : gradients_;
  if (const auto here = handed.find(key); here != handed.end()) {
    tensors = std::move(here->second);
    handed.erase(here);
  }
  auto& posted = is_forward ? posted_inputs_ : posted_gradients_;
  std::vector<at::Tensor> messages;
  if (const auto step = posted.find(key); step != posted.end()) {
    messages = transfers_.take(step->second);
    posted.erase(step);
    times_.begin();  // because the time so far was spent waiting
  }
  auto message = messages.begin();
  for (const StateRoutes::Stop& stop : stops) {
    if (!is_forward && !routes_[stop.passed].has_gradient) continue;
    if (!stop.is_local && message != messages.end()) tensors[stop.passed] = std::move(*message++);
    require(tensors.contains(stop.passed), "pipeline", "micro-batch ", key.second, " has no ",
            is_forward ? "state `" : "gradient of state `", routes_[stop.passed].name, "` in chunk ", key.first,
            ": the schedule is invalid");
  }
  return tensors;
}

void PipelineExecutor::give(const PipelineOp& step, const StateRoutes::Stop& stop, const at::Tensor& x,
                            bool is_forward) {
  const schedule::Placement& place = schedule_.placement;
  const int chunk = stop.is_local ? place.chunk_of(place.pipe_of(step.chunk), stop.stage) : step.chunk;
  auto& given = is_forward ? (stop.is_local ? inputs_ : outputs_) : (stop.is_local ? gradients_ : input_gradients_);
  given[{chunk, step.micro_batch}][stop.passed] = x;
}

void PipelineExecutor::keep_output(Pass& pass, int stage, const StateRoutes::Stop& stop, const at::Tensor& output,
                                   bool is_training) {
  const PassedState& state = routes_[stop.passed];
  require(output.defined(), "pipeline", "stage ", stage, " must leave state `", state.name, "`, which stage ", state.to,
          " reads: got an undefined tensor");
  require(output.sizes() == state.sizes, "pipeline", "stage ", stage, " must leave state `", state.name,
          "` in the sizes ", at::IntArrayRef(state.sizes), ", which stage ", state.to, " expects: got ", output.sizes(),
          "; correct the sizes that the run was given (models::State::sizes)");
  const at::ScalarType dtype = state.dtype.value_or(c10::typeMetaToScalarType(around_.hidden.dtype()));
  require(output.scalar_type() == dtype, "pipeline", "stage ", stage, " must leave state `", state.name, "` in ",
          at::toString(dtype), ", which stage ", state.to, " expects: got ", at::toString(output.scalar_type()),
          "; correct the dtype that the run was given (models::State::dtype)");
  if (is_training && state.has_gradient) pass.outputs[stop.passed] = output;
}

void PipelineExecutor::forward_step(const PipelineOp& step, const StageFunction& stage, bool is_training) {
  const schedule::Placement& place = schedule_.placement;
  const Key key{step.chunk, step.micro_batch};
  const int index = place.stage_of(rank(), step.chunk);
  Pass pass;
  Tensors arrived = take(key, routes_.arrivals(index), true);
  std::vector<at::Tensor> states(routes_.states());
  for (const StateRoutes::Stop& stop : routes_.arrivals(index)) {
    if (stop.is_relay) continue;
    const PassedState& state = routes_[stop.passed];
    at::Tensor& x = states[state.state];
    x = std::move(arrived.at(stop.passed));
    arrived.erase(stop.passed);
    if (is_training && state.has_gradient) pass.inputs[stop.passed] = x.requires_grad_();
  }
  states = stage(index, step.micro_batch, std::move(states));
  for (const StateRoutes::Stop& stop : routes_.departures(index)) {
    if (stop.is_relay) {
      give(step, stop, arrived.at(stop.passed), true);
      continue;
    }
    const at::Tensor& output = states.at(routes_[stop.passed].state);
    keep_output(pass, index, stop, output, is_training);
    give(step, stop, output.detach(), true);
  }
  if (index + 1 == place.stages()) (is_training ? pass.result : results_[step.micro_batch]) = states.at(0);
  if (!is_training || index < around_.first_trained) return;
  passes_[key] = std::move(pass);
  count_live();
}

void PipelineExecutor::backward_step(const PipelineOp& step) {
  const schedule::Placement& place = schedule_.placement;
  const Key key{step.chunk, step.micro_batch};
  const int index = place.stage_of(rank(), step.chunk);
  Pass pass = std::move(passes_.at(key));
  passes_.erase(key);
  Tensors arrived = take(key, routes_.departures(index), false);
  std::vector<at::Tensor> from, gradients;
  const auto begin_at = [&](const at::Tensor& output, at::Tensor gradient) {
    if (!output.requires_grad()) return;  // its inputs have no gradient
    from.push_back(output);
    gradients.push_back(std::move(gradient));
  };
  if (pass.result.defined()) begin_at(pass.result, at::ones_like(pass.result));
  for (auto& [passed, output] : pass.outputs) begin_at(output, std::move(arrived.at(passed)));
  const auto backward = [&] {
    if (!from.empty()) torch::autograd::backward(from, gradients);
  };
  if (step.action == Action::Backward) {
    backward();
  } else {
    put_off_[key] = around_.deferred->collect(backward);
    count_live();
  }
  for (const StateRoutes::Stop& stop : routes_.arrivals(index)) {
    const PassedState& state = routes_[stop.passed];
    if (!state.has_gradient) continue;
    if (stop.is_relay) {
      give(step, stop, arrived.at(stop.passed), false);
      continue;
    }
    const at::Tensor& input = pass.inputs.at(stop.passed);
    give(step, stop, input.grad().defined() ? input.grad() : at::zeros_like(input), false);
  }
}

void PipelineExecutor::count_live() {
  const schedule::Placement& place = schedule_.placement;
  const double live = static_cast<double>(passes_.size()) + 0.5 * static_cast<double>(put_off_.size());
  peak_live_ = std::max(peak_live_, live * place.pipes() / place.chunks());
}

}  // namespace colossal::parallel
