#include "colossal/schedule/check.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/schedule/simulate.h"

namespace colossal::schedule {
namespace {

/// The content of a message: the hidden state or the gradient that is the input of a stage.
struct Message {
  bool forward;
  int micro_batch, stage;
  auto operator<=>(const Message&) const = default;
};

std::string to_string(const Message& message) {
  return concat(message.forward ? "the hidden state" : "the gradient", " of micro-batch ", message.micro_batch,
                " for stage ", message.stage);
}

/// Checks the list of one rank, step by step.
class RankCheck {
 public:
  RankCheck(const Schedule& schedule, int rank) : schedule_(schedule), at_(schedule.placement), rank_(rank) {}
  void run();

 private:
  template <class... Parts>
  void rule(bool ok, const Parts&... parts) const {
    if (ok) return;
    throw Error("pipeline", concat(schedule_.name, ", rank ", rank_, ", step ", index_, " (",
                                   to_string(*step_, at_.chunks()), "): ", parts...));
  }
  bool once(Action action) { return done_.insert({action, step_->micro_batch, step_->chunk}).second; }
  bool did(Action action, int chunk) const { return done_.count({action, step_->micro_batch, chunk}) > 0; }
  bool did_backward(int chunk) const { return did(Action::Backward, chunk) || did(Action::BackwardInput, chunk); }
  int stage() const { return at_.stage_of(rank_, step_->chunk); }
  int neighbour(int stage) const { return at_.rank_of(at_.pipe_of(step_->chunk), stage); }

  void check_names() const;
  void check_compute();
  void check_transfer();
  void check_end();

