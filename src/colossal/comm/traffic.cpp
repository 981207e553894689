#include "colossal/comm/traffic.h"

namespace colossal::comm {

const char* to_string(Phase phase) {
  switch (phase) {
    case Phase::Setup:
      return "setup";
    case Phase::Forward:
      return "forward";
    case Phase::Backward:
      return "backward";
    case Phase::Optimizer:
      return "optimizer";
    case Phase::Other:
      return "other";
  }
  return "unknown";
}

void Traffic::add(const std::string& group, const std::string& collective, double elements, double bytes) {
  const std::lock_guard lock(mutex_);
  Count& count = counts_[{group, collective, phase_}];
  ++count.calls;
  count.elements += elements;
  count.bytes += bytes;
}

Phase Traffic::phase() const {
  const std::lock_guard lock(mutex_);
  return phase_;
}

void Traffic::set_phase(Phase phase) {
  const std::lock_guard lock(mutex_);
  phase_ = phase;
}

Traffic::Pass Traffic::pass() const {
  const std::lock_guard lock(mutex_);
  return pass_;
}

void Traffic::set_pass(Pass pass) {
  const std::lock_guard lock(mutex_);
  pass_ = pass;
}

Traffic::Count Traffic::total(const std::string& group, const std::string& collective) const {
  Count sum;
  for (Phase phase : {Phase::Setup, Phase::Forward, Phase::Backward, Phase::Optimizer, Phase::Other}) {
    const Count part = total(group, collective, phase);
    sum.calls += part.calls;
    sum.elements += part.elements;
    sum.bytes += part.bytes;
  }
  return sum;
}

Traffic::Count Traffic::total(const std::string& group, const std::string& collective, Phase phase) const {
  const std::lock_guard lock(mutex_);
  Count sum;
  for (const auto& [key, count] : counts_) {
    const auto& [key_group, key_collective, key_phase] = key;
    const bool matches = (group.empty() || group == key_group || key_group.starts_with(group + " ")) &&
                         (collective.empty() || collective == key_collective) && phase == key_phase;
    if (!matches) continue;
    sum.calls += count.calls;
    sum.elements += count.elements;
    sum.bytes += count.bytes;
  }
  return sum;
}

std::map<Traffic::Key, Traffic::Count> Traffic::entries() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void Traffic::reset() {
  const std::lock_guard lock(mutex_);
  counts_.clear();
}

}  // namespace colossal::comm
