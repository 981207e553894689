#include "colossal/comm/decorators/recording.h"

#include <ATen/ATen.h>

namespace colossal::comm {

class RecordingWorld::Record {
 public:
  void add(RecordedCall call) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
  }
  std::vector<RecordedCall> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    calls_.clear();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<RecordedCall> calls_;
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

void RecordingWorld::clear() { record_->clear(); }

}  // namespace colossal::comm
