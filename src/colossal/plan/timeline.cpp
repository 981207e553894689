#include "colossal/plan/timeline.h"

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/plan/step_calls.h"
#include "colossal/plan/transfers.h"

namespace colossal::plan {
namespace {

using Kind = StepEvent::Kind;

double seconds_of(const StepEvent& event, const Costs& costs) {
  if (event.kind == Kind::Product) return costs.product_seconds(event);
  if (event.kind == Kind::Attention) return costs.attention_seconds(event);
  return costs.elementwise_seconds(event.read + event.written);
}

bool is_work(Kind kind) { return kind == Kind::Product || kind == Kind::Attention || kind == Kind::Elementwise; }

StreamSpan::Kind span_kind(const StepEvent& event) {
  switch (event.kind) {
    case Kind::Call:
      return StreamSpan::Kind::Call;
    case Kind::Wait:
      return StreamSpan::Kind::Wait;
    case Kind::HostCopy:
      return StreamSpan::Kind::HostCopy;
    case Kind::Disk:
      return StreamSpan::Kind::Disk;
    default:
      return event.phase == StepEvent::kOptimizer ? StreamSpan::Kind::Optimizer : StreamSpan::Kind::Compute;
  }
}

/// A role in progress.
struct Worker {
  size_t next = 0;             // next event
  double now = 0;              // end of the work so far
  std::vector<int> begun;      // transfers, by the place of their events among those that can be waited for
  std::vector<int> own;        // begun transfers that the step waits for at its end
  int awaited = -1;            // transfer that it waits for; -1 = none
  int32_t waiting_event = -1;  // event that waits; -1 = the end of the step
  size_t settled = 0;          // number of `own` transfers that are over
  bool is_done = false;
};

class Simulation {
 public:
  Simulation(const std::vector<Role>& roles, const Costs& costs)
      : roles_(roles), costs_(costs), calls_(roles, costs), workers_(roles.size()) {
    timeline_.roles.resize(roles.size());
    for (size_t r = 0; r < roles.size(); ++r) timeline_.roles[r].streams = calls_.streams(static_cast<int>(r));
  }
  StepTimeline run();

 private:
  void advance(int role, double now);
  bool begin(int role, size_t index);
  void wait_for(int role, int transfer, int32_t event);
  void end_wait(int role, double now);
  void end_step(int role);
  void transfer_ended(int transfer);
  void add_span(int role, const StreamSpan& span);
  StreamSpan span_of(int role, int32_t event, int32_t stream, double begin, double end) const;
  [[noreturn]] void fail_stuck() const;

