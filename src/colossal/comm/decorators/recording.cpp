#include "colossal/comm/decorators/recording.h"

#include <ATen/ATen.h>

#include <unordered_map>
#include <utility>

#include "colossal/tensor/flops.h"
#include "colossal/tensor/moved_bytes.h"

namespace colossal::comm {
namespace {

/// Returns true if the collective has a peer. Other collectives leave Call::peer at 0, which is a valid rank.
bool has_peer(Collective collective) {
  return collective == Collective::Broadcast || collective == Collective::Reduce || collective == Collective::Send ||
         collective == Collective::Recv;
}

static_assert(StepEvent::kOptimizer == static_cast<uint8_t>(Phase::Optimizer));

StepEvent::Kind kind_of(tensor::Operation::Kind kind) {
  switch (kind) {
    case tensor::Operation::Kind::Product:
      return StepEvent::Kind::Product;
    case tensor::Operation::Kind::Attention:
      return StepEvent::Kind::Attention;
    case tensor::Operation::Kind::HostCopy:
      return StepEvent::Kind::HostCopy;
    case tensor::Operation::Kind::Disk:
      return StepEvent::Kind::Disk;
    case tensor::Operation::Kind::Wait:
      return StepEvent::Kind::Wait;
    case tensor::Operation::Kind::Elementwise:
      break;
  }
  return StepEvent::Kind::Elementwise;
}

/// Returns an event at the place of the step where this rank is: phase, micro-batch and chunk.
StepEvent event_here(StepEvent::Kind kind, const Traffic& traffic) {
  const Traffic::Pass pass = traffic.pass();
  return {.kind = kind,
          .phase = static_cast<uint8_t>(traffic.phase()),
          .recomputed = tensor::is_recomputing(),
          .chunk = static_cast<int16_t>(pass.chunk),
          .micro_batch = pass.micro_batch};
}

StepEvent event_of(const RecordedCall& call, const Traffic& traffic) {
  StepEvent event = event_here(StepEvent::Kind::Call, traffic);
  event.collective = static_cast<uint8_t>(call.collective);
  event.dtype = static_cast<uint8_t>(call.dtype);
  event.group = call.group_index;
  event.peer = has_peer(call.collective) ? call.peer : -1;
  event.bytes = call.sent.bytes;
  return event;
}

StepEvent event_of(double operations, const tensor::Operation& what, const Traffic& traffic) {
  StepEvent event = event_here(kind_of(what.kind), traffic);
  event.dtype = static_cast<uint8_t>(what.dtype);
  event.m = what.m;
  event.n = what.n;
  event.k = what.k;
  event.operations = operations;
  event.read = what.read;
  event.written = what.written;
  if (event.kind == StepEvent::Kind::HostCopy || event.kind == StepEvent::Kind::Disk)
    event.bytes = what.read + what.written;
  return event;
}

}  // namespace

/// A place in the record. After clear() it belongs to an older record and is ignored.
struct RecordedPlace {
  int32_t index = -1;
  int64_t record = -1;  // number of clear() before it
};

class RecordingWorld::Record {
 public:
  /// Adds a call of a group. `group` is the group's place, which is found once in each record.
  RecordedPlace add(RecordedCall call, const std::vector<int>& ranks, RecordedPlace& group, const Traffic& traffic) {
    const std::lock_guard lock(mutex_);
    if (group.record != number_) group = {events_.index_of({call.group, ranks}), number_};
    call.group_index = group.index;
    events_.list.push_back(event_of(call, traffic));
    calls_.push_back(std::move(call));
    return {begun_++, number_};
  }
  /// Adds a copy or a disk event; `transfer` is its number in the process.
  void add_transfer(const StepEvent& event, int64_t transfer) {
    const std::lock_guard lock(mutex_);
    events_.list.push_back(event);
    transfers_.emplace(transfer, begun_++);
  }
  /// Adds the wait for a transfer, unless that began before this record.
  void add_wait(StepEvent event, int64_t transfer) {
    const std::lock_guard lock(mutex_);
    const auto found = transfers_.find(transfer);
    if (found == transfers_.end()) return;
    event.call = found->second;
    transfers_.erase(found);
    events_.list.push_back(event);
  }
  void add_wait(const RecordedPlace& call, const Traffic& traffic) {
    StepEvent event = event_here(StepEvent::Kind::Wait, traffic);
    event.call = call.index;
    const std::lock_guard lock(mutex_);
    if (call.record == number_) events_.list.push_back(event);
  }
  void add(const StepEvent& operation) {
    const std::lock_guard lock(mutex_);
    events_.list.push_back(operation);
  }
  std::vector<RecordedCall> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  StepEvents events() const {
    const std::lock_guard lock(mutex_);
    return events_;
  }
  int64_t event_count() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(events_.list.size());
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    calls_.clear();
    events_ = {};
    transfers_.clear();
    begun_ = 0;
    ++number_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<RecordedCall> calls_;
  StepEvents events_;
  int32_t begun_ = 0;                               // calls and transfers so far
  std::unordered_map<int64_t, int32_t> transfers_;  // places of those not waited for, by their numbers
  int64_t number_ = 0;
};

/// A call in progress that records the wait for it.
class RecordingWorld::RecordedWork final : public Work::State {
 public:
  RecordedWork(Work inner, std::shared_ptr<Record> record, RecordedPlace call, const Traffic& traffic)
      : inner_(std::move(inner)), record_(std::move(record)), call_(call), traffic_(traffic) {}
  void wait() override {
    record_->add_wait(call_, traffic_);
    inner_.wait();
  }
  bool done() override { return inner_.done(); }

