#include "colossal/align/rewards/command_scorer.h"

#include <poll.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "colossal/align/rewards/reward_lines.h"
#include "colossal/base/child_process.h"
#include "colossal/base/clock.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/text/tokenizer.h"

namespace colossal::align {
namespace {

constexpr double kGrace = 0.5;       // seconds that idle workers have to end by themselves
constexpr double kToEnd = 0.5;       // seconds from the end of its output to that of a process, for its status
constexpr size_t kMaxSaid = 1500;    // bytes of standard error in a message
constexpr double kCheck = 0.005;     // seconds between two checks whether such a process has ended
constexpr double kPause = 1;         // seconds without take() after which a line may need more time, for long timeouts
constexpr double kMaxSleep = 1;      // seconds of one poll(), which takes whole milliseconds of an int
constexpr int kReadsOfMessages = 4;  // reads of standard error for a message, even if the process still writes

/// Returns the end of `said` for a message: whole lines as far as possible, without control characters.
std::string last_words(const std::string& said) {
  if (said.empty()) return "; it wrote nothing to stderr";
  std::string end = said.substr(said.size() - std::min(said.size(), kMaxSaid));
  if (const size_t line = end.find('\n'); end.size() < said.size() && line + 1 < end.size()) end.erase(0, line + 1);
  while (end.ends_with('\n')) end.pop_back();
  for (char& c : end)
    if ((static_cast<unsigned char>(c) < 32 && c != '\n') || c == 127) c = '?';
  return "; its stderr ended with:\n" + text::valid_utf8(end);
}

}  // namespace

/// A process of the command; none = it is started when it gets an answer.
struct CommandScorer::Worker {
  std::unique_ptr<ChildProcess> process{};
  std::optional<Task> task{};
  double deadline = 0;                      // time at which the task is late, as steady_seconds()
  double seen = 0;                          // time of the last exchange with it
  std::optional<double> close_time{};       // time at which its output ended; none = it has not
  std::string unsent{}, arrived{}, said{};  // the rest of the task's line, its output and its standard error
  std::string last_id{}, last_where{};      // of the answer that it scored last

  void read_said() {
    process->read_error(said);
    if (said.size() > 4 * kMaxSaid) said.erase(0, said.size() - 2 * kMaxSaid);
  }
};

CommandScorer::CommandScorer(RewardCommand command) : command_(std::move(command)) {
  require(!command_.command.empty(), "reward", "a command must have at least one word: got none");
  require(command_.workers > 0, "reward", "workers must be at least 1: got ", command_.workers);
  require(command_.timeout > 0, "reward", "timeout must be above 0 seconds: got ", command_.timeout);
  require(command_.retries >= 0, "reward", "retries must be at least 0: got ", command_.retries);
  workers_.resize(static_cast<size_t>(command_.workers));
  for (Worker& worker : workers_) start(worker);
}

CommandScorer::~CommandScorer() {
  std::erase_if(workers_, [](const Worker& worker) { return !worker.process || worker.task; });
  for (Worker& worker : workers_) worker.process->close_input();
  const Stopwatch watch;
  for (Worker& worker : workers_) worker.process->wait(kGrace - watch.seconds());
}

std::string CommandScorer::name() const { return "the command `" + printable(join(command_.command, " ")) + "`"; }

void CommandScorer::start(Worker& worker) const {
  worker = {};
  try {
    worker.process = std::make_unique<ChildProcess>(
        command_.command,
        ChildProcess::Options{.reads_input = true, .has_own_group = true, .variables = {"PYTHONUNBUFFERED=1"}});
  } catch (const Error& error) {
    throw Error("reward", concat(name(), " cannot be started: ", error.message()));
  }
}

size_t CommandScorer::running() const {
  return static_cast<size_t>(
      std::count_if(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.task.has_value(); }));
}

void CommandScorer::add(Answer answer) {
  if (!waiting_.add(answer.id)) return;
  queue_.push_back({answer.id, line_to_scorer(answer), answer.where});
  hand_out();
}

std::vector<Scored> CommandScorer::take(double seconds) {
  const double end = steady_seconds() + seconds;
  while (!waiting_.has_news()) {
    hand_out();
    if (!waiting_.has_fault()) wait(running() > 0 || !queue_.empty() ? end : 0);
    for (size_t i = 0; i < workers_.size() && !waiting_.has_fault(); ++i)
      if (workers_[i].process) exchange(workers_[i]);
    if (queue_.empty() && running() == 0) break;
    if (steady_seconds() >= end) break;
  }
  return waiting_.take();
}

void CommandScorer::forget() {
  queue_.clear();
  for (Worker& worker : workers_)
    if (worker.task) worker = {};
  waiting_.clear();
}

