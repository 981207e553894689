#include "colossal/plan/transfers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::plan {

double checked_seconds(double seconds, const std::string& whose) {
  require(std::isfinite(seconds) && seconds >= 0, "timeline", "costs must be finite and not negative: got ", seconds,
          " s for ", whose);
  return seconds;
}

std::optional<Clock::Next> Clock::next(const Transfers& transfers) {
  while (!queue_.empty()) {
    const Entry entry = queue_.top();
    queue_.pop();
    if (!entry.is_role && entry.version != transfers.version(entry.index)) continue;
    now_ = std::max(now_, entry.time);
    return Next{entry.is_role, entry.index};
  }
  return std::nullopt;
}

int Transfers::add(Transfer transfer) {
  for (const int link : transfer.links)
    if (static_cast<size_t>(link) >= on_link_.size()) on_link_.resize(static_cast<size_t>(link) + 1);
  all_.push_back({.transfer = std::move(transfer)});
  return size() - 1;
}

void Transfers::enqueue(int transfer, int queue) {
  const auto index = static_cast<size_t>(queue);
  if (index >= queues_.size()) queues_.resize(index + 1);
  queues_[index].push_back(transfer);
  at(transfer).transfer.queues.push_back(queue);
}

void Transfers::join(int transfer, double seconds, double now, Clock& clock) {
  One& one = at(transfer);
  one.seconds = std::max(one.seconds, seconds);
  one.joined = now;
  if (--one.transfer.members == 0) begin_if_first(transfer, clock);
}

void Transfers::begin_if_first(int transfer, Clock& clock) {
  One& one = at(transfer);
  if (one.state != State::Waiting || one.transfer.members > 0) return;
  for (const int queue : one.transfer.queues)
    if (queues_[static_cast<size_t>(queue)].front() != transfer) return;
  one.state = State::Active;
  one.began = one.updated = clock.now();
  one.left = one.seconds;
  for (const int link : one.transfer.links) on_link_[static_cast<size_t>(link)].push_back(transfer);
  set_speed(transfer, clock);
  set_speeds(one.transfer.links, clock);
}

void Transfers::end(int transfer, Clock& clock) {
  at(transfer).state = State::Over;
  ++at(transfer).version;
  for (const int link : at(transfer).transfer.links) std::erase(on_link_[static_cast<size_t>(link)], transfer);
  set_speeds(at(transfer).transfer.links, clock);
  for (const int queue : at(transfer).transfer.queues) queues_[static_cast<size_t>(queue)].pop_front();
  for (const int queue : at(transfer).transfer.queues) {
    const std::deque<int>& waiting = queues_[static_cast<size_t>(queue)];
    if (!waiting.empty()) begin_if_first(waiting.front(), clock);
  }
}

void Transfers::set_speeds(const std::vector<int>& links, Clock& clock) {
  for (const int link : links)
    for (const int transfer : on_link_[static_cast<size_t>(link)]) set_speed(transfer, clock);
}

/// Sets the speed by the fullest link, and foretells the end if the speed changes.
void Transfers::set_speed(int transfer, Clock& clock) {
  One& one = at(transfer);
  size_t fullest = 1;
  for (const int link : one.transfer.links) fullest = std::max(fullest, on_link_[static_cast<size_t>(link)].size());
  const double speed = 1.0 / static_cast<double>(fullest);
  if (speed == one.speed) return;
  one.left = std::max(0.0, one.left - (clock.now() - one.updated) * one.speed);
  one.updated = clock.now();
  one.speed = speed;
  clock.add_end(clock.now() + one.left / speed, transfer, ++one.version);
}

}  // namespace colossal::plan
