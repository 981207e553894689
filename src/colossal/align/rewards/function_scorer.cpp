#include "colossal/align/rewards/function_scorer.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <string_view>
#include <utility>

#include "colossal/align/rewards/reward_lines.h"
#include "colossal/base/clock.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"

namespace colossal::align {
namespace {

using nlohmann::json;

constexpr double kMaxPoll = 1;  // seconds
constexpr char kFunction[] = "the function that scores answers ";

/// Returns the id in a line; empty = none.
std::string id_in(const json& line) {
  const bool has_id = line.is_object() && line.contains("id") && line["id"].is_string();
  return has_id ? line["id"].get<std::string>() : "";
}

}  // namespace

FunctionScorer::FunctionScorer(Descriptor socket, bool null_on_fault)
    : socket_(std::move(socket)), null_on_fault_(null_on_fault) {
  require(socket_.is_open(), "reward", "a function that scores must have a connected socket: got none");
}

void FunctionScorer::add(Answer answer) {
  if (!waiting_.add(answer.id)) return;
  given_[answer.id] = {.line = line_to_scorer(answer), .where = answer.where};
  unsent_.push_back(answer.id);
  send();
}

std::vector<Scored> FunctionScorer::take(double seconds) {
  const double end = steady_seconds() + seconds;
  while (!waiting_.has_news() && waiting() > 0) {
    if (!ended_.empty()) {
      waiting_.fail(Error("reward", concat(kFunction, ended_, "; start the run again")));
      break;
    }
    const bool has_more = !rest_.empty() || !unsent_.empty();
    pollfd state{socket_.value(), static_cast<short>(POLLIN | (has_more ? POLLOUT : 0)), 0};
    poll(&state, 1, static_cast<int>(std::ceil(1000 * std::clamp(end - steady_seconds(), 0.0, kMaxPoll))));
    send();
    receive();
    if (steady_seconds() >= end) break;
  }
  if (waiting_.has_fault()) forget_given();
  return waiting_.take();
}

void FunctionScorer::forget() {
  forget_given();
  waiting_.clear();
}

void FunctionScorer::send() {
  while (socket_.is_open() && (!rest_.empty() || !unsent_.empty())) {
    const std::string_view text =
        rest_.empty() ? std::string_view(given_.at(unsent_.front()).line).substr(sent_) : std::string_view(rest_);
    const ssize_t count = ::send(socket_.value(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count <= 0 && errno == EINTR) continue;
    if (count <= 0) return;  // full, or closed, which receive() notices
    if (!rest_.empty()) {
      rest_.erase(0, static_cast<size_t>(count));
    } else if (sent_ += static_cast<size_t>(count); static_cast<size_t>(count) == text.size()) {
      given_.at(unsent_.front()).is_sent = true;
      unsent_.pop_front();
      sent_ = 0;
    }
  }
}

void FunctionScorer::receive() {
  char buffer[1 << 16];
  const ssize_t count = recv(socket_.value(), buffer, sizeof buffer, MSG_DONTWAIT);
  const bool is_over = count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
  if (count > 0) arrived_.append(buffer, static_cast<size_t>(count));
  for (size_t at = 0; (at = arrived_.find('\n')) != std::string::npos && at <= kMaxRewardLine;) {
    const std::string line = arrived_.substr(0, at);
    arrived_.erase(0, at + 1);
    take_line(line);
  }
  if (arrived_.size() > kMaxRewardLine) end(concat("answered with a line above ", kMaxRewardLine, " bytes"));
  if (is_over) end("has ended");
}

void FunctionScorer::take_line(const std::string& line) {
  std::string id;
  try {
    const json object = parse_json(line, "the line", "reward");
    id = id_in(object);
    if (const auto at = late_.find(id); at != late_.end()) {
      if (--at->second == 0) late_.erase(at);
      return;
    }
    const auto waits = given_.find(id);
    if (!id.empty() && (waits == given_.end() || !waits->second.is_sent))
      return fail("", "answered an id that does not wait: " + printable(line));
    if (!id.empty() && object.contains("error"))
      return fail(id, "failed: " + (object["error"].is_string() ? object["error"].get<std::string>() : line));
    Scored scored = score_in(line);
    given_.erase(waits);
    waiting_.set(std::move(scored));
  } catch (const Error& error) {
    const std::string what = "answered with a wrong line: " + error.message();
    if (id.empty()) return end(what);
    fail(id, what);
  }
}

/// Ends the answer of that id, or all answers. An empty id is that of no answer.
void FunctionScorer::fail(const std::string& id, const std::string& what) {
  std::string message = kFunction + what;
  const auto at = given_.find(id);
  if (at != given_.end()) {
    message += "; it was given " + printable(at->second.line.substr(0, at->second.line.size() - 1));
    if (!at->second.where.empty()) message += " (" + at->second.where + ")";
    given_.erase(at);
    if (null_on_fault_) return waiting_.set({id, {.text = std::move(message), .is_fault = true}});
  }
  waiting_.fail(Error("reward", message));
}

/// Ends the work with the other process.
void FunctionScorer::end(const std::string& what) {
  if (ended_.empty()) ended_ = what;
  socket_ = Descriptor();
}

/// Drops the answers that have no score. The other process gets the rest of a line of which it has a part.
void FunctionScorer::forget_given() {
  if (!unsent_.empty() && sent_ > 0) {
    rest_ += given_.at(unsent_.front()).line.substr(sent_);
    unsent_.pop_front();
  }
  sent_ = 0;
  for (const std::string& id : unsent_) given_.erase(id);
  unsent_.clear();
  for (const auto& [id, given] : given_) ++late_[id];
  given_.clear();
}

}  // namespace colossal::align
