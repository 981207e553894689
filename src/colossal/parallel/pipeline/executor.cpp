#include "colossal/parallel/pipeline/executor.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/schedule/forward_only.h"
#include "colossal/schedule/frozen_stages.h"

namespace colossal::parallel {
namespace {

using comm::Phase;
using schedule::Action;
using schedule::Step;

bool makes_gradients(const Step& step) {
  return step.action == Action::Backward || step.action == Action::BackwardInput ||
         step.action == Action::BackwardWeight;
}

Phase phase_of(const Step& step) {
  const bool is_forward =
      step.action == Action::Forward || step.action == Action::SendForward || step.action == Action::ReceiveForward;
  return is_forward ? Phase::Forward : Phase::Backward;
}

}  // namespace

PipelineExecutor::PipelineExecutor(schedule::Schedule schedule, const Surroundings& surroundings)
    : schedule_(schedule::without_frozen_stages(std::move(schedule), surroundings.first_trained)),
      around_(surroundings),
      transfers_(*around_.mesh, schedule_.placement, *around_.copies, around_.hidden),
      times_(around_.hidden.device()) {}

int PipelineExecutor::chunk_at(int chunk, int distance) const {
  const schedule::Placement& place = schedule_.placement;
  const int stage = place.stage_of(rank(), chunk) + distance, pipe = place.pipe_of(chunk);
  if (stage < 0 || stage >= place.stages() || place.rank_of(pipe, stage) != rank()) return -1;
  return place.chunk_of(pipe, stage);
}

void PipelineExecutor::clear() {
  passes_.clear();
  put_off_.clear();
  for (auto* tensors : {&inputs_, &gradients_, &outputs_, &input_gradients_}) tensors->clear();
  posted_inputs_.clear();
  posted_gradients_.clear();
}

void PipelineExecutor::train(const StageFunction& stage, const std::vector<int64_t>& hidden_sizes,
                             const BeforeGradients& before_gradients) {
  times_.clear();
  peak_live_ = 0;
  run(schedule_.ranks[rank()], stage, hidden_sizes, true, before_gradients);
}

std::vector<at::Tensor> PipelineExecutor::forward(const StageFunction& stage, int micro_batches,
                                                  const std::vector<int64_t>& hidden_sizes) {
  const at::NoGradGuard no_grad;
  results_.assign(micro_batches, {});
  run(schedule::forward_only(schedule_.placement, micro_batches).ranks[rank()], stage, hidden_sizes, false, {});
  if (!results_.empty() && !results_.front().defined()) results_.clear();
  return std::move(results_);
}

void PipelineExecutor::run(const std::vector<Step>& steps, const StageFunction& stage,
                           const std::vector<int64_t>& hidden_sizes, bool is_training,
                           const BeforeGradients& before_gradients) {
  clear();
  hidden_sizes_ = hidden_sizes;
  transfers_.begin(hidden_sizes);
  comm::Traffic& traffic = around_.mesh->world().traffic();
  const auto last = std::find_if(steps.rbegin(), steps.rend(), makes_gradients);
  // index; past all steps where there are none
  const auto last_gradients = static_cast<size_t>(steps.rend() - last) - 1;
  try {
    for (size_t i = 0; i < steps.size(); ++i) {
      const Step& step = steps[i];
      if (step.action == Action::Reduce || step.action == Action::Update) continue;
      const comm::PhaseScope phase(traffic, is_training ? phase_of(step) : traffic.phase());
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

void PipelineExecutor::do_step(const Step& step, const StageFunction& stage, bool is_training) {
  const Key key{step.chunk, step.micro_batch};
  const auto send = [&](std::map<Key, at::Tensor>& tensors) {
    transfers_.send(step, tensors.at(key));
    tensors.erase(key);
  };
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
      send(outputs_);
      break;
    case Action::SendBackward:
      send(input_gradients_);
      break;
    case Action::ReceiveForward:
      posted_inputs_[key] = step;
      transfers_.post(step);
      break;
    case Action::ReceiveBackward:
      posted_gradients_[key] = step;
      transfers_.post(step);
      break;
    case Action::Reduce:
    case Action::Update:
      break;
  }
}

at::Tensor PipelineExecutor::take(std::map<Key, at::Tensor>& handed, std::map<Key, Step>& posted, const Key& key) {
  if (const auto here = handed.find(key); here != handed.end()) {
    at::Tensor x = std::move(here->second);
    handed.erase(here);
    return x;
  }
  const auto step = posted.find(key);
  require(step != posted.end(), "pipeline", "micro-batch ", key.second, " has no input in chunk ", key.first,
          ": the schedule is invalid");
  at::Tensor x = transfers_.take(step->second);
  posted.erase(step);
  times_.begin();  // so far it waited
  return x;
}

void PipelineExecutor::forward_step(const Step& step, const StageFunction& stage, bool is_training) {
  const schedule::Placement& place = schedule_.placement;
  const Key key{step.chunk, step.micro_batch};
  const int index = place.stage_of(rank(), step.chunk);
  Pass pass;
  if (index > 0) {
    pass.input = take(inputs_, posted_inputs_, key);
    if (is_training && index > around_.first_trained) pass.input.requires_grad_();
  }
  pass.output = stage(index, step.micro_batch, pass.input);
  const bool is_last = index + 1 == place.stages();
  require(is_last || pass.output.sizes() == hidden_sizes_, "pipeline", "stage ", index,
          " must return a hidden state of sizes ", at::IntArrayRef(hidden_sizes_),
          ", which the next stage expects: got ", pass.output.sizes(),
          "; only the last stage may return other sizes than those that the run was given");
  if (is_last && !is_training) results_[step.micro_batch] = pass.output;
  if (!is_last) {
    const at::Tensor output = pass.output.detach();
    if (const int next = chunk_at(step.chunk, 1); next >= 0)
      inputs_[{next, step.micro_batch}] = output;
    else
      outputs_[key] = output;
  }
  if (!is_training || index < around_.first_trained) return;
  passes_[key] = std::move(pass);
  count_live();
}

void PipelineExecutor::backward_step(const Step& step) {
  const schedule::Placement& place = schedule_.placement;
  const Key key{step.chunk, step.micro_batch};
  const int index = place.stage_of(rank(), step.chunk);
  Pass pass = std::move(passes_.at(key));
  passes_.erase(key);
  const at::Tensor gradient =
      index + 1 == place.stages() ? at::ones_like(pass.output) : take(gradients_, posted_gradients_, key);
  const auto backward = [&] { torch::autograd::backward({pass.output}, {gradient}); };
  if (step.action == Action::Backward) {
    backward();
  } else {
    put_off_[key] = around_.deferred->collect(backward);
    count_live();
  }
  if (index <= around_.first_trained) return;
  if (const int before = chunk_at(step.chunk, -1); before >= 0)
    gradients_[{before, step.micro_batch}] = pass.input.grad();
  else
    input_gradients_[key] = pass.input.grad();
}

void PipelineExecutor::count_live() {
  const schedule::Placement& place = schedule_.placement;
  const double live = static_cast<double>(passes_.size()) + 0.5 * static_cast<double>(put_off_.size());
  peak_live_ = std::max(peak_live_, live * place.pipes() / place.chunks());
}

}  // namespace colossal::parallel