 private:
  Work inner_;
  const std::shared_ptr<Record> record_;
  const RecordedPlace call_;
  const Traffic& traffic_;
};

class RecordingWorld::RecordingGroup final : public GroupDecorator {
 public:
  RecordingGroup(std::shared_ptr<Group> inner, std::vector<int> ranks, std::shared_ptr<Record> record, Traffic& traffic)
      : GroupDecorator(std::move(inner)), ranks_(std::move(ranks)), record_(std::move(record)), traffic_(traffic) {}

  Work issue(const Call& call) override {
    check(*this, call);
    RecordedCall recorded{.group = name(), .collective = call.collective, .op = call.op};
    recorded.peer = call.peer;
    if (call.tensor()) recorded.dtype = call.tensor()->scalar_type();
    if (call.out) recorded.out_sizes = call.out->sizes().vec();
    if (call.in) recorded.in_sizes = call.in->sizes().vec();
    recorded.out_rows.assign(call.out_rows.begin(), call.out_rows.end());
    recorded.in_rows.assign(call.in_rows.begin(), call.in_rows.end());
    recorded.sent = sent_by(*this, call);
    recorded.phase = traffic_.phase();
    const RecordedPlace place = record_->add(std::move(recorded), ranks_, group_, traffic_);
    const tensor::HiddenOperators transport;  // the copies of a group without peers are no work of the rank
    Work work = inner_->issue(call);
    // A wait for a message that was sent only returns its memory.
    if (call.collective == Collective::Send) return work;
    return Work(std::make_shared<RecordedWork>(std::move(work), record_, place, traffic_));
  }

 private:
  const std::vector<int> ranks_;
  const std::shared_ptr<Record> record_;
  const Traffic& traffic_;
  RecordedPlace group_;
};

RecordingWorld::RecordingWorld(World& inner) : WorldDecorator(inner), record_(std::make_shared<Record>()) {}
RecordingWorld::~RecordingWorld() = default;

std::shared_ptr<Group> RecordingWorld::make_group(const std::string& name, const std::vector<int>& ranks,
                                                  const std::string& channel) {
  auto group = WorldDecorator::make_group(name, ranks, channel);
  if (ranks.size() == 1) return group;
  return std::make_shared<RecordingGroup>(std::move(group), ranks, record_, traffic());
}

std::vector<RecordedCall> RecordingWorld::calls() const { return record_->calls(); }

StepEvents RecordingWorld::events() const { return record_->events(); }

int64_t RecordingWorld::event_count() const { return record_->event_count(); }

void RecordingWorld::clear() { record_->clear(); }

RecordingWorld::Operations::Operations(RecordingWorld& world, Detail detail) {
  const auto hear = [record = world.record_, &traffic = world.traffic(), detail](double operations,
                                                                                 const tensor::Operation& what) {
    using Kind = tensor::Operation::Kind;
    if (detail != Detail::All && what.kind != Kind::Product && what.kind != Kind::Attention) return;
    const StepEvent event = event_of(operations, what, traffic);
    if (what.kind == Kind::Wait) return record->add_wait(event, what.transfer);
    if (what.kind == Kind::HostCopy || what.kind == Kind::Disk) return record->add_transfer(event, what.transfer);
    record->add(event);
  };
  listener_ = std::make_unique<tensor::OperationListener>(hear);
  if (detail == Detail::All) observed_ = std::make_unique<tensor::ObservedOperators>();
}
RecordingWorld::Operations::~Operations() = default;

}  // namespace colossal::comm