  const Schedule& schedule_;
  const Placement& at_;
  const int rank_;
  size_t index_ = 0;
  const PipelineOp* step_ = nullptr;
  std::set<std::tuple<Action, int, int>> done_;  // (action, micro-batch, chunk)
};

void RankCheck::check_names() const {
  const bool has_micro_batch = step_->action != Action::Reduce && step_->action != Action::Update;
  if (step_->action != Action::Update)
    rule(step_->chunk >= 0 && step_->chunk < at_.chunks(), "there is no chunk ", step_->chunk);
  if (!has_micro_batch) return;
  rule(step_->micro_batch >= 0 && step_->micro_batch < schedule_.micro_batches, "there is no micro-batch ",
       step_->micro_batch);
  rule(schedule_.pipe_of(step_->micro_batch) == at_.pipe_of(step_->chunk),
       "this micro-batch belongs to the other pipe");
}

void RankCheck::check_compute() {
  rule(once(step_->action), "occurs twice");
  rule(!did(Action::Reduce, step_->chunk) && done_.count({Action::Reduce, -1, step_->chunk}) == 0,
       "is after the Reduce of its chunk");
  const int pipe = at_.pipe_of(step_->chunk), stage = this->stage();
  if (step_->action == Action::Forward) {
    if (stage == 0) return;
    const bool local = neighbour(stage - 1) == rank_;
    rule(local ? did(Action::Forward, at_.chunk_of(pipe, stage - 1)) : did(Action::ReceiveForward, step_->chunk),
         "its hidden state is missing: no ", local ? "Forward of the stage before" : "ReceiveForward", " before it");
    return;
  }
  if (step_->action == Action::BackwardWeight) {
    rule(did(Action::BackwardInput, step_->chunk), "is before its BackwardInput");
    return;
  }
  rule(did(Action::Forward, step_->chunk), "is before its Forward");
  rule(!(did(Action::Backward, step_->chunk) && did(Action::BackwardInput, step_->chunk)),
       "this micro-batch has gone backward already");
  if (stage + 1 == at_.stages()) return;
  const bool local = neighbour(stage + 1) == rank_;
  rule(local ? did_backward(at_.chunk_of(pipe, stage + 1)) : did(Action::ReceiveBackward, step_->chunk),
       "its gradient is missing: no ", local ? "backward of the next stage" : "ReceiveBackward", " before it");
}

void RankCheck::check_transfer() {
  rule(once(step_->action), "occurs twice");
  // true if the peer holds the next stage
  const bool down = step_->action == Action::SendForward || step_->action == Action::ReceiveBackward;
  const int other = stage() + (down ? 1 : -1);
  rule(other >= 0 && other < at_.stages(), "there is no stage on the other side");
  rule(step_->peer == neighbour(other), "its peer must be rank ", neighbour(other), ", which holds stage ", other);
  rule(step_->peer != rank_, "a rank does not send to itself");
  if (step_->action == Action::SendForward) rule(did(Action::Forward, step_->chunk), "is before its Forward");
  if (step_->action == Action::SendBackward) rule(did_backward(step_->chunk), "is before its backward");
}

void RankCheck::run() {
  const auto& steps = schedule_.ranks[rank_];
  for (index_ = 0; index_ < steps.size(); ++index_) {
    step_ = &steps[index_];
    rule(done_.count({Action::Update, -1, -1}) == 0, "is after Update");
    check_names();
    if (is_compute(step_->action)) {
      check_compute();
    } else if (is_transfer(step_->action)) {
      check_transfer();
    } else {
      rule(done_.insert({step_->action, -1, step_->action == Action::Update ? -1 : step_->chunk}).second,
           "occurs twice");
    }
  }
  check_end();
}

/// Checks that no step is missing. Sends are not checked here: check_pairs() finds a missing send by its receive.
void RankCheck::check_end() {
  const auto missing = [&](bool ok, const auto&... parts) {
    if (!ok) throw Error("pipeline", concat(schedule_.name, ", rank ", rank_, ": ", parts..., " is missing"));
  };
  for (int chunk = 0; chunk < at_.chunks(); ++chunk) {
    for (int i = 0; i < schedule_.micro_batches; ++i) {
      if (schedule_.pipe_of(i) != at_.pipe_of(chunk)) continue;
      const auto has = [&](Action action) { return done_.count({action, i, chunk}) > 0; };
      missing(has(Action::Forward), to_string(PipelineOp{Action::Forward, i, chunk}, at_.chunks()));
      missing(has(Action::Backward) || has(Action::BackwardInput),
              to_string(PipelineOp{Action::Backward, i, chunk}, at_.chunks()));
      missing(has(Action::Backward) || has(Action::BackwardWeight),
              to_string(PipelineOp{Action::BackwardWeight, i, chunk}, at_.chunks()));
    }
    missing(done_.count({Action::Reduce, -1, chunk}) > 0,
            to_string(PipelineOp{Action::Reduce, -1, chunk}, at_.chunks()));
  }
  missing(done_.count({Action::Update, -1, -1}) > 0, "Update");
}

Message message_of(const Schedule& schedule, int rank, const PipelineOp& step) {
  const int stage = schedule.placement.stage_of(rank, step.chunk);
  switch (step.action) {
    case Action::SendForward:
      return {true, step.micro_batch, stage + 1};
    case Action::SendBackward:
      return {false, step.micro_batch, stage - 1};
    default:
      return {step.action == Action::ReceiveForward, step.micro_batch, stage};
  }
}

using Pair = std::pair<int, int>;  // from, to

void check_pairs(const Schedule& schedule) {
  std::map<Pair, std::pair<std::vector<Message>, std::vector<Message>>> pairs;  // sends, receives
  for (int rank = 0; rank < static_cast<int>(schedule.ranks.size()); ++rank) {
    for (const PipelineOp& step : schedule.ranks[rank]) {
      if (is_send(step.action)) pairs[{rank, step.peer}].first.push_back(message_of(schedule, rank, step));
      if (is_receive(step.action)) pairs[{step.peer, rank}].second.push_back(message_of(schedule, rank, step));
    }
  }
  for (const auto& [pair, messages] : pairs) {
    const auto& [sends, receives] = messages;
    const std::string where = concat(schedule.name, ", from rank ", pair.first, " to rank ", pair.second, ": ");
    for (size_t i = 0; i < std::max(sends.size(), receives.size()); ++i) {
      if (i >= sends.size())
        throw Error("pipeline",
                    concat(where, "receive ", i, " waits for ", to_string(receives[i]), ", which is never sent"));
      if (i >= receives.size())
        throw Error("pipeline", concat(where, "send ", i, ", ", to_string(sends[i]), ", is never received"));
      require(sends[i] == receives[i], "pipeline", where, "the order of sends and receives differs at message ", i,
              ": sent is ", to_string(sends[i]), ", received ", to_string(receives[i]));
    }
  }
}

/// Runs the lists with blocking transfers: each transfer ends after both sides have reached it.
void check_blocking(const Schedule& schedule) {
  const int ranks = static_cast<int>(schedule.ranks.size());
  std::vector<size_t> at(ranks);
  std::set<Message> sent, received;  // messages whose sender, or receiver, has reached the transfer
  const auto advance = [&](int rank) {
    const auto& steps = schedule.ranks[rank];
    const size_t before = at[rank];
    for (; at[rank] < steps.size(); ++at[rank]) {
      const PipelineOp& step = steps[at[rank]];
      if (!is_transfer(step.action)) continue;
      const Message message = message_of(schedule, rank, step);
      (is_send(step.action) ? sent : received).insert(message);
      if (!(is_send(step.action) ? received : sent).count(message)) break;
    }
    return at[rank] > before;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < ranks; ++rank) moved = advance(rank) || moved;
  }
  for (int rank = 0; rank < ranks; ++rank) {
    if (at[rank] == schedule.ranks[rank].size()) continue;
    throw Error("pipeline", concat(schedule.name, ", rank ", rank, ", step ", at[rank], " (",
                                   to_string(schedule.ranks[rank][at[rank]], schedule.placement.chunks()),
                                   "): waits forever when transfers block"));
  }
}

void check_memory(const Schedule& schedule, double limit, double weight_share) {
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    double live = 0;
    for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const PipelineOp& step = schedule.ranks[rank][i];
      live += live_change(schedule.placement, step.action, weight_share);
      require(live <= limit + 1e-9, "pipeline", schedule.name, ", rank ", rank, ", step ", i, " (",
              to_string(step, schedule.placement.chunks()), "): holds ", live,
              " live activations, more than the limit of ", limit);
    }
  }
}

}  // namespace

void check(const Schedule& schedule, double memory_limit, double weight_share) {
  require(static_cast<int>(schedule.ranks.size()) == schedule.placement.ranks(), "pipeline", schedule.name, " has ",
          schedule.ranks.size(), " lists for ", schedule.placement.ranks(), " ranks");
  for (int rank = 0; rank < schedule.placement.ranks(); ++rank) RankCheck(schedule, rank).run();
  check_pairs(schedule);
  check_blocking(schedule);
  if (memory_limit > 0) check_memory(schedule, memory_limit, weight_share);
}

bool accumulates_in_order(const Schedule& schedule) {
  for (const auto& steps : schedule.ranks) {
    std::vector<int> last(schedule.placement.chunks(), -1);
    for (const PipelineOp& step : steps) {
      if (step.action != Action::Backward && step.action != Action::BackwardWeight) continue;
      if (step.micro_batch < last[step.chunk]) return false;
      last[step.chunk] = step.micro_batch;
    }
  }
  return true;
}

}  // namespace colossal::schedule
