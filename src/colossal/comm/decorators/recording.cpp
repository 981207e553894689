#include "colossal/comm/decorators/recording.h"

#include <ATen/ATen.h>

#include <utility>

#include "colossal/tensor/flops.h"

namespace colossal::comm {
namespace {

/// Returns true if the collective has a peer. Other collectives leave Call::peer at 0, which is a valid rank.
bool has_peer(Collective collective) {
  return collective == Collective::Broadcast || collective == Collective::Reduce || collective == Collective::Send ||
         collective == Collective::Recv;
}

StepEvent event_of(const RecordedCall& call) {
  return {.kind = StepEvent::Kind::Call,
          .collective = static_cast<uint8_t>(call.collective),
          .phase = static_cast<uint8_t>(call.phase),
          .dtype = static_cast<uint8_t>(call.dtype),
          .peer = has_peer(call.collective) ? call.peer : -1,
          .bytes = call.sent.bytes};
}

StepEvent event_of(double operations, const tensor::Operation& what, Phase phase) {
  const bool is_product = what.kind == tensor::Operation::Kind::Product;
  return {.kind = is_product ? StepEvent::Kind::Product : StepEvent::Kind::Attention,
          .phase = static_cast<uint8_t>(phase),
          .dtype = static_cast<uint8_t>(what.dtype),
          .m = what.m,
          .n = what.n,
          .k = what.k,
          .operations = operations};
}

}  // namespace

class RecordingWorld::Record {
 public:
  void add(RecordedCall call) {
    StepEvent event = event_of(call);
    const std::lock_guard lock(mutex_);
    event.group = events_.index_of({call.group, call.ranks});
    events_.list.push_back(event);
    calls_.push_back(std::move(call));
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
  }

 private:
  mutable std::mutex mutex_;
  std::vector<RecordedCall> calls_;
  StepEvents events_;
};

class RecordingWorld::RecordingGroup final : public GroupDecorator {
 public:
  RecordingGroup(std::shared_ptr<Group> inner, std::vector<int> ranks, std::shared_ptr<Record> record, Traffic& traffic)
      : GroupDecorator(std::move(inner)), ranks_(std::move(ranks)), record_(std::move(record)), traffic_(traffic) {}

  Work issue(const Call& call) override {
    check(*this, call);
    RecordedCall recorded{.group = name(), .ranks = ranks_, .collective = call.collective, .op = call.op};
    recorded.peer = call.peer;
    if (call.tensor()) recorded.dtype = call.tensor()->scalar_type();
    if (call.out) recorded.out_sizes = call.out->sizes().vec();
    if (call.in) recorded.in_sizes = call.in->sizes().vec();
    recorded.out_rows.assign(call.out_rows.begin(), call.out_rows.end());
    recorded.in_rows.assign(call.in_rows.begin(), call.in_rows.end());
    recorded.sent = sent_by(*this, call);
    recorded.phase = traffic_.phase();
    record_->add(std::move(recorded));
    return inner_->issue(call);
  }

 private:
  const std::vector<int> ranks_;
  const std::shared_ptr<Record> record_;
  const Traffic& traffic_;
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

RecordingWorld::Operations::Operations(RecordingWorld& world)
    : listener_(std::make_unique<tensor::OperationListener>(
          [record = world.record_, &traffic = world.traffic()](double operations, const tensor::Operation& what) {
            record->add(event_of(operations, what, traffic.phase()));
          })) {}
RecordingWorld::Operations::~Operations() = default;

}  // namespace colossal::comm