  const std::vector<Role>& roles_;
  const Costs& costs_;
  StepCalls calls_;
  Transfers transfers_;
  Clock clock_;
  std::vector<Worker> workers_;
  std::vector<std::vector<int>> waiting_;                    // roles that wait, by transfer
  std::vector<std::vector<std::pair<int, int32_t>>> drawn_;  // roles and events that a transfer is drawn for
  StepTimeline timeline_;
};

StreamSpan Simulation::span_of(int role, int32_t event, int32_t stream, double begin, double end) const {
  StreamSpan span{.stream = stream, .event = event, .begin = begin, .end = end};
  if (event < 0) {
    span.kind = StreamSpan::Kind::Wait;
    return span;
  }
  const StepEvent& first = roles_[static_cast<size_t>(role)].events.list[static_cast<size_t>(event)];
  span.kind = span_kind(first);
  span.phase = first.phase;
  span.recomputed = first.recomputed;
  span.chunk = first.chunk;
  span.micro_batch = first.micro_batch;
  return span;
}

/// Adds a span, or extends the last one if it is work of the same pass that ends where this begins.
void Simulation::add_span(int role, const StreamSpan& span) {
  if (span.end <= span.begin) return;
  std::vector<StreamSpan>& spans = timeline_.roles[static_cast<size_t>(role)].spans;
  const auto is_joined = [&](const StreamSpan& last) {
    return span.stream == 0 && last.stream == 0 && span.kind != StreamSpan::Kind::Wait && last.kind == span.kind &&
           last.phase == span.phase && last.recomputed == span.recomputed && last.chunk == span.chunk &&
           last.micro_batch == span.micro_batch && last.end == span.begin;
  };
  if (!spans.empty() && is_joined(spans.back()))
    spans.back().end = span.end;
  else
    spans.push_back(span);
}

/// Does the events of a role until it waits, or until a later time at which it begins a transfer.
void Simulation::advance(int role, double now) {
  Worker& worker = workers_[static_cast<size_t>(role)];
  const std::vector<StepEvent>& list = roles_[static_cast<size_t>(role)].events.list;
  StepParts& parts = timeline_.roles[static_cast<size_t>(role)].parts;
  for (; worker.next < list.size(); ++worker.next) {
    const StepEvent& event = list[worker.next];
    const auto index = static_cast<int32_t>(worker.next);
    if (is_work(event.kind)) {
      const double seconds = checked_seconds(seconds_of(event, costs_), roles_[static_cast<size_t>(role)].name);
      (event.phase == StepEvent::kOptimizer ? parts.optimizer : parts.compute) += seconds;
      add_span(role, span_of(role, index, 0, worker.now, worker.now + seconds));
      worker.now += seconds;
      continue;
    }
    if (worker.now > now) return clock_.add_role(worker.now, role);
    if (event.kind != Kind::Wait) {
      begin(role, worker.next);
      continue;
    }
    require(event.call >= 0 && static_cast<size_t>(event.call) < worker.begun.size(), "timeline",
            "a wait must name a call before it: got call ", event.call, " of ", worker.begun.size(), " in role ",
            roles_[static_cast<size_t>(role)].name, ", event ", index);
    const int transfer = worker.begun[static_cast<size_t>(event.call)];
    if (transfers_.is_over(transfer)) continue;
    ++worker.next;
    return wait_for(role, transfer, index);
  }
  if (worker.now > now) return clock_.add_role(worker.now, role);
  end_step(role);
}

/// Begins the transfer of an event. Returns true if the rank can wait for it at the end of the step.
bool Simulation::begin(int role, size_t index) {
  Worker& worker = workers_[static_cast<size_t>(role)];
  const StepEvent& event = roles_[static_cast<size_t>(role)].events.list[index];
  const StepCalls::Joined joined = calls_.join(role, event, transfers_);
  worker.begun.push_back(joined.transfer);
  const auto size = static_cast<size_t>(transfers_.size());
  waiting_.resize(size);
  drawn_.resize(size);
  const bool is_receive = event.kind == Kind::Call && event.collective == StepEvent::kReceive;
  if (is_receive) return false;
  worker.own.push_back(joined.transfer);
  drawn_[static_cast<size_t>(joined.transfer)].emplace_back(role, static_cast<int32_t>(index));
  transfers_.join(joined.transfer, joined.seconds, worker.now, clock_);
  return true;
}

void Simulation::wait_for(int role, int transfer, int32_t event) {
  Worker& worker = workers_[static_cast<size_t>(role)];
  worker.awaited = transfer;
  worker.waiting_event = event;
  waiting_[static_cast<size_t>(transfer)].push_back(role);
}

void Simulation::end_wait(int role, double now) {
  Worker& worker = workers_[static_cast<size_t>(role)];
  StepParts& parts = timeline_.roles[static_cast<size_t>(role)].parts;
  // Until all members have reached the call nothing is under way.
  const double under_way = std::clamp(transfers_.joined_at(worker.awaited), worker.now, now);
  parts.bubble += under_way - worker.now;
  parts.communication += now - under_way;
  add_span(role, span_of(role, worker.waiting_event, 0, worker.now, now));
  worker.now = now;
  worker.awaited = -1;
  advance(role, now);
}

void Simulation::end_step(int role) {
  Worker& worker = workers_[static_cast<size_t>(role)];
  for (; worker.settled < worker.own.size(); ++worker.settled)
    if (!transfers_.is_over(worker.own[worker.settled])) return wait_for(role, worker.own[worker.settled], -1);
  worker.is_done = true;
  timeline_.roles[static_cast<size_t>(role)].end = worker.now;
}

void Simulation::transfer_ended(int transfer) {
  const auto index = static_cast<size_t>(transfer);
  const double begin = transfers_.began_at(transfer), end = clock_.now();
  for (const auto& [role, event] : drawn_[index]) {
    const StepEvent& call = roles_[static_cast<size_t>(role)].events.list[static_cast<size_t>(event)];
    add_span(role, span_of(role, event, calls_.stream_of(role, call), begin, end));
  }
  for (const int role : std::exchange(waiting_[index], {})) end_wait(role, end);
}

void Simulation::fail_stuck() const {
  for (size_t r = 0; r < workers_.size(); ++r) {
    const Worker& worker = workers_[r];
    if (worker.is_done || worker.awaited < 0) continue;
    throw Error("timeline", concat("the calls of all roles must match: role ", roles_[r].name, " waits forever for ",
                                   transfers_.name_of(worker.awaited), ", event ", worker.waiting_event,
                                   "; record all roles of one run"));
  }
  throw Error("timeline", "the calls of all roles must match: a role waits forever; record all roles of one run");
}

StepTimeline Simulation::run() {
  for (size_t r = 0; r < roles_.size(); ++r) {
    const double input = checked_seconds(roles_[r].input_seconds, roles_[r].name);
    timeline_.roles[r].parts.input = input;
    workers_[r].now = input;
    clock_.add_role(input, static_cast<int>(r));
  }
  while (const auto next = clock_.next(transfers_)) {
    if (next->is_role) {
      advance(next->index, clock_.now());
      continue;
    }
    transfers_.end(next->index, clock_);
    transfer_ended(next->index);
  }
  for (const Worker& worker : workers_)
    if (!worker.is_done) fail_stuck();
  for (const RoleTimeline& role : timeline_.roles) timeline_.seconds = std::max(timeline_.seconds, role.end);
  const auto work_of = [&](size_t r) { return timeline_.roles[r].parts.compute + timeline_.roles[r].parts.optimizer; };
  for (size_t r = 0; r < roles_.size(); ++r) {
    timeline_.roles[r].parts.bubble += timeline_.seconds - timeline_.roles[r].end;
    if (work_of(r) > work_of(timeline_.busiest)) timeline_.busiest = r;
  }
  return std::move(timeline_);
}

}  // namespace

void StepParts::fields(Fields& f) {
  f.member("compute", compute);
  f.member("communication", communication);
  f.member("bubble", bubble);
  f.member("optimizer", optimizer);
  f.member("input", input);
}

StepTimeline simulate_step(const std::vector<Role>& roles, const Costs& costs) {
  require(!roles.empty(), "timeline", "a run must have at least one role: got none");
  return Simulation(roles, costs).run();
}

}  // namespace colossal::plan
