#include "colossal/comm/decorators/watchdog.h"

#include <algorithm>

#include "colossal/base/error.h"

namespace colossal::comm {
namespace {

using std::chrono::milliseconds;

bool is_numbered(Collective collective) { return collective != Collective::Send && collective != Collective::Recv; }

milliseconds first_look(const Watchdog::Options& options) { return std::min(options.limit, options.notice); }

milliseconds interval_for(const Watchdog::Options& options) {
  // The store is one server, so with thousands of ranks each rank writes less often.
  const milliseconds longest(1000 + options.world_size);
  return std::clamp(first_look(options) / 8, milliseconds(5), longest);
}

template <class Duration>
double seconds_of(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

/// Waits under the watch of the watchdog. The wait() of some transports (NcclGroup) blocks a device stream and not the
/// host. The call is then not done, and stays recorded until its work is done.
class WatchedWait {
 public:
  explicit WatchedWait(std::shared_ptr<Watchdog> watchdog) : watchdog_(std::move(watchdog)) {}

  void operator()(Watchdog::Ticket ticket, const std::shared_ptr<Work>& work) const {
    try {
      Work(*work).wait();  // a copy, because the watchdog may query the original at the same time
    } catch (...) {
      watchdog_->end(ticket);
      watchdog_->throw_verdict();
      throw;
    }
    watchdog_->check();  // because an aborted device transport may return without waiting
    if (work->done())
      watchdog_->end(ticket);
    else
      watchdog_->follow(ticket, work);
  }
  const std::shared_ptr<Watchdog>& watchdog() const { return watchdog_; }

 private:
  std::shared_ptr<Watchdog> watchdog_;
};

class WatchedWork : public Work::State {
 public:
  WatchedWork(std::shared_ptr<Watchdog> watchdog, Watchdog::Ticket ticket, std::shared_ptr<Work> inner)
      : wait_(std::move(watchdog)), ticket_(ticket), inner_(std::move(inner)) {}

  void wait() override { wait_(ticket_, inner_); }
  bool done() override { return inner_->done(); }

 private:
  const WatchedWait wait_;
  const Watchdog::Ticket ticket_;
  const std::shared_ptr<Work> inner_;
};

/// A send or recv in progress counts as late only after a thread waits for it, because a receive may be posted long
/// before its message.
class WatchedTransfer : public Work::State {
 public:
  WatchedTransfer(std::shared_ptr<Watchdog> watchdog, Watchdog::Watched call, Work inner)
      : wait_(std::move(watchdog)), call_(call), inner_(std::make_shared<Work>(std::move(inner))) {}

  void wait() override { wait_(wait_.watchdog()->begin(call_), inner_); }
  bool done() override { return inner_->done(); }

 private:
  const WatchedWait wait_;
  const Watchdog::Watched call_;
  const std::shared_ptr<Work> inner_;
};

}  // namespace

Watchdog::Watchdog(std::shared_ptr<Store> store, const Options& options, std::function<void(const std::string&)> abort)
    : announcements_(std::make_shared<Announcements>(std::move(store))),
      options_(options),
      abort_(std::move(abort)),
      interval_(interval_for(options)),
      late_ranks_(announcements_, options.limit) {
  thread_ = std::thread([this] { run(); });
}

Watchdog::~Watchdog() { stop(); }

void Watchdog::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  if (thread_.joinable()) thread_.join();
}

int Watchdog::add_group(const std::string& name, const std::string& key, const std::vector<int>& ranks, int rank) {
  const std::lock_guard lock(mutex_);
  WatchedRanks group;
  group.name = name;
  group.key = key;
  group.ranks = ranks;
  group.rank = rank;
  groups_.push_back(std::move(group));
  return static_cast<int>(groups_.size()) - 1;
}

Watchdog::Ticket Watchdog::begin(const Watched& call) {
  check();
  Record record{call, 0, Clock::now()};
  const std::lock_guard lock(mutex_);
  if (is_numbered(call.collective)) {
    WatchedRanks& group = groups_[call.group];
    record.number = ++group.calls;
    group.last = record;
  }
  under_way_.emplace_hint(under_way_.end(), ++tickets_, std::move(record));
  return tickets_;
}

void Watchdog::follow(Ticket ticket, std::shared_ptr<Work> work) {
  const std::lock_guard lock(mutex_);
  const auto it = under_way_.find(ticket);
  if (it != under_way_.end()) it->second.work = std::move(work);
}

void Watchdog::end(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  const auto it = under_way_.find(ticket);
  if (it == under_way_.end()) return;
  under_way_.erase(it);
}

uint64_t Watchdog::enter(const std::string& what) {
  const std::lock_guard lock(mutex_);
  doing_.emplace(++episodes_, Doing{what, Clock::now()});
  return episodes_;
}

void Watchdog::leave(uint64_t episode) {
  const std::lock_guard lock(mutex_);
  doing_.erase(episode);
}

void Watchdog::set_listener(std::function<void(const Stall&)> listener) {
  const std::lock_guard lock(listener_mutex_);
  listener_ = std::move(listener);
}

void Watchdog::check() const {
  const std::lock_guard lock(mutex_);
  if (verdict_) throw Error("watchdog", *verdict_);
}

void Watchdog::throw_verdict() {
  check();
  std::optional<std::string> verdict;  // verdict of a peer, whose abort may reach this rank before its own watchdog
                                       // looks again
  try {
    verdict = announcements_->verdict();
  } catch (const std::exception&) {
    return;  // the store is gone, so only the transport's error remains
  }
  if (verdict) throw Error("watchdog", *verdict);
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  auto before = Clock::now();
  while (!stop_.wait_for(lock, interval_, [this] { return stopping_; })) {
    // This process was stopped, and its peers may have been too (Slurm suspends whole jobs), so no rank is blamed for
    // that time.
    const auto now = Clock::now();
    if (now - before > interval_ + options_.limit / 2) {
      for (auto& [ticket, record] : under_way_) record.patient_since = now;
    }
    lock.unlock();
    const bool over = look();
    lock.lock();
    if (over) return;
    before = Clock::now();
  }
}

/// Makes one round; returns true if there is a verdict.
bool Watchdog::look() {
  drop_finished();
  try {
    publish();
    publish_busy();
    if (const auto verdict = announcements_->verdict()) {
      conclude(*verdict);
      return true;
    }
    pass_on_news();
    notice();
    judge();
    return false;
  } catch (const std::exception& error) {  // the store is gone, because its host has ended or died
    const auto record = stalled(options_.limit + 2 * interval_);
    if (!record) return false;
    conclude(concat(describe(record->second), " did not finish within ", seconds_of(options_.limit),
                    " s, and the store that knows the other ranks' calls cannot be reached: ", plain_message(error)));
    return true;
  }
}

void Watchdog::drop_finished() {
  const std::lock_guard lock(mutex_);
  std::erase_if(under_way_, [](const auto& entry) { return entry.second.work && entry.second.work->done(); });
}

void Watchdog::publish() {
  struct News {
    std::string group;
    int rank;
    Announcements::Called called;
  };
  std::vector<News> news;
  Announcements::Waiting waiting;
  {
    const std::lock_guard lock(mutex_);
    for (auto& group : groups_) {
      if (group.published == group.calls) continue;
      group.published = group.calls;
      news.push_back({group.key, group.rank, {group.calls, describe(group.last)}});
    }
    const auto before = Clock::now() - first_look(options_) / 2;
    for (const auto& [ticket, record] : under_way_) {
      if (record.start >= before) continue;
      waiting.waits = true;
      waiting.for_busy = std::max(waiting.for_busy, record.for_busy);
    }
  }
  for (const auto& [group, rank, called] : news) announcements_->set_called(group, rank, called);
  if (waiting == announced_waiting_) return;
  announcements_->set_waiting(options_.world_rank, waiting);
  announced_waiting_ = waiting;
}

std::optional<Announcements::Busy> Watchdog::busy() {
  const std::lock_guard lock(mutex_);
  if (doing_.empty()) return std::nullopt;
  const auto& [episode, doing] = *doing_.rbegin();
  const auto seconds = static_cast<int64_t>(seconds_of(Clock::now() - doing.start));
  return Announcements::Busy{++beat_, episode, seconds, doing.what};
}

void Watchdog::publish_busy() {
  const auto busy = this->busy();
  if (busy || announced_busy_) announcements_->set_busy(options_.world_rank, busy);
  announced_busy_ = busy.has_value();
}

/// Returns the oldest call that has been in progress for longer than `age`, not counting time spent on busy ranks.
std::optional<std::pair<Watchdog::Ticket, Watchdog::Record>> Watchdog::stalled(milliseconds age) {
  const std::lock_guard lock(mutex_);
  const auto before = Clock::now() - age;
  for (const auto& [ticket, record] : under_way_) {
    if (record.patient_since < before) return {{ticket, record}};
  }
  return std::nullopt;
}

std::string Watchdog::describe(const Record& record) const {
  std::string text = to_string(record.call.collective);
  if (record.number > 0) text += concat(" #", record.number);
  if (record.call.collective != Collective::Barrier) text += concat(" of ", record.call.bytes, " bytes");
  return text;
}

LateRanks::Wait Watchdog::wait_of(const Record& record) {
  const std::lock_guard lock(mutex_);
  const WatchedRanks& group = groups_[record.call.group];
  LateRanks::Wait wait{group.name, group.key, group.ranks, group.rank, record.number, record.call.peer};
  wait.sends = record.call.collective == Collective::Send;
  wait.is_comparable = record.call.collective != Collective::AllToAll;  // its byte counts may differ between ranks
  wait.call = describe(record);
  wait.phase = to_string(record.call.phase);
  return wait;
}

/// Reports the end of a stall and, on rank 0, the reports of other ranks.
void Watchdog::pass_on_news() {
  if (announced_stall_) {
    const Announced stall = *announced_stall_;
    bool is_over = false;
    {
      const std::lock_guard lock(mutex_);
      is_over = under_way_.count(stall.ticket) == 0;
    }
    if (is_over) {
      announced_stall_.reset();
      went_on_ = Clock::now();
      const double seconds = seconds_of(went_on_ - stall.start);
      tell({concat("went on after ", static_cast<int64_t>(seconds + 0.5), " s: ", stall.call), true, true, seconds,
            stall.busy_with});
    }
  }
  if (options_.world_rank != 0) return;
  for (const Stall& stall : announcements_->hear()) tell(stall);
}

/// Reports a call that has been in progress for a while, if no other rank does.
void Watchdog::notice() {
  if (announced_stall_) return;
  // Peers publish once per interval, so their state is certain only two rounds after the stall was noticed.
  const milliseconds age = options_.notice + 2 * interval_;
  const auto found = stalled(age);
  const auto now = Clock::now();
  if (!found || now < went_on_ + age) return;  // calls that queued during a stall may be late
  const auto& [ticket, record] = *found;
  const LateRanks::Wait wait = wait_of(record);
  if (ticket != examined_) {
    examined_ = ticket;
    const std::string call = record.number > 0 ? concat(record.number) : concat(wait.rank, "-", ticket);
    speaks_ = announcements_->claim(concat(wait.key, "/", call));
    next_examination_ = now;
  }
  if (!speaks_ || now < next_examination_) return;
  const auto finding = late_ranks_.find(wait, false, record.start + 3 * age < now);
  next_examination_ = now + (now - record.start) / 2;  // because an examination costs a request for each rank of the
                                                       // group
  if (finding.text.empty()) return;
  std::string text = finding.text;
  if (finding.busy_rank < 0) {
    text += concat("; waited ", seconds_of(options_.notice), " s");
  } else if (!announcements_->claim(concat("busy/", finding.busy_rank, "/", finding.episode))) {
    return;  // one report for all ranks that wait for it
  }
  announced_stall_ = {ticket, record.start, wait.text(), finding.busy_with};
  tell({text, true, false, seconds_of(now - record.start), finding.busy_with});
}

/// Ends all groups for a call that has been in progress for too long, if a rank is to blame.
void Watchdog::judge() {
  const auto found = stalled(options_.limit + 2 * interval_);
  if (!found) return;
  const auto& [ticket, record] = *found;
  const bool insist = record.patient_since + 3 * options_.limit < Clock::now();
  const auto finding = late_ranks_.find(wait_of(record), true, insist);
  {
    const std::lock_guard lock(mutex_);
    const auto it = under_way_.find(ticket);
    if (it == under_way_.end()) return;  // the call has finished in the meantime
    it->second.for_busy = finding.busy_rank;
    if (finding.busy_rank >= 0) it->second.patient_since = Clock::now();
  }
  if (finding.busy_rank < 0 && !finding.text.empty()) {
    announcements_->offer_verdict(concat(finding.text, "; waited ", seconds_of(options_.limit), " s"));
  }
}

void Watchdog::tell(const Stall& stall) {
  {
    const std::lock_guard lock(listener_mutex_);
    if (listener_) listener_(stall);
  }
  if (stall.seen_here && options_.world_rank != 0) announcements_->say(stall);
}

void Watchdog::conclude(const std::string& verdict) {
  {
    const std::lock_guard lock(mutex_);
    verdict_ = verdict;
  }
  abort_(verdict);
}

Work WatchedGroup::issue(const Call& call) {
  const Watchdog::Watched watched{handle_, call.collective, bytes_of(call), call.is_transfer() ? call.peer : -1,
                                  traffic_.phase()};
  const auto ticket = watchdog_->begin(watched);
  try {
    Work work = inner_->issue(call);
    if (work.is_empty() || call.is_transfer()) {
      watchdog_->end(ticket);
      if (work.is_empty()) return work;
      return Work(std::make_shared<WatchedTransfer>(watchdog_, watched, std::move(work)));
    }
    auto kept = std::make_shared<Work>(std::move(work));
    watchdog_->follow(ticket, kept);
    return Work(std::make_shared<WatchedWork>(watchdog_, ticket, std::move(kept)));
  } catch (...) {
    watchdog_->end(ticket);
    watchdog_->throw_verdict();
    throw;
  }
}

}  // namespace colossal::comm
