// Streams of the trap device. Work on a stream other than the first is done as late as is allowed.
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>

#include "support/trap_backend.h"

namespace colossal::test {
namespace {

thread_local std::array<c10::StreamId, kTrapDevices> current_streams{};

struct Line {
  std::deque<std::function<void()>> waiting;
  int64_t asked = 0, done = 0;
};

/// All streams of all devices, by device and stream id. The mutex is recursive, because an item of one stream may run
/// items of another.
struct Lines {
  std::recursive_mutex mutex;
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, Line> all;
};

Lines& lines() {
  static auto* made = new Lines();  // never deleted, because threads of LibTorch's engine outlive main
  return *made;
}

void do_some(Line& line, int64_t until) {
  while (line.done < until) {
    const std::function<void()> next = std::move(line.waiting.front());
    line.waiting.pop_front();
    ++line.done;
    next();
  }
}

Line* line_of(c10::Device device, c10::StreamId stream) {
  const auto found = lines().all.find({device.index(), stream});
  return found == lines().all.end() ? nullptr : &found->second;
}

void ask(c10::Device device, c10::StreamId stream, std::function<void()> work) {
  Line& line = lines().all[{device.index(), stream}];
  line.waiting.push_back(std::move(work));
  ++line.asked;
}

}  // namespace

c10::StreamId current_trap_stream(c10::Device device) {
  return current_streams.at(static_cast<size_t>(device.has_index() ? device.index() : current_trap_device()));
}

void set_current_trap_stream(c10::Device device, c10::StreamId stream) {
  current_streams.at(static_cast<size_t>(device.index())) = stream;
}

c10::StreamId new_trap_stream() {
  static std::atomic<c10::StreamId> last{0};
  return ++last;
}

bool is_aside(c10::Device device) { return current_trap_stream(device) != 0; }

void copy_later(c10::Device device, std::function<void()> copy) {
  const std::lock_guard lock(lines().mutex);
  ask(device, current_trap_stream(device), std::move(copy));
}

int64_t asked_of(c10::Device device, c10::StreamId stream) {
  const std::lock_guard lock(lines().mutex);
  const Line* line = line_of(device, stream);
  return line ? line->asked : 0;
}

bool is_done(c10::Device device, c10::StreamId stream, int64_t asked) {
  const std::lock_guard lock(lines().mutex);
  const Line* line = line_of(device, stream);
  return !line || line->done >= asked;
}

bool do_until(c10::Device device, c10::StreamId stream, int64_t asked) {
  const std::lock_guard lock(lines().mutex);
  Line* line = line_of(device, stream);
  if (!line || line->done >= asked) return false;
  do_some(*line, asked);
  return true;
}

void go_on_behind(c10::Device device, c10::StreamId by, c10::StreamId stream, int64_t asked) {
  const std::lock_guard lock(lines().mutex);
  if (by == stream || is_done(device, stream, asked)) return;
  if (by == 0)  // the first stream does everything at once
    do_until(device, stream, asked);
  else
    ask(device, by, [=] { do_until(device, stream, asked); });
}

void catch_up(c10::Device device) {
  const c10::StreamId stream = current_trap_stream(device);
  if (stream != 0) do_until(device, stream, asked_of(device, stream));
}

void catch_up_all() {
  const std::lock_guard lock(lines().mutex);
  for (auto& [name, line] : lines().all) do_some(line, line.asked);
}

}  // namespace colossal::test
