#include "colossal/comm/decorators/watchdog.h"

#include <algorithm>
#include <cstdlib>

#include "colossal/base/error.h"

namespace colossal::comm {
namespace {

using std::chrono::milliseconds;

bool is_numbered(Collective collective) { return collective != Collective::Send && collective != Collective::Recv; }

milliseconds interval_for(const Watchdog::Options& options) {
  // The store is one server: with thousands of ranks each writes less often.
  const milliseconds longest(1000 + options.world_size);
  return std::clamp(options.limit / 8, milliseconds(5), longest);
}

std::string call_key(const std::string& group, int rank) { return concat("calls/", group, "/", rank); }
std::string stall_key(int world_rank) { return concat("stalled/", world_rank); }
constexpr const char* kVerdict = "verdict";

/// "17 all_reduce #17" -> 17 and "all_reduce #17".
struct Published {
  uint64_t number = 0;
  std::string last = "none";
  explicit Published(const std::optional<std::string>& text) {
    if (!text) return;
    number = std::strtoull(text->c_str(), nullptr, 10);
    last = text->substr(std::min(text->size(), text->find(' ') + 1));
  }
};

}  // namespace

Watchdog::Watchdog(std::shared_ptr<Store> store, const Options& options, std::function<void(const std::string&)> abort)
    : store_(std::move(store)), options_(options), abort_(std::move(abort)), interval_(interval_for(options)) {
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
  Watched group;
  group.name = name;
  group.key = key;
  group.ranks = ranks;
  group.rank = rank;
  groups_.push_back(std::move(group));
  return static_cast<int>(groups_.size()) - 1;
}

Watchdog::Ticket Watchdog::begin(const Call& call) {
  Record record{call, 0, Clock::now(), nullptr};
  const std::lock_guard lock(mutex_);
  if (is_numbered(call.collective)) {
    Watched& group = groups_[call.group];
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

void Watchdog::throw_verdict() {
  {
    const std::lock_guard lock(mutex_);
    if (verdict_) throw Error("watchdog", *verdict_);
  }
  std::optional<std::string> verdict;  // a peer's, whose abort may reach this rank before its own watchdog looks again
  try {
    verdict = store_->find(kVerdict);
  } catch (const std::exception&) {
    return;  // the store is gone: what the transport said must do
  }
  if (verdict) throw Error("watchdog", *verdict);
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, interval_, [this] { return stopping_; })) {
    lock.unlock();
    const bool over = look();
    lock.lock();
    if (over) return;
  }
}

/// One round; true when there is a verdict.
bool Watchdog::look() {
  drop_finished();
  try {
    publish();
    if (const auto verdict = store_->find(kVerdict)) {
      conclude(*verdict);
      return true;
    }
    // Peers publish once an interval: what they say is sure only two rounds after the stall was noticed.
    const auto record = stalled(options_.limit + 2 * interval_);
    if (!record) return false;
    const auto verdict = diagnose(*record, record->start + 3 * options_.limit < Clock::now());
    if (!verdict) return false;
    // The first verdict is everybody's.
    if (store_->add("verdicts", 1) == 1) store_->set(kVerdict, *verdict);
    return false;
  } catch (const std::exception& error) {  // the store is gone: its host has ended or died
    const auto record = stalled(options_.limit + 2 * interval_);
    if (!record) return false;
    conclude(concat(describe(*record), " did not finish within ", options_.limit.count() / 1000.0,
                    " s, and the store that knows the other ranks' calls cannot be reached: ", plain_message(error)));
    return true;
  }
}

void Watchdog::drop_finished() {
  const std::lock_guard lock(mutex_);
  std::erase_if(under_way_, [](const auto& entry) { return entry.second.work && entry.second.work->done(); });
}

void Watchdog::publish() {
  std::vector<std::pair<std::string, std::string>> news;
  {
    const std::lock_guard lock(mutex_);
    for (auto& group : groups_) {
      if (group.published == group.calls) continue;
      group.published = group.calls;
      news.emplace_back(call_key(group.key, group.rank), concat(group.calls, " ", describe(group.last)));
    }
    const auto before = Clock::now() - options_.limit / 2;
    const bool stalls = std::any_of(under_way_.begin(), under_way_.end(),
                                    [&](const auto& entry) { return entry.second.start < before; });
    if (stalls != announced_stall_) news.emplace_back(stall_key(options_.world_rank), stalls ? "yes" : "no");
    announced_stall_ = stalls;
  }
  for (const auto& [key, value] : news) store_->set(key, value);
}

std::optional<Watchdog::Record> Watchdog::stalled(milliseconds age) {
  const std::lock_guard lock(mutex_);
  const auto before = Clock::now() - age;
  for (const auto& [ticket, record] : under_way_) {
    if (record.start < before) return record;
  }
  return std::nullopt;
}

std::string Watchdog::describe(const Record& record) const {
  std::string text = to_string(record.call.collective);
  if (record.number > 0) text += concat(" #", record.number);
  if (record.call.collective != Collective::Barrier) text += concat(" of ", record.call.bytes, " bytes");
  return text;
}

/// Who is late for `record`? Nothing when that cannot be said yet: the late rank itself waits elsewhere.
std::optional<std::string> Watchdog::diagnose(const Record& record, bool insist) {
  Watched group;
  std::string own;
  {
    const std::lock_guard lock(mutex_);
    group = groups_[record.call.group];
    own = describe(record);
  }
  const int size = static_cast<int>(group.ranks.size());
  const std::string where = concat(" on group \"", group.name, "\" (", to_string(record.call.phase), ")");
  const std::string waited = concat("; waited ", options_.limit.count() / 1000.0, " s");
  if (record.number == 0) {
    const bool sends = record.call.collective == Collective::Send;
    return concat("rank ", record.call.peer, " of ", size, sends ? " never received" : " never sent", " what rank ",
                  group.rank, sends ? " sends: " : " waits for: ", own, where, waited);
  }
  bool someone_waits = false;
  for (int r = 0; r < size; ++r) {
    if (r == group.rank) continue;
    const Published peer(store_->find(call_key(group.key, r)));
    const bool comparable = record.call.collective != Collective::AllToAll;  // whose bytes may differ
    const bool elsewhere = comparable && peer.number == record.number && peer.last != own;
    if (elsewhere) {
      return concat("rank ", r, " of ", size, " called ", peer.last, " while rank ", group.rank, " called ", own, where,
                    waited, "; every rank must make the same calls in the same order");
    }
    if (peer.number >= record.number) continue;
    if (!insist && store_->find(stall_key(group.ranks[r])).value_or("no") == "yes") {
      someone_waits = true;
      continue;
    }
    const std::string last = peer.number == 0 ? "it has made no call there" : "its last call there was " + peer.last;
    return concat("rank ", r, " of ", size, " never called ", own, where, "; ", last, waited);
  }
  if (someone_waits) return std::nullopt;
  return concat("all ", size, " ranks called ", own, where, ", but it did not finish", waited,
                "; the transport between them is stuck");
}

void Watchdog::conclude(const std::string& verdict) {
  {
    const std::lock_guard lock(mutex_);
    verdict_ = verdict;
  }
  abort_(verdict);
}

}  // namespace colossal::comm
