#include "colossal/serve/drawing_loop.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "colossal/comm/agreement.h"
#include "colossal/diffusion/drawing.h"
#include "colossal/serve/byte_stream.h"
#include "colossal/serve/engine_loop.h"
#include "colossal/serve/field_bytes.h"

namespace colossal::serve {
namespace {

constexpr std::chrono::milliseconds kLookInterval{100};  // while no picture is drawn
constexpr char kEnd[] = "", kGoOn[] = "on";              // messages of rank 0

std::string bytes_of_job(const DrawingJob& job) {
  ByteWriter bytes;
  FieldBytes<ByteWriter> fields(bytes);
  diffusion::DrawOptions options = job.options;  // fields() is not const
  options.fields(fields);
  pass_texts(bytes, job.files);
  return bytes.take();
}

DrawingJob job_of_bytes(const std::string& text) {
  ByteReader bytes(text, "options of a drawing");
  FieldBytes<ByteReader> fields(bytes);
  DrawingJob job;
  job.options.fields(fields);
  pass_texts(bytes, job.files);
  bytes.check_end();
  return job;
}

}  // namespace

struct DrawingLoop::State {
  State(comm::World& world_, comm::Mesh& mesh_, DrawingLoopOptions options_)
      : world(world_), mesh(mesh_), options(std::move(options_)) {}

  struct Waiting {
    Ticket ticket = 0;
    DrawingJob job{};
  };

  // Used by the thread of run() only.
  comm::World& world;
  comm::Mesh& mesh;
  const DrawingLoopOptions options;

  mutable std::mutex mutex;  // guards the members below; not locked during steps and functions of the jobs
  std::condition_variable wake;
  std::deque<Waiting> queue;
  Ticket next_ticket = 1, drawn = 0;  // drawn: the job that is drawn; 0 = none
  bool is_cancelled = false;          // that job
  bool ends = false, has_ended = false;

  bool is_first() const { return world.rank() == 0; }

  /// Returns the text of rank 0 on every rank.
  std::string from_first(const std::string& text) {
    return world.size() == 1 ? text : comm::broadcast_text(mesh.all(), at::kCPU, 0, text);
  }

  /// Waits for the next job, on rank 0. Returns nothing after end().
  std::optional<Waiting> take(const std::function<void()>& poll) {
    const auto busy = world.size() == 1 ? nullptr : world.busy(kIdle);
    std::unique_lock lock(mutex);
    while (queue.empty() && !ends) {
      lock.unlock();
      poll();
      lock.lock();
      wake.wait_for(lock, kLookInterval, [this] { return !queue.empty() || ends; });
    }
    if (ends) return {};
    Waiting next = std::move(queue.front());
    queue.pop_front();
    drawn = next.ticket;
    is_cancelled = false;
    return next;
  }

  /// Returns the next job on every rank; its function is that of rank 0.
  std::optional<Waiting> next(const std::function<void()>& poll) {
    std::optional<Waiting> next;
    if (is_first()) next = take(poll);
    if (world.size() == 1) return next;
    const std::string bytes = from_first(next ? bytes_of_job(next->job) : kEnd);
    if (bytes == kEnd || is_first()) return next;
    return Waiting{.job = job_of_bytes(bytes)};
  }

  /// Returns whether the drawing ends, the same on every rank.
  bool stops(const std::function<void()>& poll) {
    bool stops_here = false;
    if (is_first()) {
      poll();
      const std::lock_guard lock(mutex);
      stops_here = is_cancelled || ends;
    }
    return from_first(stops_here ? kEnd : kGoOn) == kEnd;
  }

  void draw(Waiting waiting, const std::function<void()>& poll) {
    Drawn result;
    try {
      result.notices =
          options.draw(waiting.job.options, {.stop_requested = [&] { return stops(poll); }, .files = waiting.job.files},
                       [&](const diffusion::DrawnPicture& one) { result.pictures.push_back(one); });
      if (!result.pictures.empty() && !result.pictures.front().note.empty())
        result.notices.push_back(result.pictures.front().note);
    } catch (const diffusion::StoppedDrawing&) {
      const std::lock_guard lock(mutex);
      is_cancelled = true;  // on every rank
    } catch (const std::exception&) {
      result = {.error = std::current_exception(), .replica_has_ended = world.size() > 1};
    }
    bool tells = false;
    {
      const std::lock_guard lock(mutex);
      drawn = 0;
      tells = !is_cancelled && waiting.job.on_end;
    }
    const std::exception_ptr last = result.replica_has_ended ? result.error : nullptr;
    if (tells) waiting.job.on_end(std::move(result));
    if (last) std::rethrow_exception(last);
  }

  /// Accepts no more jobs, and returns those that wait.
  std::deque<Waiting> close() {
    const std::lock_guard lock(mutex);
    has_ended = true;
    return std::exchange(queue, {});
  }
};

DrawingLoop::DrawingLoop(comm::World& world, comm::Mesh& mesh, DrawingLoopOptions options)
    : state_(std::make_unique<State>(world, mesh, std::move(options))) {}

DrawingLoop::~DrawingLoop() = default;

std::optional<Ticket> DrawingLoop::draw(DrawingJob job) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  if (s.ends || s.has_ended || static_cast<int64_t>(s.queue.size()) >= s.options.max_waiting) return {};
  s.queue.push_back({s.next_ticket, std::move(job)});
  s.wake.notify_one();
  return s.next_ticket++;
}

void DrawingLoop::cancel(Ticket ticket) {
  State& s = *state_;
  State::Waiting dropped;  // destroyed after the lock, because its function may own objects that call the loop
  const std::lock_guard lock(s.mutex);
  if (s.drawn == ticket) {
    s.is_cancelled = true;
    return;
  }
  const auto found =
      std::find_if(s.queue.begin(), s.queue.end(), [&](const State::Waiting& one) { return one.ticket == ticket; });
  if (found == s.queue.end()) return;
  dropped = std::move(*found);
  s.queue.erase(found);
}

ReplicaLoad DrawingLoop::load() const {
  const State& s = *state_;
  const std::lock_guard lock(s.mutex);
  return {.waiting = static_cast<int64_t>(s.queue.size()), .running = s.drawn > 0 ? 1 : 0};
}

void DrawingLoop::run(const std::function<void()>& poll) {
  State& s = *state_;
  const std::function<void()> poll_here = poll && s.is_first() ? poll : [] {};
  try {
    while (std::optional<State::Waiting> next = s.next(poll_here)) s.draw(*std::move(next), poll_here);
  } catch (const std::exception&) {
    for (const State::Waiting& one : s.close())
      if (one.job.on_end) one.job.on_end({.error = std::current_exception(), .replica_has_ended = true});
    throw;
  }
  const std::deque<State::Waiting> left = s.close();  // destroyed without the lock
}

void DrawingLoop::end() {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  s.ends = true;
  s.wake.notify_one();
}

}  // namespace colossal::serve
