#include "colossal/schedule/schedule.h"

#include "colossal/base/error.h"

namespace colossal::schedule {

const char* to_string(Action action) {
  switch (action) {
    case Action::Forward:
      return "Forward";
    case Action::Backward:
      return "Backward";
    case Action::BackwardInput:
      return "BackwardInput";
    case Action::BackwardWeight:
      return "BackwardWeight";
    case Action::SendForward:
      return "SendForward";
    case Action::ReceiveForward:
      return "ReceiveForward";
    case Action::SendBackward:
      return "SendBackward";
    case Action::ReceiveBackward:
      return "ReceiveBackward";
    case Action::Reduce:
      return "Reduce";
    case Action::Update:
      return "Update";
  }
  return "unknown";
}

bool is_compute(Action action) { return action <= Action::BackwardWeight; }
bool is_backward(Action action) { return action == Action::Backward || action == Action::BackwardInput; }
bool is_send(Action action) { return action == Action::SendForward || action == Action::SendBackward; }
bool is_receive(Action action) { return action == Action::ReceiveForward || action == Action::ReceiveBackward; }
bool is_transfer(Action action) { return is_send(action) || is_receive(action); }

std::string to_string(const PipelineOp& step, int chunks) {
  const std::string chunk =
      chunks > 1 && step.chunk >= 0 ? std::string(1, static_cast<char>('a' + step.chunk % 26)) : "";
  const std::string part = concat(step.micro_batch, chunk);
  if (step.action == Action::Update) return "Update";
  if (step.action == Action::Reduce) return chunk.empty() ? "Reduce" : "Reduce " + chunk;
  if (step.action == Action::Forward) return "F" + part;
  if (is_backward(step.action)) return "B" + part;
  if (step.action == Action::BackwardWeight) return "W" + part;
  return concat(to_string(step.action), " ", part, is_send(step.action) ? " to " : " from ", step.peer);
}

Placement Placement::looped(int ranks, int chunks) { return {Kind::Looped, ranks, chunks, 1}; }
Placement Placement::zigzag(int ranks, int chunks) { return {Kind::Zigzag, ranks, chunks, 1}; }
Placement Placement::opposed(int ranks) { return {Kind::Opposed, ranks, 2, 2}; }

int Placement::rank_of(int pipe, int stage) const {
  const int along = stage % ranks_;
  const bool up = kind_ == Kind::Zigzag ? stage / ranks_ % 2 == 1 : pipe == 1;
  return up ? ranks_ - 1 - along : along;
}

int Placement::chunk_of(int pipe, int stage) const { return kind_ == Kind::Opposed ? pipe : stage / ranks_; }

int Placement::stage_of(int rank, int chunk) const {
  const bool up = kind_ != Kind::Looped && chunk % 2 == 1;
  const int along = up ? ranks_ - 1 - rank : rank;
  return kind_ == Kind::Opposed ? along : chunk * ranks_ + along;
}

int Placement::pipe_of(int chunk) const { return kind_ == Kind::Opposed ? chunk : 0; }

}  // namespace colossal::schedule
