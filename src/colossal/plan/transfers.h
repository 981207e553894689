// The calls, messages and copies of a simulated step that are under way: queues, shared links and a clock.
//
//   plan::Transfers transfers;
//   plan::Clock clock;
//   const int call = transfers.add({.name = &name, .members = 1, .links = {0}});
//   transfers.enqueue(call, 0);
//   transfers.join(call, 0.5, clock.now(), clock);        // the only member reaches it; alone it takes 0.5 s
//   while (const auto next = clock.next(transfers)) transfers.end(next->index, clock);
#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <queue>
#include <string>
#include <vector>

namespace colossal::plan {

class Transfers;

/// Simulated time with a queue of what happens next. At equal times, ends of transfers come first, then roles,
/// each in the order of their numbers.
class Clock {
 public:
  struct Next {
    bool is_role = false;  ///< true: a role goes on; false: a transfer ends
    int index = 0;
  };
  double now() const { return now_; }
  void add_role(double time, int role) { queue_.push({time, role, 0, true}); }
  void add_end(double time, int transfer, uint32_t version) { queue_.push({time, transfer, version, false}); }
  /// Moves to the next entry and returns it; none if nothing is left. Skips predicted ends that have changed since.
  std::optional<Next> next(const Transfers& transfers);

 private:
  struct Entry {
    double time;
    int index;
    uint32_t version;
    bool is_role;
    /// Returns true if this entry comes after the other.
    bool operator<(const Entry& other) const {
      if (time != other.time) return time > other.time;
      if (is_role != other.is_role) return is_role;
      return index > other.index;
    }
  };
  std::priority_queue<Entry> queue_;
  double now_ = 0;
};

/// Transfers by their numbers, from 0. A transfer begins when all its members have joined and it is the first of each
/// of its queues. On each link n transfers get 1/n of it; the fullest link of a transfer sets its speed.
class Transfers {
 public:
  struct Transfer {
    const std::string* name = nullptr;  ///< for messages of errors; must outlive the transfers
    int members = 1;                    ///< number of join() before it may begin
    std::vector<int> links{};           ///< numbers from 0
    std::vector<int> queues{};          ///< filled by enqueue()
  };
  /// Adds a transfer at the end of no queue yet. Returns its number.
  int add(Transfer transfer);
  /// Puts the transfer at the end of a queue. Every member calls it for its own queue before it joins.
  void enqueue(int transfer, int queue);
  /// A member reaches the transfer. `seconds` is the time of the transfer alone; the longest of all members counts.
  void join(int transfer, double seconds, double now, Clock& clock);
  /// Ends a transfer at the time of the clock, and begins the next ones of its queues.
  void end(int transfer, Clock& clock);

  int size() const { return static_cast<int>(all_.size()); }
  bool is_over(int transfer) const { return at(transfer).state == State::Over; }
  double joined_at(int transfer) const { return at(transfer).joined; }  ///< when the last member joined
  double began_at(int transfer) const { return at(transfer).began; }
  uint32_t version(int transfer) const { return at(transfer).version; }
  const std::string& name_of(int transfer) const { return *at(transfer).transfer.name; }

 private:
  enum class State : uint8_t { Waiting, Active, Over };
  struct One {
    Transfer transfer;
    State state = State::Waiting;
    uint32_t version = 0;  // of its predicted end
    double seconds = 0, joined = 0, began = 0;
    double left = 0, speed = 0, updated = 0;  // seconds left at full speed, when `updated`
  };
  const One& at(int transfer) const { return all_[static_cast<size_t>(transfer)]; }
  One& at(int transfer) { return all_[static_cast<size_t>(transfer)]; }
  void begin_if_first(int transfer, Clock& clock);
  void set_speeds(const std::vector<int>& links, Clock& clock);
  void set_speed(int transfer, Clock& clock);

  std::vector<One> all_;
  std::vector<std::deque<int>> queues_;
  std::vector<std::vector<int>> on_link_;  // active transfers
};

/// Returns `seconds`. Errors ("timeline"): a number that is negative or not finite; the message names `whose` it is.
double checked_seconds(double seconds, const std::string& whose);

}  // namespace colossal::plan
