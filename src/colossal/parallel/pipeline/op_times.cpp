#include "colossal/parallel/pipeline/op_times.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>

#include "colossal/tensor/device_meant.h"

namespace colossal::parallel {
namespace {

/// Returns seconds since 1970; increases steadily from the first call on.
double now() {
  using namespace std::chrono;
  static const auto system = system_clock::now().time_since_epoch();
  static const auto steady = steady_clock::now();
  return duration<double>(system).count() + duration<double>(steady_clock::now() - steady).count();
}

c10::Event timed_event(at::Device device) { return {device.type(), c10::EventFlag::BACKEND_DEFAULT}; }

c10::Stream stream_of(at::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

}  // namespace

OpTimes::OpTimes(at::Device device) : device_(device) {}

void OpTimes::clear() {
  steps_.clear();
  host_.clear();
}

void OpTimes::mark(size_t index) {
  while (marks_.size() <= index) marks_.push_back(timed_event(device_));
  marks_[index].record(stream_of(device_));
}

void OpTimes::begin() {
  if (tensor::is_accelerator(device_))
    mark(2 * steps_.size());
  else
    began_ = now();
}

void OpTimes::end(const schedule::PipelineOp& step) {
  if (tensor::is_accelerator(device_))
    mark(2 * steps_.size() + 1);
  else
    host_.insert(host_.end(), {began_, now()});
  steps_.push_back(step);
}

std::vector<schedule::Event> OpTimes::events(int rank) const {
  std::vector<double> times = host_;
  if (tensor::is_accelerator(device_) && !steps_.empty()) {
    // An event for which the host waits at once, so its time is known on both clocks.
    const c10::Stream stream = stream_of(device_);
    stream.synchronize();
    c10::Event here = timed_event(device_);
    here.record(stream);
    here.synchronize();
    // elapsedTime() returns fp32, in which short times are exact, so only the first event is measured from now().
    const double first = now() - marks_[0].elapsedTime(here) / 1e3;
    for (size_t i = 0; i < 2 * steps_.size(); ++i) times.push_back(first + marks_[0].elapsedTime(marks_[i]) / 1e3);
  }
  std::vector<schedule::Event> events;
  for (size_t i = 0; i < steps_.size(); ++i) events.push_back({rank, steps_[i], times[2 * i], times[2 * i + 1]});
  return events;
}

}  // namespace colossal::parallel
