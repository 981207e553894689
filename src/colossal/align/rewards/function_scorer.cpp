#include "colossal/align/rewards/function_scorer.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <utility>

#include "colossal/align/rewards/reward_lines.h"
#include "colossal/base/clock.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"

namespace colossal::align {
namespace {

constexpr double kMaxPoll = 1;  // seconds

}  // namespace

FunctionScorer::FunctionScorer(Descriptor socket) : socket_(std::move(socket)) {
  require(socket_.is_open(), "reward", "a function that scores must have a connected socket: got none");
}

void FunctionScorer::add(Answer answer) {
  const bool is_new = !given_.contains(answer.id) &&
                      std::none_of(scored_.begin(), scored_.end(), [&](const Scored& s) { return s.id == answer.id; });
  require(is_new, "reward", "the ids of answers must differ: got ", answer.id, " twice");
  forgotten_.erase(answer.id);
  Given& given = given_[answer.id];
  given = {line_to_scorer(answer), answer.where};
  unsent_ += given.line;
  if (!fault_) send();
}

std::vector<Scored> FunctionScorer::take(double seconds) {
  const double end = steady_seconds() + seconds;
  while (scored_.empty() && !fault_ && !given_.empty()) {
    if (!socket_.is_open()) {
      fail("has ended; start the run again");
      break;
    }
    pollfd state{socket_.value(), static_cast<short>(POLLIN | (unsent_.empty() ? 0 : POLLOUT)), 0};
    poll(&state, 1, static_cast<int>(std::ceil(1000 * std::clamp(end - steady_seconds(), 0.0, kMaxPoll))));
    send();
    receive();
    if (steady_seconds() >= end) break;
  }
  if (scored_.empty() && fault_) {
    const Error error = *std::exchange(fault_, std::nullopt);
    lost_ = 0;
    throw error;
  }
  return std::exchange(scored_, {});
}

void FunctionScorer::send() {
  while (socket_.is_open() && !unsent_.empty()) {
    const ssize_t count = ::send(socket_.value(), unsent_.data(), unsent_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count > 0) unsent_.erase(0, static_cast<size_t>(count));
    if (count <= 0 && errno != EINTR) return;  // full, or closed, which receive() notices
  }
}

void FunctionScorer::receive() {
  char buffer[1 << 16];
  const ssize_t count = recv(socket_.value(), buffer, sizeof buffer, MSG_DONTWAIT);
  if (count > 0) arrived_.append(buffer, static_cast<size_t>(count));
  for (size_t end = 0; (end = arrived_.find('\n')) != std::string::npos && end <= kMaxRewardLine;) {
    const std::string line = arrived_.substr(0, end);
    arrived_.erase(0, end + 1);
    take_line(line);
  }
  const bool is_over = count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
  const bool is_huge = arrived_.size() > kMaxRewardLine;
  if (is_huge) fail(concat("answered with a line above ", kMaxRewardLine, " bytes: ", printable(arrived_)));
  if (is_over || is_huge) socket_ = Descriptor();
}

void FunctionScorer::take_line(const std::string& line) {
  try {
    const nlohmann::json object = parse_json(line, "the line", "reward");
    if (object.is_object() && object.contains("error") && object.contains("id"))
      return fail("failed: " + (object["error"].is_string() ? object["error"].get<std::string>() : line),
                  object["id"].is_string() ? object["id"].get<std::string>() : "");
    Scored scored = score_in(line);
    if (forgotten_.erase(scored.id) > 0) return;
    if (given_.erase(scored.id) == 0) return fail("answered an id that does not wait: " + printable(line));
    scored_.push_back(std::move(scored));
  } catch (const Error& error) {
    fail("answered with a wrong line: " + error.message());
  }
}

/// Forgets the answers that have no score.
void FunctionScorer::fail(const std::string& what, const std::string& id) {
  if (fault_) return;
  if (!id.empty() && forgotten_.erase(id) > 0) return;
  std::string message = "the function that scores answers " + what;
  if (const auto at = given_.find(id); at != given_.end()) {
    message += "; it was given " + printable(at->second.line.substr(0, at->second.line.size() - 1));
    if (!at->second.where.empty()) message += " (" + at->second.where + ")";
    given_.erase(at);
    ++lost_;
  }
  for (const auto& [forgotten, given] : given_) forgotten_.insert(forgotten);
  lost_ += given_.size();
  given_.clear();
  unsent_.resize(unsent_.empty() ? 0 : unsent_.find('\n') + 1);  // the other end may have a part of the first line
  fault_ = Error("reward", message);
}

}  // namespace colossal::align