void CommandScorer::hand_out() {
  for (Worker& worker : workers_) {
    if (queue_.empty() || worker.task || worker.close_time) continue;
    try {
      if (!worker.process) start(worker);
    } catch (const Error& error) {
      return fail_all(error);
    }
    worker.task = std::move(queue_.front());
    queue_.pop_front();
    ++worker.task->tries;
    worker.unsent = worker.task->line;
    worker.seen = steady_seconds();
    worker.deadline = worker.seen + command_.timeout;
    worker.process->write_from(worker.unsent);
  }
}

/// Waits until a worker reads, writes or is late, at most until `end`.
void CommandScorer::wait(double end) const {
  std::vector<pollfd> ends;
  for (const Worker& worker : workers_) {
    if (!worker.process) continue;
    ends.push_back({worker.process->output(), POLLIN, 0});
    ends.push_back({worker.process->error(), POLLIN, 0});
    if (!worker.unsent.empty()) ends.push_back({worker.process->input(), POLLOUT, 0});
    if (worker.task) end = std::min(end, worker.deadline);
    if (worker.close_time) end = std::min(end, steady_seconds() + kCheck);
  }
  const double seconds = std::clamp(end - steady_seconds(), 0.0, kMaxSleep);
  poll(ends.data(), ends.size(), static_cast<int>(std::ceil(seconds * 1000)));
}

// It reads once from each pipe, so that a worker that writes without end does not keep the others waiting.
void CommandScorer::exchange(Worker& worker) {
  const size_t unsent = worker.unsent.size(), arrived = worker.arrived.size();
  worker.process->write_from(worker.unsent);
  worker.read_said();
  worker.process->read_output(worker.arrived);
  // A line above the size of a pipe cannot go on while the caller does other work.
  const bool moves = worker.unsent.size() < unsent || worker.arrived.size() > arrived;
  const double pause = steady_seconds() - std::exchange(worker.seen, steady_seconds());
  if (moves && pause > std::min(kPause, command_.timeout / 20)) worker.deadline = worker.seen + command_.timeout;
  size_t end = 0;
  while (worker.process && (end = worker.arrived.find('\n')) != std::string::npos && end <= kMaxRewardLine) {
    const std::string line = worker.arrived.substr(0, end);
    worker.arrived.erase(0, end + 1);
    take_line(worker, line);
  }
  if (!worker.process) return;
  if (worker.arrived.size() > kMaxRewardLine)
    return fail(worker, concat("printed a line above ", kMaxRewardLine, " bytes: ", printable(worker.arrived)));
  if (worker.process->output() < 0) {
    if (!worker.close_time) worker.close_time = steady_seconds();
    const bool has_ended = worker.process->has_ended();
    if (has_ended || steady_seconds() >= *worker.close_time + kToEnd)
      fail(worker, has_ended ? concat("ended with status ", worker.process->status()) : "closed its output");
    return;
  }
  if (worker.task && steady_seconds() >= worker.deadline) take_timeout(worker);
}

void CommandScorer::take_line(Worker& worker, const std::string& line) {
  try {
    Scored scored = score_in(line);
    if (worker.task && scored.id == worker.task->id) {
      worker.last_id = scored.id;
      worker.last_where = std::move(worker.task->where);
      worker.task.reset();
      waiting_.set(std::move(scored));
    } else {
      fail(worker,
           concat(scored.id == worker.last_id ? "answered an id again: " : "answered an id that it was not given: ",
                  printable(line)));
    }
  } catch (const Error& error) {
    fail(worker, "printed a wrong line: " + error.message());
  }
}

void CommandScorer::take_timeout(Worker& worker) {
  if (worker.task->tries > command_.retries)
    return fail(worker, concat("took longer than ", command_.timeout, " seconds for an answer, in ", worker.task->tries,
                               " tries",
                               worker.unsent.empty() ? "; raise `timeout`, or flush the output after each line"
                                                     : "; it did not read its line"));
  queue_.push_front(std::move(*worker.task));
  worker = {};
}

void CommandScorer::fail(Worker& worker, const std::string& what) {
  for (int i = 0; i < kReadsOfMessages; ++i) worker.read_said();
  std::string message = concat(name(), " ", what);
  if (worker.task) message += "; it was given " + printable(worker.task->line.substr(0, worker.task->line.size() - 1));
  const std::string& where = worker.task ? worker.task->where : worker.last_where;
  if (!where.empty()) message += " (" + where + ")";
  message += last_words(worker.said);
  if (!command_.null_on_fault) return fail_all(Error("reward", message));
  if (worker.task) waiting_.set({std::move(worker.task->id), {.text = std::move(message), .is_fault = true}});
  worker = {};
}

/// Drops the answers that have no score, and ends all workers.
void CommandScorer::fail_all(Error error) {
  queue_.clear();
  for (Worker& worker : workers_) worker = {};
  waiting_.fail(std::move(error));
}

}  // namespace colossal::align
